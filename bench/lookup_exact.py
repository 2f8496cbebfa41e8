"""Are 200,000 contexts of seconds to months answered as the reference evaluator answers?

The reference takes each context and each message in turn, on all cores: a minute or two for the
messages of a usual run, a quarter of an hour and more for the 2,000 of `--full`.
"""

import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

from roamcast.lab.report import Claim, Report, Steps
from roamcast.model.context_arrow import from_arrow
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.syntax import PREDICATES
from roamcast.pipeline.archive import append
from roamcast.pipeline.lookup import Lookup
from roamcast.pipeline.session import Settings, started

sys.path.append(str(Path(__file__).parents[1]))  # the tests' generator lies in the checkout
from tests.strategies_pipeline import contexts, messages

TITLE = "Lookups held to the reference evaluator: 200,000 contexts, all 11 temporal predicates"
SEED = 41


CHUNK = 500
"""Contexts that a process of the reference holds against all messages before it answers."""


def run(quick: bool, progress: Steps, *, full: bool = False) -> Report:
    """Answer by the driver, by Spark and by the reference; count what differs."""
    size = 20_000 if quick else 200_000
    count = 2_000 if full else 22 if quick else 110
    table, asked = contexts(SEED, size), messages(SEED + 1, count)
    begin = time.perf_counter()
    with progress("contexts", size) as step:
        want = _reference(from_arrow(table), asked, step)
    reference_s = time.perf_counter() - begin
    with tempfile.TemporaryDirectory(prefix="roamcast-bench-") as folder:
        append(table, folder)
        begin = time.perf_counter()
        here = Lookup(folder).ask(asked)
        here_s = time.perf_counter() - begin
        with started(Settings(master="local[2]")) as spark:
            there = Lookup(folder, spark, driver_rows=0).ask(asked)
    wrong_here = sum(want[name] != here[name] for name in asked)
    wrong_there = sum(want[name] != there[name] for name in asked)
    row = {
        "contexts": size,
        "messages": count,
        "pairs held": size * count,
        "pairs that match": sum(map(len, want.values())),
        "predicates answered": len(_answered(asked, want)),
        "wrong in the driver": wrong_here,
        "wrong on Spark": wrong_there,
        "driver_s": here_s,
        "reference_s": reference_s,
    }
    claims = [
        Claim(
            "driver's answers that differ from the reference", wrong_here, wrong_here == 0, bar=0
        ),
        Claim(
            "Spark's answers that differ from the reference", wrong_there, wrong_there == 0, bar=0
        ),
    ]
    return Report("lookup-exact", {"seed": SEED, "spark": "local[2]"}, [row], claims)


def _answered(asked: dict[str, Filter], want: dict[str, list[str]]) -> set[str]:
    """Tell which predicates matched somewhere, by the messages that have no other alternative."""
    return {
        PREDICATES[number % len(PREDICATES)]
        for number, (name, message) in enumerate(asked.items())
        if want[name] and " OR " not in message.source
    }


def _reference(
    every: list[Context], asked: dict[str, Filter], step: Callable[[int], None]
) -> dict[str, list[str]]:
    """Hold each context against each message, nothing skipped, on all cores."""
    forking = get_context("fork")  # the children read what is here already
    answers = forking.SimpleQueue()
    cores, starts = os.cpu_count() or 1, range(0, len(every), CHUNK)
    # Context by context, so that what the evaluator remembers of one (its point) is used again.
    tests = [(name, message.matches) for name, message in asked.items()]

    def work(first: int) -> None:
        for start in starts[first::cores]:
            some = every[start : start + CHUNK]
            found = [(name, one.vid) for one in some for name, matches in tests if matches(one)]
            answers.put((len(some), found))

    gc.freeze()  # nor does a collection touch, and so copy, the contexts in every child
    children = [forking.Process(target=work, args=(first,), daemon=True) for first in range(cores)]
    for child in children:
        child.start()
    vids: dict[str, set[str]] = {name: set() for name in asked}
    for _ in starts:
        while answers.empty() and any(child.is_alive() for child in children):
            time.sleep(0.01)
        assert not answers.empty(), "a process of the reference died"
        held, found = answers.get()
        for name, vid in found:
            vids[name].add(vid)
        step(held)
    for child in children:
        child.join()
    return {name: sorted(some) for name, some in vids.items()}
