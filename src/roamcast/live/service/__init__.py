"""The running service: one broker, its driver, and what requests wait for."""
