"""The map service of AMS: as few transmissions as possible tell every subscriber of every update.

`reliable/` is multicast without loss, `server/` the map and its subscriptions, `spread/` the choice
of channels, `client/` the other end. `sessions/` is the last hop inside the server's process,
`relay/` stands for clients that receive no groups, `failover/` hands the service to another host.
"""
