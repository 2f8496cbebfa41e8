"""Grants that outlive a request: connections that stay open.

A request shows its token each time. A session, a link or a stream of changes showed it once, so
`OpenGrants` ends the connection when the token expires or is revoked.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from roamcast.errors import RoamcastError
from roamcast.live.auth.admission import Grant, TokenKeys
from roamcast.live.observe.logs import Log
from roamcast.transport.driver import Clock

CHECK_S: Final = 1.0
"""How long an open connection may outlive its token."""

_LOG = Log("grants")

End = Callable[[str], None]
"""Ends a connection, with the reason."""


class OpenGrants:
    """The grants of open connections."""

    def __init__(self, keys: TokenKeys, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        self._held: dict[int, tuple[Grant, End]] = {}
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._problem = ""
        self.on_look: Callable[[], None] = lambda: None
        """Called after each look at the key file."""

    @contextmanager
    def held(self, grant: Grant, end: End) -> Iterator[None]:
        """Check a grant every `CHECK_S` for as long as the block lasts."""
        self._number += 1
        number = self._number
        self._held[number] = grant, end
        try:
            yield
        finally:
            self._held.pop(number, None)

    def start(self) -> None:
        """Start the periodic check."""
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._again)

    def stop(self) -> None:
        """Stop the periodic check."""
        if self._timer is not None:
            self._timer.cancel()

    def check(self) -> None:
        """End every connection whose grant is no longer valid."""
        numbers = list(self._held)
        grants = [self._held[number][0] for number in numbers]
        reasons = self._keys.ended(grants, self._clock())
        self.on_look()
        for number, reason in zip(numbers, reasons, strict=True):
            if reason is not None:
                _, end = self._held.pop(number)
                end(reason)

    def _again(self) -> None:
        """Check; a key file that cannot be read is logged once, not every second."""
        try:
            self.check()
        except RoamcastError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                _LOG.error("the key file cannot be read: new connections are refused", error)
        else:
            self._problem = ""
        finally:
            self.start()
