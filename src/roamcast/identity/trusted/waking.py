"""Wake-ups: a push to a person's devices when mail waits and none of them is connected.

A push says nothing at all: it has no body, no cast, no sender (decision 0186). The device wakes,
asks its mailbox, and is not woken again until it has. Pushes leave some random time after the mail
came, so that a push service that knows a broker's casts does not learn which of them came here;
urgent mail does not wait. Quiet hours hold. Endpoints are on disk; what is due is made up again
after a restart from the mail that waits, so a crash delays a wake-up and loses none.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, ClassVar, Final

import msgspec

from roamcast.errors import InputError, LimitError, RateError, RoamcastError, StoreError
from roamcast.identity.keys import RandomBytes
from roamcast.identity.trusted.mailboxes import Mailboxes, MailboxSeen, MailLeft, MailWaiting
from roamcast.identity.trusted.reach import quiet_until
from roamcast.identity.trusted.register import PersonErased, Register
from roamcast.identity.trusted.settings import TrustSettings
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.machine import Effect, Input, Store, Stored, StoreFailed
from roamcast.model.parts import Occupancy, Part, Timers
from roamcast.model.records import TrustStep
from roamcast.model.time import MICROSECONDS

PREFIX: Final = "wake/"
ENDPOINT_LENGTH_MAX: Final = 1_024
GONE: Final = frozenset({404, 410})
"""What a push service answers for a device that wants no more pushes."""


class SetWakeUp(Input, frozen=True):
    """Wake a device of a person by its push service; the driver has checked the address."""

    ticket: int
    subject: str
    endpoint: str


class RemoveWakeUp(Input, frozen=True):
    """Wake this device no more; an empty endpoint means all of the person's."""

    ticket: int
    subject: str
    endpoint: str = ""


class PushWakeUp(Effect, frozen=True):
    """Push to an endpoint, without a body; answered by `PushAnswered`."""

    device: str
    endpoint: str


class PushAnswered(Input, frozen=True):
    """What a push service answered; 0 if it could not be asked."""

    device: str
    status: int


class _Device(msgspec.Struct):
    """One endpoint of a person."""

    endpoint: str
    failures: int = 0


class _Pending(msgspec.Struct, frozen=True):
    ticket: int
    handle: bytes
    added: str
    removed: tuple[str, ...]


