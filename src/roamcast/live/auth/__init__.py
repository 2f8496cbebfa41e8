"""Who may ask: signing keys, tokens, revocation, and connections that end with their token."""
