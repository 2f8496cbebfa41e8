"""Handoff: who is about to cross into another node's area, and what must stand before (JIT).

In: where consumers are, as their sessions say. Out: virtual consumers at the nodes they may come to
next, and their end. Losing any message of it loses no event: a consumer has its vector (flows).
"""
