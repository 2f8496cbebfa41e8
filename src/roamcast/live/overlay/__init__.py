"""The overlay of a running service: its node key, and the sockets to its neighbours."""
