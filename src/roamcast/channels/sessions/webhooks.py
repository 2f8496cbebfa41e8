"""Webhooks: changes of a filter's set, posted to those who cannot hold a connection.

A webhook is a session of the hub whose frames come here. What its receiver has taken is on disk: a
digest of each context. So after a crash the difference between that and the current set is what the
receiver lacks, and nothing that was acknowledged to a publisher is lost (decision 0100). Messages
are batches of CloudEvents, one at a time for each webhook, repeated with growing pauses until they
are taken, signed as Standard Webhooks says. A receiver is asked for its consent first, as the
CloudEvents Web Hook specification says, so that nobody floods others through this service.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

import msgspec

from roamcast.channels.sessions.events import SubscribeSession
from roamcast.channels.sessions.messages import CloudEvent, EventType
from roamcast.errors import ConflictError, LimitError, NotFoundError, RoamcastError, StoreError
from roamcast.model.events import Acknowledged, Failed, SessionClosed, SessionRequested
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Entry, Input, Store, Stored, StoreFailed
from roamcast.model.parts import Occupancy, Part, Timer, Timers
from roamcast.model.records import Drop
from roamcast.model.time import to_datetime

PREFIX: Final = "webhook/"
SESSION: Final = "#webhook:"
"""No device of a subject has such a name."""

SECRET: Final = "whsec_"  # noqa: S105 - what secrets begin with
TAKEN: Final = range(200, 300)
GONE: Final = 410
REOPEN_US: Final = 5_000_000
"""Retry delay for a session that the hub did not open, or ended."""

_raw: Any = msgspec.Raw


class RegisterWebhook(Input, frozen=True):
    """Post the changes of a filter's set, as its owner may see it, to an address."""

    ticket: int
    webhook: str
    owner: str
    groups: frozenset[str]
    url: str
    secret: str
    filter: str
    expires_us: int
    tokens: tuple[str, ...] = ()
    """Ids of the token it was asked with, and of those that was made from."""


class RemoveWebhook(Input, frozen=True):
    """End a webhook."""

    ticket: int
    owner: str
    webhook: str
    any_owner: bool = False


class WebhookChecked(Input, frozen=True):
    """A receiver has answered whether it wants messages; `reason`: why not."""

    webhook: str
    reason: str = ""


class WebhookFrame(Input, frozen=True):
    """A frame for the session of a webhook."""

    webhook: str
    data: bytes


class WebhookAnswered(Input, frozen=True):
    """A receiver has answered a message with a status; 0: it did not answer."""

    webhook: str
    number: int
    status: int


class CheckWebhook(Effect, frozen=True):
    """Ask a receiver for its consent."""

    webhook: str
    url: str


class PostWebhook(Effect, frozen=True):
    """Post a message."""

    webhook: str
    number: int
    url: str
    headers: dict[str, str]
    body: bytes


class WebhookSettings(msgspec.Struct, frozen=True):
    """Bounds; intervals in microseconds."""

    per_owner_max: int = 20
    webhooks_max: int = 1_000
    waiting_max: int = 10_000
    """Contexts that wait for one webhook; for more the current set is read again later."""
    events_max: int = 64
    """Events in one message."""
    bytes_max: int = 262_144
    """Bytes at which a message takes no further event."""
    retry_us: int = 1_000_000
    """Pause after the first failure; it doubles with each."""
    retry_us_max: int = 3_600_000_000
    give_up_us: int = 3 * 86_400_000_000
    """How long a receiver may fail before its webhook ends."""


class StoredWebhook(msgspec.Struct, frozen=True, array_like=True):
    """A webhook on disk."""

    owner: str
    groups: tuple[str, ...]
    url: str
    secret: str
    filter: str
    expires_us: int
    tokens: tuple[str, ...] = ()


class _Due(Timer, frozen=True):
    kind: Literal["retry", "reopen", "expire"]
    webhook: str


class _Message(msgspec.Struct, frozen=True):
    number: int
    body: bytes
    digests: dict[str, bytes | None]


