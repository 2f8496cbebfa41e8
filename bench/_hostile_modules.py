"""What others notice while somebody's modules do their worst at a real service.

A bystander publishes an event and waits until it comes back, again and again: alone; while another
process subscribes with harmless modules, one after the other, as fast as it can; and while that
process does the same with hostile ones. Each of those is stopped, and refused for a while after
that; the attacker goes on at once.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import wasmtime

from bench.hostile import memory_mb
from bench.subscriptions import HERE, served
from roamcast.client import Session, connect
from roamcast.errors import InputError, ModulatorError

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

HARMLESS: Final = """(i64.or (i64.shl (i64.extend_i32_u (local.get 1)) (i64.const 32))
                      (i64.extend_i32_u (local.get 2)))"""
"""It lets every event pass."""


class Beside(NamedTuple):
    """What others noticed."""

    alone_ms: float
    harmless_ms: float
    hostile_ms: float
    stopped: int
    """Modules that were stopped meanwhile, …"""
    refused: int
    """… and that were not let in, because they had been."""
    memory_mb: tuple[float, float]
    """Before and after."""


def measure(rounds: int) -> Beside:
    """Measure the 99th percentile of a bystander's waits, alone and beside hostile modules."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "data").mkdir()
        with served(Path(folder), HERE.parent / "src", "") as (process, url, token):
            return asyncio.run(_scene(process, url, token, rounds))


async def _scene(process: int, url: str, token: str, rounds: int) -> Beside:
    async with connect(url, token, device="bystander") as bystander:
        await _waits(bystander, rounds // 4)
        alone = await _waits(bystander, rounds)
        async with _other("harmless", url, token):
            harmless = await _waits(bystander, rounds)
        async with _other("hostile", url, token) as attacks:
            before_mb = memory_mb(process)
            hostile = await _waits(bystander, rounds)
        stopped, refused = attacks
        memory = (before_mb, memory_mb(process))
        return Beside(_p99_ms(alone), _p99_ms(harmless), _p99_ms(hostile), stopped, refused, memory)


@asynccontextmanager
async def _other(kind: str, url: str, token: str) -> AsyncIterator[list[int]]:
    """Run the other process; at the end the list has how often it was let in, and refused."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "bench._hostile_modules", kind, url)
    process = await asyncio.create_subprocess_exec(
        *command, cwd=HERE.parent, stdin=pipe, stdout=pipe
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(token.encode() + b"\n")
    await process.stdout.readline()  # each module was compiled, and ran once
    counts: list[int] = []
    try:
        yield counts
    finally:
        process.stdin.close()
        counts += map(int, (await process.stdout.readline()).split())
        await process.wait()


async def _attacks(kind: str, url: str) -> None:
    """Be the other process, until standard input ends."""
    read = asyncio.get_running_loop().run_in_executor
    token = (await read(None, sys.stdin.readline)).strip()
    bodies = HOSTILE.values() if kind == "hostile" else (HARMLESS,)
    async with connect(url, token, device=kind) as session:
        names = [
            await session.put_module(bytes(wasmtime.wat2wasm(_FRAME.format(body=body))))
            for body in bodies
        ]
        counts = {True: 0, False: 0}
        for name in names:
            counts[await _attack(session, name, kind)] += 1
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        over = read(None, sys.stdin.read)
        while not over.done():
            for name in names:
                counts[await _attack(session, name, kind)] += 1
        sys.stdout.write(f"{counts[True]} {counts[False]}\n")


async def _attack(session: Session, module: str, kind: str) -> bool:
    """Give a module one event; return whether it was let in."""
    try:
        modulators = [{"type": "wasm", "module": module}]
        stream = await session.subscribe("kind = 'bait'", modulators=modulators)
    except InputError:
        return False
    await session.publish_event("hq", kind="bait", data=bytes(1_000))
    try:
        await anext(stream)
    except ModulatorError:
        return True
    assert kind == "harmless", "a hostile module was not stopped"
    await stream.close()
    return True


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


if __name__ == "__main__":
    asyncio.run(_attacks(*sys.argv[1:]))
