"""Is a token that was revoked on one host refused on the others? Its id goes where the store goes.

The key file is copied by hand, and a revocation must not wait for that: the service writes the ids
that its key file revokes into its store, which other hosts follow.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from roamcast.live.auth.keys import TokenKeys
from roamcast.live.store.file import Entry
from roamcast.live.store.store import SqliteStore
from roamcast.transport.driver import Clock

PREFIX: Final = "revoked/"
"""Then a token's id; the value is when it would have expired, in microseconds."""


class Revoked:
    """The revocations that hosts share."""

    def __init__(self, keys: TokenKeys, disk: SqliteStore, clock: Clock) -> None:
        self._keys = keys
        self._disk = disk
        self._clock = clock
        self._known: dict[str, int] = {}
        now = clock()
        for key, value in disk.load(PREFIX).items():
            until = msgspec.msgpack.decode(value, type=int)
            if until > now:
                self._note(key, until)
            else:
                disk.write([(key, None)])

    def _note(self, key: str, until: int) -> None:
        token_id = key[len(PREFIX) :]
        self._known[token_id] = until
        self._keys.refuse(token_id, until)

    def look(self) -> None:
        """Write down what the key file revokes and the store does not know yet."""
        now = self._clock()
        fresh = {
            token_id: until
            for token_id, until in self._keys.revoked.items()
            if token_id not in self._known and until > now
        }
        if fresh:
            self._known.update(fresh)
            encode = msgspec.msgpack.encode
            self._disk.write([(PREFIX + one, encode(until)) for one, until in fresh.items()])

    def adopt(self, entries: Sequence[Entry]) -> None:
        """Refuse what another host has revoked."""
        for entry in entries:
            if entry.key.startswith(PREFIX) and entry.value is not None:
                self._note(entry.key, msgspec.msgpack.decode(entry.value, type=int))
