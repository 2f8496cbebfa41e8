"""The keys of a trusted node on its disk: rotated, and destroyed with all that they resolve.

A destroyed epoch's key is deleted, so its vids resolve to nothing for ever, also after a restart
and also for us (decision 0051). A new key is on disk before it seals the first vid: a vid whose key
a crash took would reach nobody.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from roamcast.errors import ConflictError, LimitError, RoamcastError, StoreError
from roamcast.identity.keys import EPOCH_MAX, KEY_BYTES, RandomBytes, TrustedKeys, new_keys
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


class ShareEpoch(Input, frozen=True):
    """Make an epoch whose key a user agent gets, which seals vids of people known by sensors.

    The node resolves them as its own; the agent opens no vid of anybody else's epoch with it. One
    that has an epoch keeps it.
    """

    ticket: int
    agent: str


class TrustEpochs(Part):
    """The keys in force; at most one change is on its way to the disk."""

    part: ClassVar[str] = "epochs"
    inputs: ClassVar = (RotateKeys, DestroyEpoch, ShareEpoch)
    prefix: ClassVar[str] = PREFIX

    def __init__(self, node: str, random_bytes: RandomBytes) -> None:
        self._first = new_keys(node, random_bytes)
        self._random = random_bytes
        self._keys = TrustedKeys(node, {}, 0)
        self._changing: tuple[int, TrustedKeys] | None = None
        """The ticket and the keys that will hold; ticket 0 for the first key."""
        self._first_at: int | None = None
        """When to write the first key again that the disk refused."""
        self._agents: dict[str, int] = {}
        """User agents → the epoch whose key they have."""
        self._highest = 0
        """The highest number ever given: a destroyed epoch's number is not used again."""
        self._sharing: dict[str, int] = {}
        """The same, on its way to the disk."""

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
        for key, value in stored.items():
            number = int(key[len(PREFIX) :])
            if len(value) > KEY_BYTES:  # the name of the agent follows its key
                self._agents[value[KEY_BYTES:].decode()] = number
        every = {int(key[len(PREFIX) :]): value[:KEY_BYTES] for key, value in stored.items()}
        self._highest = max(every)
        epochs = {number: key for number, key in every.items() if key}
        # The newest key of our own is never destroyed, so it is the current one.
        own = epochs.keys() - set(self._agents.values())
        self._keys = TrustedKeys(self._keys.node, epochs, max(own))
        return ()

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a request, or the disk's answer to one."""
        match given:
            case RotateKeys(ticket) | DestroyEpoch(ticket) | ShareEpoch(ticket):
                try:
                    return self._ask(given)
                except RoamcastError as error:
                    return [Failed(ticket, error)]
            case Stored():
                assert self._changing is not None
                before, (ticket, self._keys) = self._keys, self._changing
                self._changing = None
                self._highest = max(self._highest, *self._keys.epochs)
                self._agents, self._sharing = {**self._agents, **self._sharing}, {}
                gone = before.epochs.keys() - self._keys.epochs.keys()
                self._agents = {name: n for name, n in self._agents.items() if n not in gone}
                noted = [TrustStep("destroyed", epoch) for epoch in gone]
                noted = noted or [TrustStep("sealing", self._keys.current)]
                return [*([Acknowledged(ticket)] if ticket else []), *noted]
            case StoreFailed(_, reason):
                assert self._changing is not None
                (ticket, _), self._changing = self._changing, None
                self._sharing = {}
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

    def shared_keys(self, agent: str) -> TrustedKeys | None:
        """Give the keys that a user agent has: its own epoch's alone."""
        number = self._agents.get(agent)
        if number is None:
            return None
        return TrustedKeys(self._keys.node, {number: self._keys.epochs[number]}, number)

    def _ask(self, given: RotateKeys | DestroyEpoch | ShareEpoch) -> list[Effect]:
        keys = self._keys
        if isinstance(given, ShareEpoch) and given.agent in self._agents:
            return [Acknowledged(given.ticket)]
        if self._changing is not None or not keys.current:
            raise ConflictError("another change of the keys is on its way: repeat this one")
        if isinstance(given, DestroyEpoch):
            if given.epoch == keys.current:
                raise ConflictError(f"epoch {keys.current} still seals vids: rotate first")
            return self._change(given.ticket, keys.without(given.epoch))
        if len(keys.epochs) >= EPOCHS_MAX:
            raise ConflictError(f"{EPOCHS_MAX} epochs still resolve: destroy the oldest first")
        number = self._highest + 1
        if number > EPOCH_MAX:
            raise LimitError(f"a trusted node has at most {EPOCH_MAX} epochs")
        epochs = {**keys.epochs, number: self._random(KEY_BYTES)}
        if isinstance(given, ShareEpoch):
            self._sharing = {given.agent: number}
            return self._change(given.ticket, TrustedKeys(keys.node, epochs, keys.current))
        return self._change(given.ticket, TrustedKeys(keys.node, epochs, number))

    def _change(self, ticket: int, keys: TrustedKeys) -> list[Effect]:
        self._changing = ticket, keys
        gone = self._keys.epochs.keys() - keys.epochs.keys()
        made = keys.epochs.keys() - self._keys.epochs.keys()
        # The last number stays, without its key: else a later epoch would have it again.
        writes = [(_key(one), b"" if one == self._highest else None) for one in sorted(gone)]
        agents = {number: name.encode() for name, number in self._sharing.items()}
        values = ((_key(one), keys.epochs[one] + agents.get(one, b"")) for one in sorted(made))
        return [Store(0, (*writes, *values))]


def _key(epoch: int) -> str:
    return f"{PREFIX}{epoch:05}"
