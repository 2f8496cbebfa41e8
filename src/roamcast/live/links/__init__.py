"""Sockets of clients: binary links of map clients, JSON sessions of programs."""
