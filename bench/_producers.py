"""Producers in a process of their own: what publishing costs is not taken from who reads."""

import asyncio
import gc
import multiprocessing
from collections.abc import Awaitable, Callable
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, Protocol


class Publish(Protocol):
    """What the process does: the function `publish` of a bench."""

    def __call__(
        self, *args: Any, begun: Callable[[], None], over: asyncio.Event
    ) -> Awaitable[dict[str, int]]:
        """Publish until it is over; give how many events of each producer were acknowledged."""
        ...


class Producers:
    """One process of producers."""

    def __init__(self, bench: str, *args: Any) -> None:
        """`bench`: the module with `publish`; it is imported there."""
        fresh = multiprocessing.get_context("spawn")
        self._pipe, theirs = fresh.Pipe()
        self._process = fresh.Process(target=_run, args=(bench, args, theirs), daemon=True)
        self._process.start()
        theirs.close()

    async def begun(self) -> None:
        """Wait until all of them are about to publish."""
        await asyncio.to_thread(self._pipe.recv)

    async def end(self) -> dict[str, int]:
        """Let them publish no more; give how many events of each were acknowledged."""
        self._pipe.send("over")
        published: dict[str, int] = await asyncio.to_thread(self._pipe.recv)
        await asyncio.to_thread(self._process.join)
        return published

    def kill(self) -> None:
        """End them at once; nothing if they have ended."""
        self._process.kill()


def _run(bench: str, args: tuple[Any, ...], pipe: Connection) -> None:
    gc.disable()  # a pause of theirs would look like a silence
    asyncio.run(_until_over(import_module(bench).publish, args, pipe))


async def _until_over(publish: Publish, args: tuple[Any, ...], pipe: Connection) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe.fileno(), over.set)
    published = await publish(*args, begun=lambda: pipe.send("begun"), over=over)
    asyncio.get_running_loop().remove_reader(pipe.fileno())
    pipe.send(published)
