"""A hash table from (cluster, token) to child cluster: open addressing, one table for all."""

import numpy as np

from roamcast.matching.layout import Array, Int
from roamcast.model.kernels import inlined, kernel


@inlined
def _hash(key: Int, size: Int) -> Int:
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((mixed ^ (mixed >> np.uint64(29))) & np.uint64(size - 1))


@inlined
def find_child(keys: Array, values: Array, cluster: Int, token: Int) -> Int:
    """Return the child of a cluster for a token, or -1. The table's size is a power of 2."""
    key = (np.int64(cluster) << 32) | np.int64(token)
    size = len(keys)
    at = _hash(key, size)
    while keys[at] != -1:
        if keys[at] == key:
            return values[at]
        at = (at + 1) & (size - 1)
    return -1


@kernel
def enter(keys: Array, values: Array, key: Int, value: Int) -> None:
    """Insert a key that is not in the table; the caller keeps the table at most half full."""
    size = len(keys)
    at = _hash(key, size)
    while keys[at] != -1:
        at = (at + 1) & (size - 1)
    keys[at] = key
    values[at] = value


@kernel
def rehash(old_keys: Array, old_values: Array, keys: Array, values: Array) -> None:
    """Copy one table into another, larger one."""
    for at in range(len(old_keys)):
        if old_keys[at] != -1:
            enter(keys, values, old_keys[at], old_values[at])


@kernel
def leave(keys: Array, values: Array, key: Int) -> None:
    """Delete a key and close the gap, so that linear probing still finds what follows."""
    size = len(keys)
    gap = _hash(key, size)
    while keys[gap] != key:
        gap = (gap + 1) & (size - 1)
    at = gap
    while True:
        at = (at + 1) & (size - 1)
        if keys[at] == -1:
            break
        home = _hash(keys[at], size)
        if (at - home) & (size - 1) >= (at - gap) & (size - 1):
            keys[gap], values[gap] = keys[at], values[at]
            gap = at
    keys[gap] = -1
