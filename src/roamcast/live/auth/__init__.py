"""Who may ask: tokens and the keys that sign them; connections end with their token."""
