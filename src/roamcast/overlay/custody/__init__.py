"""Parcels: bytes for a set of nodes, which arrive once at each of them (TCC part 5; OVERLAY 3).

In: a kind, bytes and nodes. Out: `ParcelArrived` there, until it is handled; whoever holds a parcel
has it on disk, and forgets it only when the next one has it on its own.
"""
