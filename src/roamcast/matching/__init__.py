"""The matching kernel: which filters does a context satisfy?

In: filters by id, then contexts, one at a time or as Arrow batches. Out: the ids of the filters
that each context satisfies; whether one filter covers another; summaries of many contexts.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roamcast.matching.filter_set import FilterSet, Pairs

__all__ = ["FilterSet", "Pairs"]


def __getattr__(name: str) -> Any:
    """Import `FilterSet` on first use: loading Numba takes half a second."""
    if name in __all__:
        from roamcast.matching import filter_set

        return getattr(filter_set, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
