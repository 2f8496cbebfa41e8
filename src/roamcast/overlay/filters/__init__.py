"""Filters where they pay: which nodes match what passes through them (CBM 3 and 8; OVERLAY 10).

In: what passes a node, and whether somebody beyond it wants it. Out: the links it goes on over, and
signals that switch matching on and off at other nodes.
"""
