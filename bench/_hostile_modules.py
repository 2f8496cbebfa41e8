"""What others notice while somebody's modules do their worst at a real service.

A bystander publishes an event and waits until it comes back, again and again: first alone, then
while another program subscribes with one hostile module after the other, each of which is stopped.
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

import wasmtime

from bench.hostile import memory_mb
from bench.subscriptions import HERE, served
from roamcast.client import Session, connect
from roamcast.errors import ModulatorError

_FRAME: Final = """(module (memory (export "memory") 1)
  (func (export "alloc") (param i32) (result i32) (i32.const 1024))
  (func (export "run") (param i64 i32 i32) (result i64) {body}))"""
HOSTILE: Final = {
    "loops": "(loop (br 0)) (i64.const 0)",
    "grows": """(if (i32.eq (memory.grow (i32.const 10000)) (i32.const -1)) (then unreachable))
                (i64.const 0)""",
    "traps": "unreachable",
    "answers garbage": "(i64.const 4398046511108)",
    "answers a bomb": """(i64.or (i64.shl (i64.extend_i32_u (local.get 1)) (i64.const 32))
                         (i64.const 60000))""",
}
"""What `run` does."""


class Beside(NamedTuple):
    """What others noticed."""

    quiet_ms: float
    hostile_ms: float
    stopped: int
    """Modules that were stopped meanwhile."""
    memory_mb: tuple[float, float]
    """Before and after."""


def measure(rounds: int) -> Beside:
    """Measure the 99th percentile of a bystander's waits, alone and beside hostile modules."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "data").mkdir()
        with served(Path(folder), HERE.parent / "src", "") as (process, url, token):
            return asyncio.run(_scene(process, url, token, rounds))


async def _scene(process: int, url: str, token: str, rounds: int) -> Beside:
    async with (
        connect(url, token, device="bystander") as bystander,
        connect(url, token, device="attacker") as attacker,
    ):
        names = [
            await attacker.put_module(bytes(wasmtime.wat2wasm(_FRAME.format(body=body))))
            for body in HOSTILE.values()
        ]
        for name in names:  # compiled, and memory is what it will be
            await _attack(attacker, name)
        await _waits(bystander, rounds // 4)
        before_mb = memory_mb(process)
        quiet = await _waits(bystander, rounds)
        stopped = 0

        async def attacks() -> None:
            nonlocal stopped
            while True:
                for name in names:
                    await _attack(attacker, name)
                    stopped += 1

        attacking = asyncio.create_task(attacks())
        hostile = await _waits(bystander, rounds)
        attacking.cancel()
        await asyncio.gather(attacking, return_exceptions=True)
        assert stopped, "nobody attacked"
        memory = (before_mb, memory_mb(process))
        return Beside(_p99_ms(quiet), _p99_ms(hostile), stopped, memory)


async def _attack(attacker: Session, module: str) -> None:
    """Let a module do its worst to one event."""
    try:
        modulators = [{"type": "wasm", "module": module}]
        stream = await attacker.subscribe("kind = 'bait'", modulators=modulators)
        await attacker.publish_event("hq", kind="bait", data=bytes(1_000))
        await anext(stream)
    except ModulatorError:
        return
    raise AssertionError("a hostile module was not stopped")


async def _waits(bystander: Session, rounds: int) -> list[float]:
    stream = await bystander.subscribe("kind = 'mine'")
    waits = []
    for number in range(rounds):
        began = time.perf_counter()
        await bystander.publish_event("hq", kind="mine", number=number)
        await anext(stream)
        waits.append(time.perf_counter() - began)
        await asyncio.sleep(0.005)
    await stream.close()
    return waits


def _p99_ms(waits: list[float]) -> float:
    return statistics.quantiles(waits, n=100)[98] * 1_000
