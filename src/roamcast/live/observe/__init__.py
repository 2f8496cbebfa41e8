"""What the service tells about itself: logs, metrics and the journal."""
