"""Several hosts of one service: keeper and spare processes, sockets between replicas."""
