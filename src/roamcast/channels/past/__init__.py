"""The exact past of a broker: what the map showed, from when to when (docs/past.md)."""
