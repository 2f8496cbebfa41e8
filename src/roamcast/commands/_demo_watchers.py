"""People of the demo who watch the hall: sessions with the same query, served by the same frames.

They show what sharing saves: however many they are, an update in the hall is sent once.
"""

import asyncio
from pathlib import Path
from typing import Any, Final

import msgspec
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from roamcast.live.auth.admission import TokenKeys
from roamcast.transport.driver import wall_clock

WATCHED: Final = "within(place, 'campus/hall')"
PER_SUBJECT: Final = 75
"""Sessions under one subject; a service allows one subject 100 connections by default."""

BETWEEN_S: Final = 0.05
AGAIN_S: Final = 5.0
TOKEN_S: Final = 7 * 86_400


async def watch_hall(url: str, data: Path, count: int) -> None:
    """Open so many sessions, one after the other, and hold them until cancelled."""
    keys, now = TokenKeys.open(data), wall_clock()()
    tasks: list[asyncio.Task[None]] = []
    try:
        for number in range(count):
            subject = f"watchers-{number // PER_SUBJECT}"
            token = keys.issue(subject, ("read", "subscribe"), lifetime_s=TOKEN_S, now=now)
            tasks.append(asyncio.create_task(_watch(url, token, number)))
            await asyncio.sleep(BETWEEN_S)
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(url: str, token: str, number: int) -> None:
    address = f"{url.replace('http', 'ws', 1)}/session?device=watcher-{number}"
    asked = msgspec.json.encode({"type": "subscribe", "re": "hall", "filter": WATCHED}).decode()
    headers: Any = {"Authorization": f"Bearer {token}"}
    while True:
        try:
            async with connect(address, additional_headers=headers, compression=None) as socket:
                await socket.send(asked)
                async for _ in socket:  # what it says is for somebody else to look at
                    pass
        except (OSError, WebSocketException):
            pass  # the service restarts, or is full
        await asyncio.sleep(AGAIN_S)
