"""The archive: contexts by day and cell in a Delta table; appended, compacted, reduced, erased."""