class WakeUps(Part):
    """Whom to wake, where, and when; one write of a person is on its way at a time."""

    part: ClassVar[str] = "wake-ups"
    inputs: ClassVar = (
        SetWakeUp, RemoveWakeUp, PushAnswered, MailWaiting, MailLeft, MailboxSeen, PersonErased,
    )  # fmt: skip
    prefix: ClassVar[str] = PREFIX

    def __init__(self, settings: TrustSettings, random_bytes: RandomBytes) -> None:
        self._settings = settings
        self._random = random_bytes
        self.register: Register
        self.mailboxes: Mailboxes
        self._devices: dict[bytes, dict[str, _Device]] = {}
        """Handle → its devices, by a digest of their endpoints."""
        self._pushed_us: dict[bytes, int] = {}
        """People who were woken and have not come since."""
        self._urgent: set[bytes] = set()
        """People for whom urgent mail waits."""
        self._left: set[bytes] = set()
        """People who left mail behind: their timer gives way to that of new mail."""
        self._asked: set[str] = set()
        """Devices whose push is on its way."""
        self._changing: set[bytes] = set()
        self._pending: dict[int, _Pending] = {}
        self._token = 0
        self._timers: Timers[bytes] = Timers()

    def occupancy(self) -> Occupancy:
        """How many people have devices, and how many pushes are on their way."""
        people = len(self._devices)
        most = max((len(own) for own in self._devices.values()), default=0)
        return {
            "people": (people, self._settings.people_max),
            "devices of one": (most, self._settings.devices_max),
            "woken": (len(self._pushed_us), people),
            "urgent": (len(self._urgent), people),
            "left mail": (len(self._left), people),
            "pushes": (len(self._asked), self._settings.pushes_max),
            "timers": (len(self._timers), people),
            "changes": (len(self._pending), self._settings.people_max),
        }

    def endpoints_of(self, subject: str) -> list[str]:
        """Read where a person is woken."""
        own = self._devices.get(self.register.person(subject).handle, {})
        return [one.endpoint for one in own.values()]

    def keys_of(self, handle: bytes) -> list[str]:
        """Name everything that is stored for a handle, and what is about to be."""
        own = [f"{PREFIX}{handle.hex()}/{one}" for one in self._devices.get(handle, ())]
        coming = [
            _key(handle, pending.added)
            for pending in self._pending.values()
            if pending.handle == handle and pending.added
        ]
        return list(dict.fromkeys([*own, *coming]))

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Take up the endpoints; whose mail waits is woken, perhaps once more."""
        for key, value in stored.items():
            handle = bytes.fromhex(key[len(PREFIX) :].partition("/")[0])
            self._note(handle, msgspec.msgpack.decode(value, type=str))
        for handle in self._devices:
            self._timers.set(handle, now + self._delay())
        return ()

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a person's wish, news of their mailbox, or an answer of the disk or a service."""
        match given:
            case SetWakeUp(ticket) | RemoveWakeUp(ticket):
                try:
                    return self._ask(given)
                except RoamcastError as error:
                    return [Failed(ticket, error)]
            case MailWaiting(handle, urgent):
                self._plan(handle, urgent=urgent, now=now)
                return ()
            case MailLeft(handle):
                if handle in self._devices and handle not in self._timers:
                    self._left.add(handle)
                    self._timers.set(handle, now + self._settings.wake_again_us)
                return ()
            case MailboxSeen(handle):
                self._rest(handle)
                return ()
            case PersonErased(handle):
                self._rest(handle)
                self._devices.pop(handle, None)
                return ()
            case PushAnswered(device, status):
                return self._answered(device, status, now)
            case Stored(token):
                return self._stored(self._settled(token), now)
            case StoreFailed(token, reason):
                lost = self._settled(token)
                return [Failed(lost.ticket, StoreError(reason))] if lost.ticket else []
            case _:
                raise AssertionError(f"wake-ups take no {type(given).__name__}")

    def advance(self, now: int) -> Sequence[Effect]:
        """Push to those whose time has come, if their mail still waits."""
        effects: list[Effect] = []
        for handle in list(self._timers.due(now)):
            effects += self._wake(handle, now)
        return effects

    def deadline(self) -> int | None:
        """When the next push is due."""
        return self._timers.deadline()

    def _ask(self, given: SetWakeUp | RemoveWakeUp) -> list[Effect]:
        handle = self.register.person(given.subject).handle
        own = self._devices.get(handle, {})
        if handle in self._changing or self.register.is_leaving(handle):
            raise RateError("a change for this person is on its way: repeat this one")
        if isinstance(given, RemoveWakeUp):
            wanted = (_device(given.endpoint),) if given.endpoint else tuple(own)
            gone = tuple(one for one in wanted if one in own)
            if not gone:
                return [Acknowledged(given.ticket)]
            return self._write(_Pending(given.ticket, handle, "", gone))
        if not 0 < len(given.endpoint) <= ENDPOINT_LENGTH_MAX:
            raise InputError(f"an endpoint has 1 to {ENDPOINT_LENGTH_MAX} characters")
        if _device(given.endpoint) in own:
            return [Acknowledged(given.ticket)]
        if len(own) >= self._settings.devices_max:
            raise LimitError(
                f"{self._settings.devices_max} devices of one person are woken: remove one first"
            )
        return self._write(_Pending(given.ticket, handle, given.endpoint, ()))

    def _write(self, pending: _Pending) -> list[Effect]:
        self._token += 1
        self._pending[self._token] = pending
        self._changing.add(pending.handle)
        gone = ((f"{PREFIX}{pending.handle.hex()}/{one}", None) for one in pending.removed)
        writes: list[tuple[str, bytes | None]] = [*gone]
        if pending.added:
            value = msgspec.msgpack.encode(pending.added)
            writes.append((_key(pending.handle, pending.added), value))
        return [Store(self._token, tuple(writes))]

    def _settled(self, token: int) -> _Pending:
        pending = self._pending.pop(token)
        self._changing.discard(pending.handle)
        return pending

    def _stored(self, done: _Pending, now: int) -> list[Effect]:
        if self.register.reach_of(done.handle) is None:
            # Erased meanwhile, by a transaction that named this key, too.
            return [Acknowledged(done.ticket)] if done.ticket else []
        own = self._devices.get(done.handle, {})
        for device in done.removed:
            own.pop(device, None)
        if not own and not done.added:
            self._devices.pop(done.handle, None)
            self._rest(done.handle)
        if done.added:
            self._note(done.handle, done.added)
            self._plan(done.handle, urgent=False, now=now)
        step = TrustStep("wake-up", 1, "set" if done.added else "removed")
        return [*([Acknowledged(done.ticket)] if done.ticket else []), step]

    def _note(self, handle: bytes, endpoint: str) -> None:
        self._devices.setdefault(handle, {})[_device(endpoint)] = _Device(endpoint)

    def _plan(self, handle: bytes, *, urgent: bool, now: int) -> None:
        """Set when a person is woken; who was woken and has not come sleeps for a while."""
        if handle not in self._devices:
            return
        if urgent:
            self._urgent.add(handle)
            self._timers.sooner(handle, now)
        elif handle not in self._timers or handle in self._left:
            self._left.discard(handle)
            due, pushed = now + self._delay(), self._pushed_us.get(handle)
            if pushed is not None:
                due = max(due, pushed + self._settings.wake_again_us)
            self._timers.set(handle, due)

    def _delay(self) -> int:
        return int.from_bytes(self._random(6), "big") % (self._settings.wake_delay_us + 1)

    def _rest(self, handle: bytes) -> None:
        """The person is here, or gone: nothing is due."""
        self._timers.cancel(handle)
        self._pushed_us.pop(handle, None)
        self._urgent.discard(handle)
        self._left.discard(handle)

    def _wake(self, handle: bytes, now: int) -> list[Effect]:
        self._left.discard(handle)
        reach, own = self.register.reach_of(handle), self._devices.get(handle)
        if own is None or reach is None or not self.mailboxes.waits_unseen(handle):
            return []
        until = quiet_until(reach, now)
        if until is not None and handle not in self._urgent:
            self._timers.set(handle, until)
            return []
        free = {
            device: one for device, one in own.items() if _name(handle, device) not in self._asked
        }
        if len(self._asked) + len(free) > self._settings.pushes_max:
            self._timers.set(handle, now + MICROSECONDS)
            return []
        self._pushed_us[handle] = now
        self._urgent.discard(handle)
        self._asked |= {_name(handle, device) for device in free}
        pushes = [PushWakeUp(_name(handle, device), one.endpoint) for device, one in free.items()]
        return [*pushes, TrustStep("wake-up", len(pushes), "pushed")] if pushes else []

    def _answered(self, name: str, status: int, now: int) -> Sequence[Effect]:
        self._asked.discard(name)
        text, _, device = name.partition("/")
        handle = bytes.fromhex(text)
        one = self._devices.get(handle, {}).get(device)
        if one is None:
            return ()
        if 200 <= status < 300:
            one.failures = 0
            return ()
        one.failures += 1
        noted = TrustStep("wake-up", 1, "failed")
        if status in GONE or one.failures >= self._settings.failures_max:
            if handle in self._changing or self.register.is_leaving(handle):
                return [noted]  # it fails again
            return [noted, *self._write(_Pending(0, handle, "", (device,)))]
        self._timers.sooner(handle, now + (self._settings.push_retry_us << one.failures - 1))
        return [noted]


def _device(endpoint: str) -> str:
    return sha256(endpoint.encode()).hexdigest()[:32]


def _name(handle: bytes, device: str) -> str:
    return f"{handle.hex()}/{device}"


def _key(handle: bytes, endpoint: str) -> str:
    return PREFIX + _name(handle, _device(endpoint))
