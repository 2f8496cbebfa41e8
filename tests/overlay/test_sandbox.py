"""Modules in the sandbox: hostile ones are refused or stopped with a reason, and nobody else is."""

import shutil
import struct
import subprocess
from functools import partial
from pathlib import Path

import pytest
import wasmtime

from roamcast.errors import LimitError, ModulatorError
from roamcast.model.contexts import Context, body_of
from roamcast.overlay.flows.messages import Event
from roamcast.overlay.modulators.events import (
    EndModulation,
    Modulate,
    ModulationAnswer,
    ModulationFailed,
    StartModulation,
)
from roamcast.overlay.modulators.modulation import REPLAY, Checkpoint, Modulation
from roamcast.overlay.modulators.sample import packed, sample_of, unpacked
from roamcast.overlay.modulators.sandbox import Engine, Sandbox, SandboxLimits, digest_of
from roamcast.overlay.modulators.specs import Code
from roamcast.overlay.modulators.workshop import Workshop

EXAMPLES = Path(__file__).parents[2] / "examples" / "modulators"

HEAD = """(module (memory (export "memory") 1)
  (func (export "alloc") (param i32) (result i32) i32.const 1024)
  (func (export "run") (param i64 i32 i32) (result i64) """
ECHO = """(i64.or (i64.shl (i64.extend_i32_u (local.get 1)) (i64.const 32))
  (i64.extend_i32_u (local.get 2)))"""


def wasm(text: str) -> bytes:
    return bytes(wasmtime.wat2wasm(text))


def module(body: str, more: str = "") -> bytes:
    return wasm(f"{HEAD} {body}) {more})")


ECHOING = module(ECHO)
EVENT = packed(sample_of(Context("a", "x/y"), b"hello"))


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


def sandbox(engine: Engine, code: bytes) -> Sandbox:
    return Sandbox(engine, engine.compile(code))


def test_an_event_comes_back_as_the_module_left_it(engine):
    found = sandbox(engine, ECHOING)
    assert found.run(EVENT, 0) == EVENT
    assert found.fuel_used > 0
    assert unpacked(EVENT).context == Context("a", "x/y")


@pytest.mark.parametrize("bytes_max", ["DATA_BYTES_MAX", "BODY_BYTES_MAX"])
def test_an_answer_is_refused_if_either_part_is_one_byte_too_large(bytes_max, monkeypatch):
    found = unpacked(EVENT)
    size = len(found.data if bytes_max == "DATA_BYTES_MAX" else found.body)
    monkeypatch.setattr(f"roamcast.overlay.modulators.sample.{bytes_max}", size)
    assert unpacked(EVENT) == found
    monkeypatch.setattr(f"roamcast.overlay.modulators.sample.{bytes_max}", size - 1)
    with pytest.raises(ModulatorError, match="larger"):
        unpacked(EVENT)


