"""What the service reports of itself: logs, metrics and the journal."""
