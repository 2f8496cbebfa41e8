"""Are 200,000 contexts of seconds to months answered as the reference evaluator answers?

The reference takes each message and each context in turn, on all cores: minutes for the messages of
a usual run, half an hour and more for the 2,000 of `--full`.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
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


def run(quick: bool, progress: Steps, *, full: bool = False) -> Report:
    """Answer by the driver, by Spark and by the reference; count what differs."""
    size = 20_000 if quick else 200_000
    count = 2_000 if full else 22 if quick else 110
    table, asked = contexts(SEED, size), messages(SEED + 1, count)
    begin = time.perf_counter()
    with progress("messages", count) as step:
        want = dict(_reference(from_arrow(table), asked, step))
    reference_s = time.perf_counter() - begin
    with tempfile.TemporaryDirectory(prefix="roamcast-bench-") as folder:
        append(table, folder)
        begin = time.perf_counter()
        here = Lookup(folder).ask(asked)
        here_s = time.perf_counter() - begin
        with started(Settings(master="local[2]")) as spark:
            there = Lookup(folder, spark, driver_rows=0).ask(asked)
    wrong = sum((want[name] != here[name]) + (want[name] != there[name]) for name in asked)
    pairs = sum(map(len, want.values()))
    answered = {
        PREDICATES[number % len(PREDICATES)] for number, name in enumerate(asked) if want[name]
    }
    row = {
        "contexts": size,
        "messages": count,
        "pairs": pairs,
        "predicates answered": len(answered),
        "wrong answers": wrong,
        "driver_s": here_s,
        "reference_s": reference_s,
    }
    claims = [
        Claim("answers that differ from the reference, driver and Spark", wrong, wrong == 0, bar=0)
    ]
    return Report("lookup-exact", {"seed": SEED, "spark": "local[2]"}, [row], claims)


def _reference(
    every: list[Context], asked: dict[str, Filter], step: Callable[[int], None]
) -> Iterator[tuple[str, list[str]]]:
    """Hold each context against each message, nothing skipped, on all cores."""
    forking = get_context("fork")  # the children read what is here already
    answers = forking.SimpleQueue()
    cores, names = os.cpu_count() or 1, list(asked)

    def work(first: int) -> None:
        for name in names[first::cores]:
            matches = asked[name].matches
            answers.put((name, sorted({one.vid for one in every if matches(one)})))

    children = [forking.Process(target=work, args=(first,), daemon=True) for first in range(cores)]
    for child in children:
        child.start()
    for _ in names:
        while answers.empty() and any(child.is_alive() for child in children):
            time.sleep(0.01)
        assert not answers.empty(), "a process of the reference died"
        yield answers.get()
        step(1)
    for child in children:
        child.join()
