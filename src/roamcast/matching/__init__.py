"""Who wants it: the compiled filter set, and covering between filters. Pure."""