class _Waiting(msgspec.Struct, frozen=True):
    feature: bytes | None
    at_us: int


class Webhook(msgspec.Struct):
    """One webhook: what its receiver has taken, and what it lacks."""

    id: str
    stored: StoredWebhook
    taken: dict[str, bytes]
    """Vids → a digest of the state that the receiver has."""
    waiting: dict[str, _Waiting]
    listing: dict[str, None] | None = None
    """Vids of the current set while it comes."""
    behind: bool = True
    """Whether the current set must be read before anything is sent."""
    more: bool = False
    """Whether more than may wait is lacking: the current set is read again when nothing waits."""
    sent: _Message | None = None
    failures: int = 0
    failing_since: int = 0

    @property
    def session(self) -> str:
        """The name of its session; the hub's view class is that of its owner."""
        return f"{self.stored.owner}{SESSION}{self.id}"


class _Shown(msgspec.Struct, frozen=True):
    """What is read of an event."""

    subject: str
    data: msgspec.Raw


class _Listed(msgspec.Struct, frozen=True):
    """What is read of a current set."""

    features: list[msgspec.Raw]


class _Named(msgspec.Struct, frozen=True):
    id: str


_event = msgspec.json.Decoder(_Shown).decode
_listed = msgspec.json.Decoder(_Listed).decode
_named = msgspec.json.Decoder(_Named).decode


