"""Brokers under asyncio: HTTP, WebSocket, links, UDP and NATS channels and SQLite, no policy."""
