"""What if: a stretch of the past replayed with another setting, beside how it was (0330)."""
