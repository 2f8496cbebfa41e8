"""Handles of people who were erased, until every archive has erased their contexts, too.

A person is gone from the trusted node at once. Their contexts lie in archives under vids that only
the node's keys open, to a handle that is nobody's any more. An archive's job asks for its vids
which of them are of somebody who is gone, and erases those (decision 0188). A handle is 80 random
bits and names nobody; after some months it is forgotten as well.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from roamcast.identity.trusted.register import GONE_PREFIX, PersonErased
from roamcast.identity.trusted.settings import TrustSettings
from roamcast.model.machine import Effect, Store, Stored, StoreFailed
from roamcast.model.parts import Occupancy, Part, Timers


class Departed(Part):
    """Who was erased here; the register writes the row in the transaction that erases."""

    part: ClassVar[str] = "departed"
    inputs: ClassVar = (PersonErased,)
    prefix: ClassVar[str] = GONE_PREFIX

    def __init__(self, settings: TrustSettings) -> None:
        self._settings = settings
        self._handles: set[bytes] = set()
        self._forgetting: dict[int, bytes] = {}
        self._token = 0
        self._timers: Timers[bytes] = Timers()

    def __contains__(self, handle: object) -> bool:
        return handle in self._handles

    def occupancy(self) -> Occupancy:
        """How many are remembered."""
        return {"handles": (len(self._handles), 2 * self._settings.people_max)}

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Take up who was erased, and when."""
        del now
        for key, value in stored.items():
            handle = bytes.fromhex(key[len(GONE_PREFIX) :])
            self._note(handle, msgspec.msgpack.decode(value, type=int))
        return ()

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Hear of an erasure, or of the disk."""
        match given:
            case PersonErased(handle):
                self._note(handle, now)
            case Stored(token):
                self._handles.discard(self._forgetting.pop(token))
            case StoreFailed(token, _):
                handle = self._forgetting.pop(token)
                self._timers.set(handle, now + self._settings.retry_us)
            case _:
                raise AssertionError(f"departed take no {type(given).__name__}")
        return ()

    def advance(self, now: int) -> Sequence[Effect]:
        """Forget those whose archives have had time enough."""
        effects: list[Effect] = []
        for handle in list(self._timers.due(now)):
            self._token += 1
            self._forgetting[self._token] = handle
            effects.append(Store(self._token, ((GONE_PREFIX + handle.hex(), None),)))
        return effects

    def deadline(self) -> int | None:
        """When the first one is forgotten."""
        return self._timers.deadline()

    def _note(self, handle: bytes, at: int) -> None:
        self._handles.add(handle)
        self._timers.set(handle, at + self._settings.departed_us)
