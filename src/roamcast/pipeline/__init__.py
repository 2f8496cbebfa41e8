"""PySpark: sightings and journals to contexts, archive, lookups, metrics, plans."""
