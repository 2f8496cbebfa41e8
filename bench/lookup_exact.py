"""Are 200,000 contexts of seconds to months answered as the reference evaluator answers?

By the driver, by Spark on this machine, on a standalone cluster of a master and two workers, and
through Spark Connect, each as a command of its own (`--quick`: the first two). The reference takes
each context and each message in turn, on all cores: a minute or two for the messages of a usual
run, a quarter of an hour and more for the 2,000 of `--full`.
"""

import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path

import msgspec

from roamcast.lab.report import Claim, Report, Steps
from roamcast.model.context_arrow import from_arrow
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.syntax import PREDICATES
from roamcast.pipeline.archive.append import append
from roamcast.pipeline.archive.layout import ArchiveSettings

sys.path.append(str(Path(__file__).parents[1]))  # the tests' generator lies in the checkout
from tests.pipeline.clusters import Cluster, connect_server, environment
from tests.strategies_pipeline import contexts, messages

TITLE = "Lookups held to the reference evaluator: 200,000 contexts, all 11 temporal predicates"
SEED = 41
WAYS = ("driver", "local[2]", "cluster", "connect")

CHUNK = 500
"""Contexts that a process of the reference holds against all messages before it answers."""


def run(quick: bool, progress: Steps, *, full: bool = False) -> Report:
    """Answer by the reference and by every way to run a lookup; count what differs."""
    size = 20_000 if quick else 200_000
    count = 2_000 if full else 22 if quick else 110
    table, asked = contexts(SEED, size), messages(SEED + 1, count)
    begin = time.perf_counter()
    with progress("contexts", size) as step:
        want = _reference(from_arrow(table), asked, step)
    row = {
        "contexts": size,
        "messages": count,
        "pairs held": size * count,
        "pairs that match": sum(map(len, want.values())),
        "predicates answered": len(_answered(asked, want)),
        "reference_s": time.perf_counter() - begin,
    }
    claims = []
    with tempfile.TemporaryDirectory(prefix="roamcast-bench-") as name:
        folder = Path(name)
        append(table, folder / "archive", settings=ArchiveSettings(grid_s=0))
        records = [{"id": name, "filter": one.source} for name, one in asked.items()]
        text = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        (folder / "messages.jsonl").write_bytes(text)
        ways = WAYS[:2] if quick else WAYS
        with progress("ways to ask", len(ways)) as step:
            for way in ways:
                begin = time.perf_counter()
                found = _asked(way, folder)
                row[f"{way}_s"] = time.perf_counter() - begin
                wrong = sum(want[name] != found.get(name) for name in asked)
                told = f"{way}: answers that differ from the reference"
                claims.append(Claim(told, wrong, wrong == 0, bar=0))
                step(1)
    return Report("lookup-exact", {"seed": SEED}, [row], claims)


def _asked(way: str, folder: Path) -> dict[str, list[str]]:
    """Ask as a person would, by the command; seconds are with the start of everything."""
    with ExitStack() as stack:
        more = ["--on", "driver"]
        if way == "cluster":
            more = ["--on", "spark", "--spark", stack.enter_context(Cluster(folder)).master]
        elif way == "connect":
            server = stack.enter_context(connect_server(folder / "connect.log"))
            more = ["--on", "spark", "--spark", server]
        elif way != "driver":
            more = ["--on", "spark", "--spark", way]
        words = ["pipeline", "lookup", "messages.jsonl", "--archive", "archive", "--quiet", *more]
        done = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-c", "from roamcast.cli import main; main()", *words],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            check=True,
        )
    answers = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    return {answer["id"]: answer["vids"] for answer in answers}


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
