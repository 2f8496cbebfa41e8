"""Which broker is near: by its answering times, by a program's function, or as its home finds.

In: the addresses that a program gave. Out: moves, or what its home is told of them.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal, get_args

from roamcast.errors import InputError

BETTER: Final = 0.8
BETTER_S: Final = 10.0
PROBE_S: Final = 2.0
"""Another broker is nearer if it answers in 0.8 of the time for ten seconds, asked every two."""

PROBES: Final = 5
"""Of so many answering times the shortest counts for homes: a busy moment moves nobody."""

Way = Literal["", "place", "latency", "home"]
NEAR: Final = get_args(Way)
Near = Way | Callable[[Sequence[str], str], str]
"""How the broker is chosen: by place, by answering time, by brokers, or by a function of all."""


def check_near(near: Near) -> None:
    """Raise InputError for a way to choose that is not known."""
    if not callable(near) and near not in NEAR:
        known = ", ".join(repr(one) for one in NEAR if one)
        raise InputError(f"near is one of {known}, or a function, not {near!r}")


class BrokerSearch:
    """Looks around for one session, as its program wishes."""

    def __init__(
        self,
        near: Near,
        urls: Sequence[str],
        *,
        current: Callable[[], str],
        move: Callable[[str, str], Awaitable[bool]],
        tell: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        """`current`: the broker that serves; `move` goes to another; `tell` says it something."""
        self._near = near
        self._urls = tuple(urls)
        self._current = current
        self._move = move
        self._tell = tell

    async def run(self) -> None:
        """Look around for as long as the session lasts."""
        if len(self._urls) < 2 or self._near in ("", "place"):
            return
        if self._near == "home":
            await self._for_home()
        elif self._near == "latency":
            await self._for_latency()
        while callable(self._near):
            await asyncio.sleep(PROBE_S)
            wanted = self._near(self._urls, self._current())
            if wanted != self._current():
                await self._move(wanted, "chosen")

    async def _for_latency(self) -> None:
        """Go to a broker that is clearly nearer."""
        since: dict[str, float] = {}
        while True:
            await asyncio.sleep(PROBE_S)
            times, current = await self._times(), self._current()
            now = asyncio.get_running_loop().time()
            for url, its in times.items():
                if url != current and its < BETTER * times[current]:
                    since.setdefault(url, now)
                else:
                    since.pop(url, None)
            ready = [url for url, at in since.items() if now - at >= BETTER_S]
            if ready and await self._move(min(ready, key=times.__getitem__), "latency"):
                since.clear()

    async def _for_home(self) -> None:
        """Tell the home how far brokers are, so that it finds a better one (docs/homes.md)."""
        known: dict[str, deque[float]] = {url: deque(maxlen=PROBES) for url in self._urls}
        while True:
            for url, its in (await self._times()).items():
                known[url].append(its)
            shortest = {url: min(known[url]) for url in self._urls}
            reached = {url: 1_000 * its for url, its in shortest.items() if its <= PROBE_S}
            here = reached.pop(self._current(), None)
            if here is not None:
                await self._tell({"type": "brokers", "here": here, "found": reached})
            await asyncio.sleep(PROBE_S)

    async def _times(self) -> dict[str, float]:
        """Give how long each broker takes to answer, in seconds; for ever if it does not."""
        found = await asyncio.gather(*map(_round_trip, self._urls))
        return dict(zip(self._urls, found, strict=True))


async def _round_trip(url: str) -> float:
    host, _, port = url.split("://", 1)[1].partition("/")[0].rpartition(":")
    began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(PROBE_S):
            _, writer = await asyncio.open_connection(
                (host or port).strip("[]"), int(port) if port.isdecimal() else 443
            )
            writer.close()
    except (OSError, TimeoutError):
        return float("inf")
    return asyncio.get_running_loop().time() - began
