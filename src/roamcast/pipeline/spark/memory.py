"""What a task gives back when it ends.

A Python worker runs task after task, of every stage. Arrow's allocator and C's keep what a task
has freed, each for itself: a worker grew to the sum of what its stages had needed, one after
another, and Java beside it has no use for memory that is only kept (decision 0482).
"""

import ctypes

import pyarrow as pa


def give_back() -> None:
    """Return to the system what was freed."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc; others keep less
    if trim is not None:
        trim(0)
