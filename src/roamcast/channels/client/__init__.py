"""The map client: it publishes, subscribes, and keeps a copy of what it may see.

In: its user's wishes and the server's messages. Out: changes for the user.
"""
