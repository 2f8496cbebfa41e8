"""The one Spark session, paths as Spark reads them, progress, and files that outlast a crash."""
