"""Sessions in the broker's own process: frames for WebSocket and SSE, and publications on disk.

In: updates of the map and a session's wishes. Out: encoded frames, each shared by many sessions.
"""
