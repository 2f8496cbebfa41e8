"""Matching: who wants it?

Goes in: filters by id, then contexts, one by one or as Arrow batches. Comes out: the ids of the
filters each context satisfies; whether one filter covers another; summaries of many contexts.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roamcast.matching.filter_set import FilterSet, Pairs

__all__ = ["FilterSet", "Pairs"]


def __getattr__(name: str) -> Any:
    """Import the compiled part on first use: it takes half a second that covering can spare."""
    if name in __all__:
        from roamcast.matching import filter_set

        return getattr(filter_set, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
