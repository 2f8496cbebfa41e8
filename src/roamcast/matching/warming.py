"""Is everything compiled? A tiny set that calls every kernel once, if possible from the cache."""

from typing import TYPE_CHECKING

import numpy as np

from roamcast.matching import hashing
from roamcast.model.context_arrow import to_arrow
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter

if TYPE_CHECKING:
    from roamcast.matching.filter_set import FilterSet


def warm_up(kind: "type[FilterSet]") -> None:
    """Use a throw-away set in every way."""
    filters = kind()
    filters.add("a", Filter.parse("a = 'x' AND b > 1"))
    context = Context("v", None, (0.0, 0.0), {"a": "x", "b": 2})
    assert filters.match(context) == ["a"]
    assert len(filters.match_batch(to_arrow([context])).rows) == 1
    filters.remove("a")
    keys, clusters = np.full(2, -1, np.int64), np.full(2, -1, np.int32)
    hashing.rehash(keys, clusters, keys.copy(), clusters.copy())
