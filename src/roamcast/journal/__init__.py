"""The one record of what brokers did, written by both drivers.

In go `model.records.Record`s with time and host. Out come a digest (equal runs have equal digests),
the last lines for a person to read, and whole Parquet segments for Spark. Drivers hold a
`journal.book.Journal`; `journal.segments` writes and reads files; `journal.schema` derives the
columns from the records.
"""
