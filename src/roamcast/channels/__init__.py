"""How few transmissions reach them: query records, recurring sets, bands, reliable delivery.

`sender` and `receiver` are the two ends of a reliable channel, `messages` what they say to each
other, `settings` how patient they are; `backoff` keeps a common loss from becoming a storm.
"""
