"""PySpark jobs: sightings and journals in; contexts, archive, lookups, metrics and plans out."""
