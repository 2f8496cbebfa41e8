"""Casts in a running service: look-ups in the past, sealed mail on its way, and who may send what.

In: the broker's effects and people's requests. Out: inputs of the broker, deposits at trusted
nodes, rounded counts.
"""
