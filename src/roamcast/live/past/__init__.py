"""The past of a running service: questions, and the feeding of its archive, in worker threads."""
