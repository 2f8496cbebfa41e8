"""What a service calls is compiled before it serves: machine code made later stops everybody."""

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from numba.core.registry import CPUDispatcher

from roamcast.matching.filter_set import FilterSet
from roamcast.matching.live import questions
from roamcast.matching.live.index import LiveIndex
from roamcast.matching.live.slices import run
from roamcast.matching.live.texts import Texts
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter

CONTEXTS = 500
TEXTS = 70_000
SHAPES = (
    "vid = 'v7'", "within(place, 'b/1')", "S_INTERSECTS(geometry, BBOX(-9, -9, 9, 9))",
    "S_WITHIN(geometry, POLYGON((0 0, 9 0, 9 9, 0 0)))", "near(geometry, POINT(3 3), 100000)",
    "n = 5", "n > 5 AND n < 9", "n IN (1, 2, 3)", "n + 1 > 7", "w LIKE '%rd 12%'", "w LIKE '_o%'",
    "n IN (1, 2) AND w > 'word 5'", "NOT n = 3", "n <> 3 OR w IS NULL", "n IS NULL AND w IS NULL",
    "(n = 1 AND w = 'word 1') OR (n = 2 AND w = 'word 2')", "casei(w) = casei('WORD 3')",
    "NOT (w LIKE '%1' OR n BETWEEN 3 AND 9)", "absent = TRUE", "n = 2.5", "w IN ('word 1', 'x')",
)  # fmt: skip


def kernels() -> Iterator[tuple[str, CPUDispatcher]]:
    """Give every kernel that has been imported."""
    for name, module in list(sys.modules.items()):
        if name.startswith("roamcast."):
            for called, found in list(vars(module).items()):
                if isinstance(found, CPUDispatcher) and found.py_func.__module__ == name:
                    yield f"{name}.{called}", found


def made() -> set[str]:
    """Name what has been compiled or loaded."""
    return {f"{name} {types}" for name, found in kernels() for types in found.overloads}


def much(index: LiveIndex, filters: FilterSet) -> None:
    """Ask a map in every shape, and empty it."""
    for number in range(CONTEXTS):
        point = (number % 360 - 180.0, number % 180 - 90.0) if number % 3 else None
        attributes = {"n": number % 100, "w": f"word {number}"} if number % 5 else {}
        index.put(Context(f"v{number}", f"b/{number}", point, attributes))
    for text in SHAPES:
        wanted = Filter.parse(text)
        filters.add(text, wanted)
        run(questions.count(index, wanted))
        run(questions.page(index, wanted, "v3", 10))
    for text in ("true", "n = 3", "w LIKE '%99%'"):
        run(questions.nearest(index, (1.0, 2.0), Filter.parse(text), count=20))
    filters.match(Context("v", "b/1", (0.0, 0.0), {"n": 1, "w": "word"}))
    for number in range(CONTEXTS):
        index.remove(f"v{number}")


def many(texts: Texts) -> None:
    """Store many texts, search them, and take most of them back."""
    for number in range(TEXTS):
        texts.take(f"word {number}")
    texts.liking("%rd 12%", np.empty(TEXTS, np.int64))
    for number in range(TEXTS - 1):
        texts.drop(f"word {number}")


def nothing_is_compiled_later() -> None:
    """Compare what is compiled after the warm-up with what a large map calls."""
    FilterSet().warm_up()
    questions.warm_up()
    before = made()
    much(LiveIndex(), FilterSet())
    many(Texts())
    assert made() == before, made() - before


@pytest.mark.process
def test_after_the_warm_up_nothing_is_compiled_or_loaded() -> None:
    code = f"from {__name__} import nothing_is_compiled_later as tried; tried()"
    subprocess.run([sys.executable, "-c", code], check=True)
