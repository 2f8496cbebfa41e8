"""Live contexts, indexed: which contexts satisfy a filter?

In: contexts that appear, change and leave; then filters. Out: counts, pages by vid, the nearest,
each as a question in slices. The other way round than `FilterSet`, with the same answers.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roamcast.matching.live import questions
    from roamcast.matching.live.index import LiveIndex

__all__ = ["LiveIndex", "questions"]


def __getattr__(name: str) -> Any:
    """Import on first use: loading Numba takes half a second."""
    from importlib import import_module

    if name == "questions":
        return import_module("roamcast.matching.live.questions")
    if name == "LiveIndex":
        return import_module("roamcast.matching.live.index").LiveIndex
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
