"""The sealing keys of registered vids: a broker seals casts to them for as long as it may be asked.

A registration shows the vid's public keys once, in its credential. A cast that finds the vid in the
past a week later must be sealed to the same key, so the key is on disk before the registration is
answered. Nothing here says whose a vid is. What expires together is deleted together.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from roamcast.errors import ConflictError, RateError, StoreError
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.machine import Effect, Entry, Input, Store, Stored, StoreFailed, Writes
from roamcast.model.parts import Occupancy, Part, Timers

PREFIX: Final = "vidkey/"
"""Then a vid; the value is a `VidKey`."""

VID_KEYS_MAX: Final = 1_000_000
DELETED_MAX: Final = 1_000
"""Keys that one write deletes."""

RETRY_US: Final = 1_000_000


class KeepVidKey(Input, frozen=True):
    """Keep the key that casts to a vid are sealed to; answered when it is on disk."""

    ticket: int
    vid: str
    sealing: bytes
    until_us: int


class VidKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A key to seal to, and until when somebody may need it."""

    sealing: bytes
    until_us: int


class _Keeping(msgspec.Struct, frozen=True, gc=False):
    """A key on its way to the disk."""

    ticket: int
    vid: str
    key: VidKey


class _Deleting(msgspec.Struct, frozen=True, gc=False):
    """Vids whose keys are on their way out."""

    vids: tuple[str, ...]


class VidKeyStore(Part):
    """The keys of the vids that were registered here; beyond the bound, registrations wait.

    The oldest key is not dropped for a newer one: its owner was promised to be reachable.
    """

    part: ClassVar[str] = "vid keys"
    inputs: ClassVar = (KeepVidKey,)
    prefix: ClassVar[str] = PREFIX

    def __init__(self, keys_max: int = VID_KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._keys: dict[str, VidKey] = {}
        self._fresh: dict[str, int] = {}
        """Vids without a key → how many writes of theirs are on their way."""
        self._leaving: set[str] = set()
        self._writing: dict[int, _Keeping | _Deleting] = {}
        self._token = 0
        self.timers: Timers[str] = Timers()

    def key_of(self, vid: str) -> bytes | None:
        """Give the key to seal to for a vid; None for who never registered here, or long ago."""
        known = self._keys.get(vid)
        return None if known is None else known.sealing

    def occupancy(self) -> Occupancy:
        """How many keys there are, with those on their way to the disk and off it."""
        return {"keys": (self._held(), self._keys_max)}

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Take up the keys; those that expired meanwhile leave when time next moves on."""
        del now
        for key, value in stored.items():
            self._note(key[len(PREFIX) :], msgspec.msgpack.decode(value, type=VidKey))
        return ()

    def adopt(self, entries: Sequence[Entry], now: int) -> Sequence[Effect]:
        """Take up what another host of this node has."""
        del now
        for entry in entries:
            vid = entry.key[len(PREFIX) :]
            if entry.value is not None:
                self._note(vid, msgspec.msgpack.decode(entry.value, type=VidKey))
            elif self._keys.pop(vid, None) is not None:
                self.timers.cancel(vid)
        return ()

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Keep a key, or hear of the disk."""
        match given:
            case KeepVidKey():
                return self._keep(given)
            case Stored(token):
                return self._stored(self._writing.pop(token))
            case StoreFailed(token, reason):
                return self._failed(self._writing.pop(token), reason, now)
            case _:
                raise AssertionError(f"vid keys take no {type(given).__name__}")

    def advance(self, now: int) -> Sequence[Effect]:
        """Delete the keys that nobody may ask for any more."""
        due = tuple(self.timers.due(now))
        for vid in due:
            self._keys.pop(vid, None)
        self._leaving.update(due)
        pages = (due[first : first + DELETED_MAX] for first in range(0, len(due), DELETED_MAX))
        return [
            self._write(_Deleting(page), tuple((PREFIX + vid, None) for vid in page))
            for page in pages
        ]

    def _held(self) -> int:
        return len(self._keys) + len(self._fresh) + len(self._leaving - self._fresh.keys())

    def _keep(self, given: KeepVidKey) -> list[Effect]:
        vid, known = given.vid, self._keys.get(given.vid)
        if known is not None and known.sealing != given.sealing:
            return [Failed(given.ticket, ConflictError("this vid has another key already"))]
        if known is not None and known.until_us >= given.until_us:
            return [Acknowledged(given.ticket)]
        if known is None:
            known_of = vid in self._fresh or vid in self._leaving
            if not known_of and self._held() >= self._keys_max:
                problem = f"this service keeps the keys of {self._keys_max} vids: try again later"
                return [Failed(given.ticket, RateError(problem))]
            self._fresh[vid] = self._fresh.get(vid, 0) + 1
        key = VidKey(given.sealing, given.until_us)
        write = (PREFIX + vid, msgspec.msgpack.encode(key))
        return [self._write(_Keeping(given.ticket, vid, key), (write,))]

    def _write(self, what: _Keeping | _Deleting, writes: Writes) -> Store:
        self._token += 1
        self._writing[self._token] = what
        return Store(self._token, writes)

    def _stored(self, done: _Keeping | _Deleting) -> list[Effect]:
        if isinstance(done, _Deleting):
            self._leaving.difference_update(done.vids)
            return []
        self._settle(done.vid)
        self._note(done.vid, done.key)
        return [Acknowledged(done.ticket)]

    def _failed(self, lost: _Keeping | _Deleting, reason: str, now: int) -> list[Effect]:
        if isinstance(lost, _Keeping):
            self._settle(lost.vid)
            return [Failed(lost.ticket, StoreError(reason))]
        for vid in lost.vids:
            # One that was registered again was written after this: its key shall stay.
            if vid in self._keys or vid in self._fresh:
                self._leaving.discard(vid)
            else:
                self.timers.set(vid, now + RETRY_US)
        return []

    def _settle(self, vid: str) -> None:
        left = self._fresh.pop(vid, 1) - 1
        if left:
            self._fresh[vid] = left

    def _note(self, vid: str, key: VidKey) -> None:
        self._keys[vid] = key
        self._leaving.discard(vid)
        self.timers.set(vid, key.until_us)