REFUSED = {
    "text": (b'(module (memory (export "memory") 1))', "first bytes"),
    "a component": (b"\0asm\x0d\0\1\0" + b"\0" * 8, "first bytes"),
    "native code": (b"\x7fELF" + bytes(100), "first bytes"),
    "garbage behind the magic": (b"\0asm\1\0\0\0" + b"\xff" * 40, "not valid"),
    "imports": (wasm('(module (import "env" "clock" (func)))'), "no imports"),
    "no memory": (wasm('(module (func (export "run")))'), "memory"),
    "a wrong type": (wasm('(module (memory (export "memory") 1)'
                          '(func (export "alloc") (param i64) (result i32) i32.const 0))'),
                     r"`alloc` is \(i32\) -> \(i32\)"),
    "no run": (wasm('(module (memory (export "memory") 1)'
                    '(func (export "alloc") (param i32) (result i32) i32.const 0))'), "`run`"),
    "threads": (b"\0asm\1\0\0\0\x05\x04\x01\x03\x01\x01", "not valid"),
    "save without load": (module(ECHO, '(func (export "save") (result i64) i64.const 0)'),
                          "loads, too"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_module_of_ours_is_refused(engine, what):
    code, reason = REFUSED[what]
    with pytest.raises(ModulatorError, match=reason):
        engine.compile(code)


STOPPED = {
    "loops": (module("(loop br 0) i64.const 0"), "out of fuel"),
    "grows": (module("(drop (memory.grow (i32.const 300))) "
                     "(if (i32.gt_u (memory.size) (i32.const 256)) (then unreachable)) "
                     "(i32.store (i32.const 0xffffff) (i32.const 1)) i64.const 0"),
              "out of bounds"),
    "traps": (module("unreachable"), "unreachable"),
    "recurses": (module("(call $deep (i64.const 0))",
                        "(func $deep (param i64) (result i64) "
                        "(i64.add (local.get 0) (call $deep (local.get 0))))"), "stack"),
    "returns garbage": (module("(i32.store (i32.const 0) (i32.const -1)) (i64.const 4)"),
                        "no event"),
    "answers outside its memory": (module("(i64.const 0x7fffffff00000010)"), "outside"),
    "is a bomb of output": (module("(i64.const 0x0000000000008000)"), "at most"),
    "allocates outside its memory": (wasm(
        '(module (memory (export "memory") 1)'
        '(func (export "alloc") (param i32) (result i32) i32.const -1)'
        '(func (export "run") (param i64 i32 i32) (result i64) i64.const 0))'), "outside"),
}  # fmt: skip


@pytest.mark.parametrize("what", STOPPED)
def test_a_module_that_misbehaves_stops_its_own_subscription_alone(engine, what):
    code, reason = STOPPED[what]
    bad, good = (
        Modulation([Code(engine.compile(one).digest)], engine=engine, find=engine.find)
        for one in (code, ECHOING)
    )
    sample = sample_of(Context("a", "x/y"), b"hello")
    with pytest.raises(ModulatorError, match=reason):
        bad.apply(sample, 0)
    assert bad.stopped
    with pytest.raises(ModulatorError, match=reason):
        bad.apply(sample, 1)
    assert good.apply(sample, 0) == sample


def test_a_module_that_asks_for_too_much_memory_does_not_start(engine):
    big = wasm('(module (memory (export "memory") 257) '
               '(func (export "alloc") (param i32) (result i32) i32.const 0)'
               '(func (export "run") (param i64 i32 i32) (result i64) i64.const 0))')  # fmt: skip
    with pytest.raises(ModulatorError, match="memory"):
        sandbox(engine, big)
    endless = module(ECHO, "(func $s (loop br 0)) (start $s)")
    with pytest.raises(ModulatorError, match="does not start"):
        sandbox(engine, endless)


GREEDY = module("(drop (memory.grow (i32.const 15))) i64.const 0")
"""A mebibyte from its first event on."""


class Crowd:
    """A workshop with room for little, and modulators of several credentials."""

    def __init__(self, engine, **bounds):
        digest = engine.compile(GREEDY).digest
        make = partial(Modulation, engine=engine, find=engine.find)
        self.shop = Workshop(make, **bounds)
        self.specs = (Code(digest),)

    def start(self, instance, owner):
        return self.shop.work(StartModulation("c", instance, self.specs, owner=owner))

    def run(self, instance):
        event = Event("p", 1, 1, body_of(Context("a", "x/y")), b"")
        return self.shop.work(Modulate("c", instance, 1, (((1, event),),)))


def test_modules_of_one_credential_take_no_more_than_their_share(engine):
    crowd = Crowd(engine, owner_bytes_max=3 * 2**20 - 1)
    for instance in range(4):
        assert crowd.start(instance, "greedy" if instance < 3 else "other") is None
    assert all(isinstance(crowd.run(one), ModulationAnswer) for one in (0, 1, 3))
    stopped = crowd.run(2)
    assert isinstance(stopped, ModulationFailed)
    assert "one credential" in stopped.reason
    assert isinstance(crowd.run(0), ModulationAnswer), "nobody else is stopped"
    crowd.shop.work(EndModulation(0))
    assert crowd.start(4, "greedy") is None
    assert isinstance(crowd.run(4), ModulationAnswer), "there is room again"


def test_modules_of_all_take_no_more_than_the_broker_has_for_them(engine):
    crowd = Crowd(engine, bytes_max=2**20 + 2**17)
    assert crowd.start(1, "a") is None
    assert isinstance(crowd.run(1), ModulationAnswer)
    assert crowd.start(2, "b") is None
    stopped = crowd.start(3, "c")
    assert isinstance(stopped, ModulationFailed)
    assert "all the memory" in stopped.reason
    assert len(crowd.shop) == 2


def test_a_module_has_a_largest_size():
    small = Engine(SandboxLimits(module_bytes=len(ECHOING)))
    small.compile(ECHOING)
    with pytest.raises(LimitError, match="at most"):
        small.compile(module(ECHO + " (nop)"))


def test_an_answer_is_at_most_twice_the_event(engine):
    limits = engine.limits
    most = limits.answer_factor * len(EVENT) + limits.answer_spare
    grown = sandbox(engine, module(f"(i64.const {most})"))
    assert len(grown.run(EVENT, 0)) == most
    with pytest.raises(ModulatorError, match=f"{most + 1} bytes"):
        sandbox(engine, module(f"(i64.const {most + 1})")).run(EVENT, 0)


def test_ticks_stop_what_fuel_would_allow():
    engine = Engine(SandboxLimits(fuel=2**62))
    # The driver's timer fires in another thread; here the epochs end before the call checks them.
    found = sandbox(engine, ECHOING)
    found._store.set_epoch_deadline = lambda _: None
    for _ in range(3):
        engine.tick()
    with pytest.raises(ModulatorError, match="took too long"):
        found.run(EVENT, 0)


def test_compiled_modules_are_found_by_hash_and_bounded():
    engine = Engine(SandboxLimits(modules_max=2))
    codes = [module(f"(drop (i32.const {number})) {ECHO}") for number in range(3)]
    first, second = engine.compile(codes[0]), engine.compile(codes[1])
    assert engine.compile(codes[0]) is first
    engine.compile(codes[2])
    assert len(engine) == 2
    assert engine.find(digest_of(codes[0])) is first
    assert engine.find(second.digest) is None


def test_nan_is_the_same_everywhere(engine):
    """0/0 and the negative of a NaN have one bit pattern, so a replay elsewhere is exact."""
    body = """(f64.store (i32.const 0) (f64.div (f64.const 0) (f64.neg (f64.const 0))))
        (f64.store (i32.const 8) (f64.sqrt (f64.const -1))) (i64.const 16)"""
    answer = sandbox(engine, module(body)).run(EVENT, 0)
    assert answer == struct.pack("<QQ", 0x7FF8000000000000, 0x7FF8000000000000)


HIDING = f"""(module (memory (export "memory") 1) (global $n (mut i32) (i32.const 0))
  (func (export "alloc") (param i32) (result i32) i32.const 1024)
  (func (export "run") (param i64 i32 i32) (result i64)
    (global.set $n (i32.add (global.get $n) (i32.const 1)))
    (if (i32.and (global.get $n) (i32.const 1)) (then (return (i64.const 0)))) {ECHO})
  (func (export "save") (result i64) (i64.const 0))
  (func (export "load") (param i32 i32)))"""


def modulation(engine: Engine, code: bytes) -> Modulation:
    return Modulation([Code(engine.compile(code).digest)], engine=engine, find=engine.find)


def test_a_module_cannot_hide_what_it_knows_from_a_checkpoint(engine):
    """It saves nothing of its counter, so a checkpoint makes it forget: here as anywhere else."""
    found = modulation(engine, wasm(HIDING))
    events = [(sample_of(Context("a", f"x/{n}")), n) for n in range(7)]
    for sample, time in events[:3]:
        found.apply(sample, time)
    frozen = found.checkpoint()
    first = [found.apply(sample, time) for sample, time in events[3:]]
    elsewhere = modulation(engine, wasm(HIDING))
    elsewhere.restore(frozen)
    assert elsewhere.replay(events[3:], found.mark) == first


def test_an_answer_that_changes_on_replay_stops_the_subscription(engine):
    """The checkpoint is not the one the first answers came from: a broker that cheats, or errs."""
    found = modulation(engine, wasm((EXAMPLES / "every_third.wat").read_text()))
    events = [(sample_of(Context("a", f"x/{n}")), n) for n in range(5)]
    frozen = found.checkpoint()
    for sample, time in events:
        found.apply(sample, time)
    other = modulation(engine, wasm((EXAMPLES / "every_third.wat").read_text()))
    other.restore(Checkpoint((struct.pack("<i", 1),), frozen.count, frozen.mark))
    with pytest.raises(ModulatorError, match=REPLAY):
        other.replay(events, found.mark)
    assert other.stopped == REPLAY


def test_a_state_has_a_largest_size(engine):
    most = engine.limits.state_bytes
    pages = most // 65536 + 1
    text = """(module (memory (export "memory") %d)
      (func (export "alloc") (param i32) (result i32) i32.const 0)
      (func (export "run") (param i64 i32 i32) (result i64) i64.const 0)
      (func (export "save") (result i64) (i64.const %d))
      (func (export "load") (param i32 i32)))"""
    assert len(sandbox(engine, wasm(text % (pages, most))).checkpoint()) == most
    with pytest.raises(ModulatorError, match="at most"):
        sandbox(engine, wasm(text % (pages, most + 1))).checkpoint()
    with pytest.raises(LimitError, match="at most"):
        sandbox(engine, ECHOING).restore(bytes(most + 1))


@pytest.mark.parametrize("name", ["every_third", "rising"])
def test_the_examples_assemble_run_and_go_on_elsewhere(engine, name):
    code = wasm((EXAMPLES / f"{name}.wat").read_text())
    events = [
        (sample_of(Context("g", "river"), struct.pack("<d", float(v)) + b"more"), n)
        for n, v in enumerate([1, 3, 2, 5, 4, 9])
    ]
    whole = modulation(engine, code)
    answers = [whole.apply(sample, time) for sample, time in events]
    numbers = [n for n, answer in enumerate(answers) if answer is not None]
    if name == "every_third":
        assert numbers == [2, 5]
        assert answers[2] == events[2][0]
    else:
        assert [struct.unpack("<d", answers[n].data)[0] for n in numbers] == [1, 3, 5, 9]
    parts = modulation(engine, code)
    for cut in range(1, 6):
        one = modulation(engine, code)
        for sample, time in events[:cut]:
            one.apply(sample, time)
        parts.restore(one.checkpoint())
        assert [parts.apply(sample, time) for sample, time in events[cut:]] == answers[cut:]
        assert parts.mark == whole.mark


def test_init_gets_the_consumers_settings(engine):
    text = """(module (memory (export "memory") 1) (global $size (mut i32) (i32.const 0))
      (func (export "alloc") (param i32) (result i32) i32.const 64)
      (func (export "init") (param i32 i32) (global.set $size (local.get 1)))
      (func (export "run") (param i64 i32 i32) (result i64)
        (i64.extend_i32_u (global.get $size))))"""
    found = Sandbox(engine, engine.compile(wasm(text)), b"seven77")
    assert len(found.run(EVENT, 0)) == 7


def rust_passes(engine: Engine, code: bytes) -> list[int]:
    """Give the numbers of the events that the example in Rust lets through, at a step of 2."""
    spec = Code(engine.compile(code).digest, struct.pack("<d", 2.0))

    def made() -> Modulation:
        return Modulation([spec], engine=engine, find=engine.find)

    values = [1, 3, 2, 5, 4, 9]
    events = [
        (sample_of(Context("g", "river"), struct.pack("<d", float(v)) + bytes(pad)), n)
        for n, (v, pad) in enumerate(zip(values, [0, 1, 8, 300, 70_000, 0], strict=True))
    ]
    whole = made()
    answers = [whole.apply(sample, time) for sample, time in events]
    for cut in range(1, 6):
        one, other = made(), made()
        for sample, time in events[:cut]:
            one.apply(sample, time)
        other.restore(one.checkpoint())
        assert [other.apply(sample, time) for sample, time in events[cut:]] == answers[cut:]
    assert made().apply(sample_of(Context("g", "river"), b"short"), 0) is None
    assert all(answer in (None, event[0]) for answer, event in zip(answers, events, strict=True))
    return [n for n, answer in enumerate(answers) if answer is not None]


def test_the_example_in_rust_runs_and_goes_on_elsewhere(engine):
    """Its bytes are committed: most machines cannot build them."""
    code = (EXAMPLES / "steps.wasm").read_bytes()
    digest = engine.compile(code).digest
    assert digest in (EXAMPLES.parents[1] / "docs" / "modulators.md").read_text()
    assert rust_passes(engine, code) == [0, 1, 3, 5]


@pytest.mark.process
def test_the_example_in_rust_builds_from_its_source(engine, tmp_path):
    target = "wasm32-unknown-unknown"
    rustc = shutil.which("rustc")
    if rustc is None:
        pytest.skip("there is no rustc")
    asked = [rustc, "--target", target, "--print", "target-libdir"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    if found.returncode or not Path(found.stdout.strip()).is_dir():
        pytest.skip(f"this rustc has no {target}")
    source = (EXAMPLES / "steps.rs").read_text()
    words = " ".join(line[4:] for line in source.splitlines() if line.startswith("//! "))
    command = words[words.index("rustc ") :].replace("\\ ", " ").split()
    made = tmp_path / "steps.wasm"
    options = command[1 : command.index("steps.rs")]
    subprocess.run([rustc, *options, EXAMPLES / "steps.rs", "-o", made], check=True)
    assert rust_passes(engine, made.read_bytes()) == [0, 1, 3, 5]
