"""Are 200,000 contexts of seconds to months answered as the reference evaluator answers?

The reference takes each message and each context in turn: minutes for the messages of a usual
run, an hour and more for the 2,000 of `--full`.
"""

import sys
import tempfile
import time
from pathlib import Path

from roamcast.lab.report import Claim, Report, Steps
from roamcast.model.context_arrow import from_arrow
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
    with tempfile.TemporaryDirectory(prefix="roamcast-bench-") as folder:
        append(table, folder)
        begin = time.perf_counter()
        here = Lookup(folder).ask(asked)
        here_s = time.perf_counter() - begin
        with started(Settings(master="local[2]")) as spark:
            there = Lookup(folder, spark, driver_rows=0).ask(asked)
    every = from_arrow(table)
    wrong, pairs, answered = 0, 0, set()
    begin = time.perf_counter()
    with progress("messages", count) as step:
        for number, (name, one) in enumerate(asked.items()):
            want = sorted({context.vid for context in every if one.matches(context)})
            wrong += (want != here[name]) + (want != there[name])
            pairs += len(want)
            if want:
                answered.add(PREDICATES[number % len(PREDICATES)])
            step(1)
    row = {
        "contexts": size,
        "messages": count,
        "pairs": pairs,
        "predicates answered": len(answered),
        "wrong answers": wrong,
        "driver_s": here_s,
        "reference_s": time.perf_counter() - begin,
    }
    claims = [
        Claim("answers that differ from the reference, driver and Spark", wrong, wrong == 0, bar=0)
    ]
    return Report("lookup-exact", {"seed": SEED, "spark": "local[2]"}, [row], claims)
