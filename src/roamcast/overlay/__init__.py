"""How brokers reach each other: topology, routes, casts, handoff, home brokers."""
