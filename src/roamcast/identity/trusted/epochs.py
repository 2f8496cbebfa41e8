"""The keys of a trusted node on its disk: rotated, and destroyed with all that they resolve.

A destroyed epoch's key is deleted, so its vids resolve to nothing for ever, also after a restart
and also for us (decision 0051). A new key is on disk before it seals the first vid: a vid whose key
a crash took would reach nobody.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from roamcast.errors import ConflictError, RoamcastError, StoreError
from roamcast.identity.keys import KEY_BYTES, RandomBytes, TrustedKeys, new_keys
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.machine import Effect, Input, Store, Stored, StoreFailed
from roamcast.model.parts import Occupancy, Part
from roamcast.model.records import TrustStep
from roamcast.model.time import MICROSECONDS

PREFIX: Final = "epoch/"
EPOCHS_MAX: Final = 4_096
"""Keys not yet destroyed."""

RETRY_US: Final = MICROSECONDS


class RotateKeys(Input, frozen=True):
    """Seal with a new key from now on."""

    ticket: int


class DestroyEpoch(Input, frozen=True):
    """Destroy the key of an epoch that has ended."""

    ticket: int
    epoch: int


class TrustEpochs(Part):
    """The keys in force; at most one change is on its way to the disk."""

    part: ClassVar[str] = "epochs"
    inputs: ClassVar = (RotateKeys, DestroyEpoch)
    prefix: ClassVar[str] = PREFIX

    def __init__(self, node: str, random_bytes: RandomBytes) -> None:
        self._first = new_keys(node, random_bytes)
        self._random = random_bytes
        self._keys = TrustedKeys(node, {}, 0)
        self._changing: tuple[int, TrustedKeys] | None = None
        """The ticket and the keys that will hold; ticket 0 for the first key."""
        self._first_at: int | None = None
        """When to write the first key again that the disk refused."""

    @property
    def keys(self) -> TrustedKeys:
        """The keys that are on disk."""
        return self._keys

    def occupancy(self) -> Occupancy:
        """How many keys there are."""
        return {"keys": (len(self._keys.epochs), EPOCHS_MAX)}

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Take up the keys; a disk without any gets the first one."""
        del now
        if not stored:
            return self._change(0, self._first)
        epochs = {int(key[len(PREFIX) :]): value for key, value in stored.items()}
        assert all(len(value) == KEY_BYTES for value in epochs.values())
        # The newest key is never destroyed, so it is the current one.
        self._keys = TrustedKeys(self._keys.node, epochs, max(epochs))
        return ()

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a request, or the disk's answer to one."""
        match given:
            case RotateKeys(ticket) | DestroyEpoch(ticket):
                try:
                    return self._ask(given)
                except RoamcastError as error:
                    return [Failed(ticket, error)]
            case Stored():
                assert self._changing is not None
                before, (ticket, self._keys) = self._keys, self._changing
                self._changing = None
                gone = before.epochs.keys() - self._keys.epochs.keys()
                noted = [TrustStep("destroyed", epoch) for epoch in gone]
                noted = noted or [TrustStep("sealing", self._keys.current)]
                return [*([Acknowledged(ticket)] if ticket else []), *noted]
            case StoreFailed(_, reason):
                assert self._changing is not None
                (ticket, _), self._changing = self._changing, None
                if not ticket:
                    self._first_at = now + RETRY_US
                    return ()
                return [Failed(ticket, StoreError(reason))]
            case _:
                raise AssertionError(f"epochs take no {type(given).__name__}")

    def advance(self, now: int) -> Sequence[Effect]:
        """Try again to write the first key: without it nothing works."""
        if self._first_at is None or now < self._first_at:
            return ()
        self._first_at = None
        return self._change(0, self._first)

    def deadline(self) -> int | None:
        """When to try again."""
        return self._first_at

    def _ask(self, given: RotateKeys | DestroyEpoch) -> list[Effect]:
        keys = self._keys
        if self._changing is not None or not keys.current:
            raise ConflictError("another change of the keys is on its way: repeat this one")
        if isinstance(given, DestroyEpoch):
            if given.epoch == keys.current:
                raise ConflictError(f"epoch {keys.current} still seals vids: rotate first")
            return self._change(given.ticket, keys.without(given.epoch))
        if len(keys.epochs) >= EPOCHS_MAX:
            raise ConflictError(f"{EPOCHS_MAX} epochs still resolve: destroy the oldest first")
        return self._change(given.ticket, keys.rotated(self._random))

    def _change(self, ticket: int, keys: TrustedKeys) -> list[Effect]:
        self._changing = ticket, keys
        gone = self._keys.epochs.keys() - keys.epochs.keys()
        made = keys.epochs.keys() - self._keys.epochs.keys()
        writes = [(_key(number), None) for number in sorted(gone)]
        return [Store(0, (*writes, *((_key(one), keys.epochs[one]) for one in sorted(made))))]


def _key(epoch: int) -> str:
    return f"{PREFIX}{epoch:05}"
