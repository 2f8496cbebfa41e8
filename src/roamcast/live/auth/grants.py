"""Grants that outlive a request: open connections, and revocations that replicas share.

A request shows its token each time. A session, a link or a stream of changes showed it once, so
`OpenGrants` ends the connection when the token expires or is revoked. `SharedRevocations` writes
revoked ids into the store, which the other replicas copy: the key file is copied by hand, and a
revocation must not wait for that.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from roamcast.errors import RoamcastError
from roamcast.live.auth.keys import Grant, TokenKeys
from roamcast.live.observe.logs import Log
from roamcast.live.store.file import Entry
from roamcast.live.store.store import SqliteStore
from roamcast.transport.driver import Clock

CHECK_S: Final = 1.0
"""How long an open connection may outlive its token."""

PREFIX: Final = "revoked/"
"""Store key before a token's id; the value is when it would have expired, in microseconds."""

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
        self.looked: Callable[[], None] = lambda: None
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
        self.looked()
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


class SharedRevocations:
    """Revoked token ids in the store."""

    def __init__(self, keys: TokenKeys, disk: SqliteStore, clock: Clock) -> None:
        self._keys = keys
        self._disk = disk
        self._clock = clock
        self._known: dict[str, int] = {}
        now = clock()
        for key, value in disk.load(PREFIX).items():
            until = msgspec.msgpack.decode(value, type=int)
            if until > now:
                self._refuse(key, until)
            else:
                disk.write([(key, None)])

    def look(self) -> None:
        """Write what the key file revokes and the store does not know yet."""
        now = self._clock()
        fresh = {
            token_id: until
            for token_id, until in self._keys.revoked.items()
            if token_id not in self._known and until > now
        }
        if fresh:
            self._known.update(fresh)
            encode = msgspec.msgpack.encode
            self._disk.write(
                [(PREFIX + token_id, encode(until)) for token_id, until in fresh.items()]
            )

    def adopt(self, entries: Sequence[Entry]) -> None:
        """Refuse what another replica has revoked."""
        for entry in entries:
            if entry.key.startswith(PREFIX) and entry.value is not None:
                self._refuse(entry.key, msgspec.msgpack.decode(entry.value, type=int))

    def _refuse(self, key: str, until: int) -> None:
        token_id = key[len(PREFIX) :]
        self._known[token_id] = until
        self._keys.refuse(token_id, until)
