"""The same brokers under asyncio: HTTP, WebSocket, links, channels, SQLite."""
