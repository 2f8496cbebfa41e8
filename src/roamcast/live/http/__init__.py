"""The service over HTTP: OGC API – Features to read, a few routes to write, SSE to follow."""
