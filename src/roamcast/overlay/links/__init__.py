"""Links between nodes: proved by key, once and in order, bounded.

In: what parts send to a neighbour. Out: the same there, or `NeighbourDown` with a reason.
"""
