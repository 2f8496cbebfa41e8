"""Who is behind a vid: trusted node, mailbox, privacy rules, user agent."""
