"""The state plane between brokers: what is on any node's map, where somebody watches it.

In: what everybody may see on this node's map, and what sessions here watch. Out: the present state
of every matching context of the whole overlay, then its changes.
"""
