"""Events a second through each modulator, beside the same function in plain Python and wasmtime.

Every case gets the same events, one at a time, and lets the same ones through as its plain Python
function; a case that does not is not measured. *Bare wasmtime* calls the module's exports without
our limits, encodings and checks of the answer. Cases take turns in one process, each several
times, and the best turn counts: other work on the machine only ever slows a turn down. Then hostile
modules run at a real service, and what others notice of them is measured (`_hostile_modules.py`).
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import wasmtime

from bench._hostile_modules import HOSTILE, measure
from roamcast.lab.report import Claim, Report, Steps
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.overlay.modulators.modulation import Modulation
from roamcast.overlay.modulators.sample import Sample, packed, sample_of
from roamcast.overlay.modulators.sandbox import Engine
from roamcast.overlay.modulators.specs import Code, EveryNth, PerSecond, Select, WithinBox

TITLE = "modulator: events a second through built-ins and WebAssembly, beside plain Python"

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "modulators" / "every_third.wat"
EVENTS, EVENTS_QUICK = 4_000, 800
TURNS = 5
DATA = 1_000
"""Bytes of opaque data of an event."""

ROUNDS, ROUNDS_QUICK = 1_500, 100
SLOWER_BAR = 2.0
"""The 99th percentile of others' waits beside hostile modules, times what it is beside others."""

MEMORY_BAR = 1.25
SHARE_BAR = 0.5
"""A sandbox passes at least so many times what bare wasmtime does."""

Step = Callable[[Sample, int], bool]


def events(count: int) -> list[tuple[Sample, int]]:
    """Make gauges' readings along a river, one every 100 ms."""
    made = []
    for n in range(count):
        attributes: dict[str, Any] = {"level": n % 10, "gauge": f"g{n % 7}", "kind": "water"}
        point = (11.0 + n % 10 / 10, 48.0)
        context = Context(f"g{n % 7}", "river/upper", point, attributes, t_r=n * 100_000)
        made.append((sample_of(context, bytes(DATA)), context.t_r))
    return made


def _modulation(*wanted: Any, engine: Engine | None = None) -> Step:
    find = engine.find if engine is not None else None
    found = Modulation(wanted, engine=engine, find=find)
    return lambda sample, now: found.apply(sample, now) is not None


def _counting(n: int) -> Step:
    count = 0

    def step(_: Sample, __: int) -> bool:
        nonlocal count
        count += 1
        return count % n == 0

    return step


def _spacing(every_us: int) -> Step:
    due = 0

    def step(_: Sample, now: int) -> bool:
        nonlocal due
        if now < due:
            return False
        due = max(due, now - every_us + 1) + every_us
        return True

    return step


def _bare(code: bytes) -> Step:
    """Call a module's exports and nothing else."""
    engine = wasmtime.Engine()
    store = wasmtime.Store(engine)
    exports = wasmtime.Instance(store, wasmtime.Module(engine, code), []).exports(store)
    alloc, run, memory = exports["alloc"], exports["run"], exports["memory"]

    def step(sample: Sample, now: int) -> bool:
        event = packed(sample)
        address = alloc(store, len(event))
        memory.write(store, event, address)
        answer = run(store, now, address, len(event))
        at, length = answer >> 32, answer & 0xFFFFFFFF
        return bool(length and memory.read(store, at, at + length))

    return step


def cases() -> dict[str, tuple[Callable[[], Step], Callable[[], Step]]]:
    """Name each case with what makes it and what makes its plain function."""
    code = bytes(wasmtime.wat2wasm(EXAMPLE.read_bytes()))
    engine = Engine()
    module = Code(engine.compile(code).digest)
    level = Filter.parse("level > 6")
    return {
        "filter": (lambda: _modulation(Select("level > 6")),
                   lambda: lambda sample, _: level.matches(sample.context)),
        "filter, projection": (
            lambda: _modulation(Select("level > 6", ("level",), data=False)),
            lambda: lambda sample, _: sample.context.attributes["level"] > 6),
        "every third": (lambda: _modulation(EveryNth(3)), lambda: _counting(3)),
        "two a second": (lambda: _modulation(PerSecond(2)), lambda: _spacing(500_000)),
        "bounding box": (
            lambda: _modulation(WithinBox(11.0, 47.0, 11.45, 49.0)),
            lambda: lambda sample, _: 11.0 <= sample.context.point[0] <= 11.45),  # type: ignore[index]
        "WebAssembly, every third": (lambda: _modulation(module, engine=engine),
                                     lambda: _counting(3)),
        "bare wasmtime, every third": (lambda: _bare(code), lambda: _counting(3)),
    }  # fmt: skip


def _rate(make: Callable[[], Step], given: list[tuple[Sample, int]]) -> tuple[float, list[bool]]:
    step = make()
    began = time.process_time()
    answers = [step(sample, now) for sample, now in given]
    return len(given) / max(time.process_time() - began, 1e-9), answers


def run(quick: bool, progress: Steps) -> Report:
    """Measure all cases in turn, several times."""
    given = events(EVENTS_QUICK if quick else EVENTS)
    best: dict[str, list[float]] = {}
    with progress("turns", TURNS) as step:
        for _ in range(TURNS):
            for name, makes in cases().items():
                ours, plain = (_rate(make, given) for make in makes)
                assert ours[1] == plain[1], f"{name} answers otherwise than its plain function"
                known = best.setdefault(name, [0.0, 0.0])
                best[name] = [max(known[0], ours[0]), max(known[1], plain[0])]
            step(1)
    rows = [
        {"modulator": name, "events/s": round(ours), "plain Python events/s": round(plain)}
        for name, (ours, plain) in best.items()
    ]
    bare = best["bare wasmtime, every third"][0]
    share = best["WebAssembly, every third"][0] / bare
    claims = [
        Claim(
            "the sandbox beside bare wasmtime in one run",
            round(share, 2),
            share >= SHARE_BAR,
            bar=SHARE_BAR,
            note="limits, fuel, encoding and the check of the answer are the difference",
        )
    ]
    with progress("hostile modules", 1) as step:
        beside = measure(ROUNDS_QUICK if quick else ROUNDS)
        step(1)
    slower = beside.hostile_ms / beside.harmless_ms
    before_mb, after_mb = beside.memory_mb
    claims += [
        Claim(
            "the p99 of others beside hostile modules, times beside harmless ones",
            round(slower, 2),
            slower <= SLOWER_BAR,
            bar=SLOWER_BAR,
            note=f"{beside.harmless_ms:.1f} ms, then {beside.hostile_ms:.1f} ms; "
            f"{beside.alone_ms:.1f} ms alone; modules of {len(HOSTILE)} kinds were stopped "
            f"{beside.stopped} times meanwhile, "
            f"and refused {beside.refused} times",
        ),
        Claim(
            "the service's memory after them, times before",
            round(after_mb / before_mb, 2),
            after_mb <= MEMORY_BAR * before_mb,
            bar=MEMORY_BAR,
            note=f"{before_mb:.0f} MB, then {after_mb:.0f} MB",
        ),
    ]
    return Report("modulator", {"events": len(given), "data bytes": DATA}, rows, claims)
