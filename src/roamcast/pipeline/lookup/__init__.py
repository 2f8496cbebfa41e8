"""Historic messages against the archive: plan by statistics, read, match, distinct vids."""
