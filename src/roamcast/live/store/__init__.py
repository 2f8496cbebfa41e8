"""The broker's disk: named values in SQLite, acknowledged after the sync."""
