"""Revoked tokens that all hosts of a node refuse.

The key file is copied by hand, and a revocation must not wait for that: the ids that one host's key
file revokes go into the store, which the other hosts copy.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from roamcast.model.machine import Effect, Entry, Input, Store
from roamcast.model.parts import Occupancy, Part

PREFIX: Final = "revoked/"
"""Then a token's id; the value is when it would have expired, in microseconds."""

REVOCATIONS_MAX: Final = 1_000_000


class RevokeTokens(Input, frozen=True):
    """The key file of this host revokes these: ids and when they would have expired."""

    tokens: tuple[tuple[str, int], ...]


class TokenRevoked(Effect, frozen=True):
    """Refuse this token from now on; a replica revoked it, or this host did before it restarted."""

    token_id: str
    until_us: int


class Revocations(Part):
    """The ids of revoked tokens that have not expired."""

    part: ClassVar[str] = "revocations"
    inputs: ClassVar = (RevokeTokens,)
    prefix: ClassVar[str] = PREFIX

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def occupancy(self) -> Occupancy:
        """How many ids are known."""
        return {"ids": (len(self._known), REVOCATIONS_MAX)}

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Refuse what was on disk; what has expired since is deleted."""
        effects: list[Effect] = []
        for key, value in stored.items():
            until = msgspec.msgpack.decode(value, type=int)
            effects.append(self._note(key, until) if until > now else Store(0, ((key, None),)))
        return effects

    def adopt(self, entries: Sequence[Entry], now: int) -> Sequence[Effect]:
        """Refuse what a replica has revoked."""
        del now
        return [
            self._note(entry.key, msgspec.msgpack.decode(entry.value, type=int))
            for entry in entries
            if entry.value is not None
        ]

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Store what this host's key file revokes and the store does not know yet."""
        assert isinstance(given, RevokeTokens)
        writes = []
        for token_id, until in given.tokens:
            if token_id not in self._known and until > now:
                self._note(PREFIX + token_id, until)
                writes.append((PREFIX + token_id, msgspec.msgpack.encode(until)))
        return [Store(0, tuple(writes))] if writes else []

    def _note(self, key: str, until: int) -> TokenRevoked:
        token_id = key[len(PREFIX) :]
        self._known[token_id] = until
        if len(self._known) > REVOCATIONS_MAX:
            del self._known[next(iter(self._known))]
        return TokenRevoked(token_id, until)
