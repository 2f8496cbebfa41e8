"""Where filters sit in a dissemination tree. Pure."""
