"""Sightings to archived contexts: read, check, scan by person, write, exactly once."""
