"""How few transmissions reach them: query records, recurring sets, bands, reliable delivery."""
