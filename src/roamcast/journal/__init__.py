"""The one record that both drivers write.

In go `model.records.Record`s with time and host; out come a digest (equal runs, equal digest), the
last lines for a person, and whole Parquet segments that Spark reads. `journal.book` is what drivers
hold, `journal.segments` writes and reads files, `journal.schema` gives the columns.
"""
