"""The map client: it publishes, subscribes, and holds a copy of what it may see.

In: its user's inputs and the server's messages. Out: changes for the user.
"""