class Webhooks(Part):
    """The webhooks of a broker."""

    part: ClassVar[str] = "webhooks"
    inputs: ClassVar = (
        RegisterWebhook,
        RemoveWebhook,
        WebhookChecked,
        WebhookFrame,
        WebhookAnswered,
        SessionClosed,
    )
    prefix: ClassVar[str] = PREFIX

    def __init__(self, settings: WebhookSettings, epoch: int) -> None:
        self.webhooks: dict[str, Webhook] = {}
        self.settings = settings
        self._epoch = epoch
        self._asked: dict[str, RegisterWebhook] = {}
        """Webhooks that wait for their receiver's consent, or for the disk."""
        self._pending: dict[int, RegisterWebhook | RemoveWebhook] = {}
        self._owned: dict[str, int] = {}
        self.timers: Timers[_Due] = Timers()
        self._token = 0
        self._number = 0

    def occupancy(self) -> Occupancy:
        """How much is held of what, and the bound of each."""
        settings = self.settings
        hooks = self.webhooks.values()
        return {
            "webhooks": (len(self.webhooks) + len(self._asked), settings.webhooks_max),
            "of one owner": (max(self._owned.values(), default=0), settings.per_owner_max),
            "waiting": (max((len(one.waiting) for one in hooks), default=0), settings.waiting_max),
            "timers": (len(self.timers), 3 * len(self.webhooks)),
        }

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Take up webhooks, and what their receivers have."""
        return self.adopt([Entry(key, stored[key], 0) for key in sorted(stored)], now)

    def adopt(self, entries: Sequence[Entry], now: int) -> Sequence[Effect]:
        """Take up what is on disk."""
        effects: list[Effect] = []
        for entry in sorted(entries, key=lambda one: one.key):
            name, _, vid = entry.key[len(PREFIX) :].partition("/")
            if vid:
                if name in self.webhooks and entry.value is not None:
                    self.webhooks[name].taken[vid] = entry.value
            elif entry.value is None:
                effects += self._forget(name)
            elif name not in self.webhooks:
                found = msgspec.msgpack.decode(entry.value, type=StoredWebhook)
                effects += self._begin(name, found, now)
        return effects

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a request, the disk's answer, a frame, or what a receiver said."""
        match given:
            case RegisterWebhook() | RemoveWebhook():
                try:
                    if isinstance(given, RemoveWebhook):
                        return self._remove(given)
                    return self._register(given)
                except RoamcastError as error:
                    return [Failed(given.ticket, error)]
            case WebhookChecked(webhook, reason):
                return self._checked(webhook, reason)
            case Stored(token):
                return self._stored(self._pending.pop(token, None), now)
            case StoreFailed(token, reason):
                asked = self._pending.pop(token, None)
                self._unask(asked)
                return [] if asked is None else [Failed(asked.ticket, StoreError(reason))]
            case WebhookFrame(webhook, data):
                hook = self.webhooks.get(webhook)
                return () if hook is None else self._read(hook, data, now)
            case WebhookAnswered(webhook, number, status):
                return self._answered(webhook, number, status, now)
            case SessionClosed(session):
                hook = self.webhooks.get(session.partition(SESSION)[2])
                if hook is not None and hook.session == session:
                    self._lose(hook)
                    self.timers.set(_Due("reopen", hook.id), now + REOPEN_US)
                return ()
            case _:
                raise AssertionError(f"webhooks take no {type(given).__name__}")

    def advance(self, now: int) -> Sequence[Effect]:
        """Send again, open again, and end what is over."""
        effects: list[Effect] = []
        for due in self.timers.due(now):
            hook = self.webhooks[due.webhook]
            if due.kind == "expire":
                effects += self._end(hook, "webhook over")
            elif due.kind == "reopen":
                effects += self._open(hook, now)
            elif hook.sent is not None:
                effects.append(self._post(hook, hook.sent, now))
        return effects

    def owned_by(self, owner: str) -> list[Webhook]:
        """Give the webhooks of an owner."""
        return [one for one in self.webhooks.values() if one.stored.owner == owner]

    def _register(self, given: RegisterWebhook) -> list[Effect]:
        settings = self.settings
        if self._owned.get(given.owner, 0) >= settings.per_owner_max:
            raise LimitError(f"one subject has at most {settings.per_owner_max} webhooks: end one")
        if len(self.webhooks) + len(self._asked) >= settings.webhooks_max:
            raise LimitError(f"the service holds at most {settings.webhooks_max} webhooks")
        assert given.webhook not in self.webhooks
        self._asked[given.webhook] = given
        self._owned[given.owner] = self._owned.get(given.owner, 0) + 1
        return [CheckWebhook(given.webhook, given.url)]

    def _unask(self, asked: RegisterWebhook | RemoveWebhook | None) -> None:
        if asked is not None and self._asked.pop(asked.webhook, None) is not None:
            self._disown(asked.owner)

    def _disown(self, owner: str) -> None:
        self._owned[owner] -= 1
        if not self._owned[owner]:
            del self._owned[owner]

    def _checked(self, webhook: str, reason: str) -> list[Effect]:
        asked = self._asked.get(webhook)
        if asked is None:
            return []
        if reason:
            self._unask(asked)
            return [Failed(asked.ticket, ConflictError(reason))]
        value = _stored(asked)
        return [self._ask_disk(asked, [(PREFIX + webhook, msgspec.msgpack.encode(value))])]

    def _remove(self, given: RemoveWebhook) -> list[Effect]:
        hook = self.webhooks.get(given.webhook)
        if hook is None or (hook.stored.owner != given.owner and not given.any_owner):
            raise NotFoundError(f"you have no webhook {given.webhook[:100]!r}")
        return [self._ask_disk(given, _erasing(hook))]

    def _ask_disk(
        self, asked: RegisterWebhook | RemoveWebhook, writes: list[tuple[str, bytes | None]]
    ) -> Store:
        self._token += 1
        self._pending[self._token] = asked
        return Store(self._token, tuple(writes))

    def _stored(self, asked: RegisterWebhook | RemoveWebhook | None, now: int) -> list[Effect]:
        if asked is None:  # what a receiver has taken is on disk
            return []
        if isinstance(asked, RemoveWebhook):
            return [*self._forget(asked.webhook), Acknowledged(asked.ticket)]
        self._unask(asked)
        return [Acknowledged(asked.ticket, True), *self._begin(asked.webhook, _stored(asked), now)]

    def _begin(self, webhook: str, stored: StoredWebhook, now: int) -> list[Effect]:
        hook = self.webhooks[webhook] = Webhook(webhook, stored, {}, {})
        self._owned[stored.owner] = self._owned.get(stored.owner, 0) + 1
        self.timers.set(_Due("expire", webhook), stored.expires_us)
        return self._open(hook, now)

    def _open(self, hook: Webhook, now: int) -> list[Effect]:
        """Open its session; the timer looks whether that came to something."""
        self.timers.set(_Due("reopen", hook.id), now + REOPEN_US)
        owner, groups = hook.stored.owner, frozenset(hook.stored.groups)
        return [SessionRequested(hook.session, owner, groups), *self._subscribe(hook)]

    def _subscribe(self, hook: Webhook) -> list[Effect]:
        wanted = Filter.parse(hook.stored.filter)
        asked: Any = SubscribeSession(0, hook.session, "webhook", wanted, everywhere=True)
        return [asked]

    def _lose(self, hook: Webhook) -> None:
        """Begin with the current set again."""
        hook.behind, hook.listing = True, None
        hook.waiting.clear()

    def _end(self, hook: Webhook, reason: str) -> list[Effect]:
        return [Store(0, tuple(_erasing(hook))), *self._forget(hook.id), Drop(reason, "webhook")]

    def _forget(self, webhook: str) -> list[Effect]:
        hook = self.webhooks.pop(webhook, None)
        if hook is None:
            return []
        self._disown(hook.stored.owner)
        for kind in ("retry", "reopen", "expire"):
            self.timers.cancel(_Due(kind, webhook))
        return [SessionRequested(hook.session)]

    def _read(self, hook: Webhook, data: bytes, now: int) -> list[Effect]:
        """Take a frame: a current set, the end of one, or changes."""
        for block in data.split(b"\n\n"):
            kind, _, said = block.partition(b"\ndata: ")
            if kind == b"event: current":
                self.timers.cancel(_Due("reopen", hook.id))
                hook.waiting.clear()
                hook.listing, hook.behind, hook.more = {}, False, False
                for feature in _listed(said).features:
                    self._note(hook, _named(feature).id, bytes(feature), now)
            elif kind == b"event: complete" and hook.listing is not None:
                listing, hook.listing = hook.listing, None
                for vid in [vid for vid in hook.taken if vid not in listing]:
                    self._note(hook, vid, None, now)
            elif kind == b"event: change" and not hook.behind:
                event = _event(said)
                state = bytes(event.data)
                self._note(hook, event.subject, None if state == b"null" else state, now)
        return self._send(hook, now)

    def _note(self, hook: Webhook, vid: str, feature: bytes | None, now: int) -> None:
        """Note a context's state; what the receiver has already need not wait."""
        if hook.behind:
            return
        if hook.listing is not None:
            if feature is None:
                hook.listing.pop(vid, None)
            else:
                hook.listing[vid] = None
        sent = hook.sent is not None and vid in hook.sent.digests
        if not sent and hook.taken.get(vid) == _digest(feature):
            hook.waiting.pop(vid, None)
            return
        if vid in hook.waiting or len(hook.waiting) < self.settings.waiting_max:
            hook.waiting[vid] = _Waiting(feature, now)
        else:
            hook.more = True

    def _send(self, hook: Webhook, now: int) -> list[Effect]:
        """Send the next message, if none is on its way and the whole current set is known."""
        if hook.sent is not None or hook.listing is not None:
            return []
        if not hook.waiting:
            if hook.behind or not hook.more:
                return []
            hook.behind = True
            return self._subscribe(hook)
        self._number += 1
        digests: dict[str, bytes | None] = {}
        events: list[bytes] = []
        for vid, waits in hook.waiting.items():
            if len(events) >= self.settings.events_max:
                break
            if sum(map(len, events)) >= self.settings.bytes_max:
                break
            digests[vid] = _digest(waits.feature)
            events.append(self._event(hook, vid, waits, len(events)))
        for vid in digests:
            del hook.waiting[vid]
        hook.sent = _Message(self._number, b"[" + b",".join(events) + b"]", digests)
        return [self._post(hook, hook.sent, now)]

    def _event(self, hook: Webhook, vid: str, waits: _Waiting, index: int) -> bytes:
        kind: EventType = "org.roamcast.context.left"
        if waits.feature is not None:
            known = vid in hook.taken
            kind = "org.roamcast.context.changed" if known else "org.roamcast.context.appeared"
        return msgspec.json.encode(
            CloudEvent(
                specversion="1.0",
                id=f"{self._epoch}-{hook.id}-{self._number}-{index}",
                source="/collections/contexts",
                type=kind,
                subject=vid,
                time=to_datetime(waits.at_us),
                datacontenttype="application/geo+json",
                data=None if waits.feature is None else _raw(waits.feature),
            )
        )

    def _post(self, hook: Webhook, message: _Message, now: int) -> PostWebhook:
        name = f"msg_{self._epoch}-{hook.id}-{message.number}"
        headers = {
            "Content-Type": "application/cloudevents-batch+json",
            **signed(hook.stored.secret, name, now // 1_000_000, message.body),
        }
        return PostWebhook(hook.id, message.number, hook.stored.url, headers, message.body)

    def _answered(self, webhook: str, number: int, status: int, now: int) -> list[Effect]:
        hook = self.webhooks.get(webhook)
        if hook is None or hook.sent is None or hook.sent.number != number:
            return []
        if status == GONE:
            return self._end(hook, "webhook gone")
        if status not in TAKEN:
            return self._failed(hook, now)
        digests, hook.sent, hook.failures = hook.sent.digests, None, 0
        for vid, digest in digests.items():
            if digest is None:
                hook.taken.pop(vid, None)
            else:
                hook.taken[vid] = digest
            later = hook.waiting.get(vid)
            if later is not None and _digest(later.feature) == digest:
                del hook.waiting[vid]
        writes = tuple((f"{PREFIX}{webhook}/{vid}", digest) for vid, digest in digests.items())
        return [Store(0, writes), *self._send(hook, now)]

    def _failed(self, hook: Webhook, now: int) -> list[Effect]:
        """Try again after a pause that doubles, and is never the same for all."""
        settings = self.settings
        if not hook.failures:
            hook.failing_since = now
        hook.failures += 1
        if now - hook.failing_since >= settings.give_up_us:
            return self._end(hook, "webhook unreachable")
        pause = min(settings.retry_us << min(hook.failures - 1, 40), settings.retry_us_max)
        mark = hashlib.blake2b(f"{hook.id} {hook.failures}".encode(), digest_size=2).digest()
        spread = pause * int.from_bytes(mark, "big") // (4 * 65_536)  # up to a quarter more
        self.timers.set(_Due("retry", hook.id), now + pause + spread)
        return []


def signed(secret: str, name: str, seconds: int, body: bytes) -> dict[str, str]:
    """Give the headers of Standard Webhooks for a message."""
    key = base64.b64decode(secret.removeprefix(SECRET))
    mac = hmac.new(key, f"{name}.{seconds}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": name,
        "webhook-timestamp": str(seconds),
        "webhook-signature": f"v1,{base64.b64encode(mac).decode()}",
    }


def _digest(feature: bytes | None) -> bytes | None:
    return None if feature is None else hashlib.blake2b(feature, digest_size=12).digest()


def _stored(asked: RegisterWebhook) -> StoredWebhook:
    return StoredWebhook(
        asked.owner,
        tuple(sorted(asked.groups)),
        asked.url,
        asked.secret,
        asked.filter,
        asked.expires_us,
        asked.tokens,
    )


def _erasing(hook: Webhook) -> list[tuple[str, bytes | None]]:
    vids = {**hook.taken, **({} if hook.sent is None else hook.sent.digests)}
    return [(PREFIX + hook.id, None), *((f"{PREFIX}{hook.id}/{vid}", None) for vid in vids)]
