"""Journals of brokers, read by Spark: contexts for the archive, replayed decisions, plan files."""
