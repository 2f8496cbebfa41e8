"""The Python SDK: a service's address and a token in, live contexts out."""
