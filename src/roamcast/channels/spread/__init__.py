"""How few transmissions carry an update: channels, recurring sets, bands and scopes (AMS 7 to 16).

In: an update and the subscriptions it touches. Out: messages to groups and to single clients.
"""
