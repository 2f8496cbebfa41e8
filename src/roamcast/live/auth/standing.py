"""Does a connection that stays open outlive its token? No: it ends when that expires or is revoked.

A request shows its token anew; a session, a link or a stream of changes showed it once. So whoever
holds a connection open registers here what it was granted, and is told when that no longer stands.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from roamcast.errors import RoamcastError
from roamcast.live.auth.keys import Grant, TokenKeys
from roamcast.live.observe.logs import Log
from roamcast.transport.driver import Clock

CHECK_S: Final = 1.0

_LOG = Log("standing")

End = Callable[[str], None]
"""Ends the connection, and says why."""


class Standing:
    """What open connections were granted."""

    def __init__(self, keys: TokenKeys, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        self._held: dict[int, tuple[Grant, End]] = {}
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._problem = ""
        self.on_look: Callable[[], None] = lambda: None
        """Called whenever the key file was looked at."""

    @contextmanager
    def held(self, grant: Grant, end: End) -> Iterator[None]:
        """Watch over a grant for as long as the block lasts."""
        self._number += 1
        number = self._number
        self._held[number] = grant, end
        try:
            yield
        finally:
            self._held.pop(number, None)

    def start(self) -> None:
        """Look every second from now on."""
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._again)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def check(self) -> None:
        """End every connection whose grant is over."""
        numbers = list(self._held)
        grants = [self._held[number][0] for number in numbers]
        reasons = self._keys.ended(grants, self._clock())
        self.on_look()
        for number, reason in zip(numbers, reasons, strict=True):
            if reason is not None:
                _, end = self._held.pop(number)
                end(reason)

    def _again(self) -> None:
        """Look; a key file that can not be read is told once, not every second."""
        try:
            self.check()
        except RoamcastError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                _LOG.error("the key file can not be read: new connections are refused", error)
        else:
            self._problem = ""
        finally:
            self.start()
