"""Casts that wait for a second person's consent, as a part of a broker.

A cast to many is held here, on disk, until somebody else agrees; then it is sent as if it had come
that moment. It is forgotten when the sender takes it back, the second person refuses, or nobody has
agreed in time. Who may consent, and when one is needed, is decided before (`live/casts/consent`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

import msgspec

from roamcast.errors import (
    ConflictError,
    ForbiddenError,
    LimitError,
    NotFoundError,
    RoamcastError,
    StoreError,
)
from roamcast.identity.rules import Viewer
from roamcast.model import casts as model
from roamcast.model.casts import Cast
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.machine import Effect, Entry, Input, Store, Stored, StoreFailed, Writes
from roamcast.model.parts import Occupancy, Part, Timers
from roamcast.model.records import CastStep
from roamcast.overlay.casts.held import name_of
from roamcast.overlay.casts.messages import SendCast

PREFIX: Final = "consents/"
REQUESTS_MAX: Final = 200
SENDER_REQUESTS_MAX: Final = 20
"""Casts that wait for consent at a node, and of one sender."""

RETRY_US: Final = 1_000_000
"""Delay before it is looked whether a cast that was consented to is held."""


class ConsentRequest(msgspec.Struct, frozen=True):
    """A cast that waits for a second person."""

    cast: Cast
    sender: str
    groups: tuple[str, ...]
    kind: str
    policy: str
    priority: int
    about: int
    """About how many it would reach; 0: not known."""
    asked_us: int
    until_us: int
    """When it is forgotten unless somebody has consented."""


class AskConsent(Input, frozen=True):
    """Hold a cast until a second person consents; acknowledged once it is on disk."""

    ticket: int
    request: ConsentRequest


class GiveConsent(Input, frozen=True):
    """A second person agrees: send it; answered as `SendCast` is."""

    ticket: int
    cast: str
    viewer: Viewer


class EndConsent(Input, frozen=True):
    """The sender takes it back, or a second person refuses."""

    ticket: int
    cast: str
    viewer: Viewer


ConsentTimer = tuple[Literal["expired", "sent"], str]


class Consents(Part):
    """The casts that wait for consent."""

    part: ClassVar[str] = "consents"
    inputs: ClassVar = (AskConsent, GiveConsent, EndConsent)
    prefix: ClassVar[str] = PREFIX

    def __init__(self, is_known: Callable[[str], bool]) -> None:
        """`is_known`: whether a cast is held, or over."""
        self.requests: dict[str, ConsentRequest] = {}
        self.timers: Timers[ConsentTimer] = Timers()
        self._is_known = is_known
        self._writing: dict[int, Callable[[bool, int], Sequence[Effect]]] = {}
        self._asked: dict[str, str] = {}
        """Casts on their way to the disk → their senders."""
        self._given: set[str] = set()
        """Casts that were just consented to: sent, or refused by the disk, in a moment."""
        self._token = 0

    def waiting(self) -> dict[str, ConsentRequest]:
        """Give what waits; a cast that was consented to is sent, and waits no more."""
        return {cast: one for cast, one in self.requests.items() if not self._is_known(cast)}

    def occupancy(self) -> Occupancy:
        """How many wait."""
        return {"requests": (len(self.requests) + len(self._asked), REQUESTS_MAX)}

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Take up what waits."""
        for value in stored.values():
            self._hold(msgspec.msgpack.decode(value, type=ConsentRequest), now)
        return ()

    def adopt(self, entries: Sequence[Entry], now: int) -> Sequence[Effect]:
        """Take up what another host of this node has."""
        for entry in entries:
            if entry.value is not None:
                self._hold(msgspec.msgpack.decode(entry.value, type=ConsentRequest), now)
        return ()

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a request, a consent or a refusal, or hear of the disk."""
        match given:
            case AskConsent(ticket) | GiveConsent(ticket) | EndConsent(ticket):
                try:
                    return self._asked_for(given, now)
                except RoamcastError as error:
                    return [Failed(ticket, error)]
            case Stored(token) | StoreFailed(token):
                return self._writing.pop(token)(isinstance(given, Stored), now)
            case _:
                raise AssertionError(f"consents take no {type(given).__name__}")

    def advance(self, now: int) -> Sequence[Effect]:
        """Forget what nobody consented to in time, and what is sent."""
        effects: list[Effect] = []
        for what, cast in list(self.timers.due(now)):
            if cast not in self.requests:
                continue
            if self._is_known(cast):
                effects += self._forget(cast, [], [])
            elif what == "sent":
                self._given.discard(cast)
            elif cast in self._given:
                self.timers.set((what, cast), now + RETRY_US)
            else:
                effects += self._forget(cast, [CastStep(cast, "nobody consented in time")], [])
        return effects

    def _asked_for(self, given: AskConsent | GiveConsent | EndConsent, now: int) -> list[Effect]:
        if isinstance(given, AskConsent):
            return self._ask(given)
        request = self.requests.get(given.cast)
        if request is None:
            raise NotFoundError(f"no cast {given.cast[:60]!r} waits for consent here")
        if isinstance(given, GiveConsent):
            return self._give(given, request, now)
        if given.cast in self._given or self._is_known(given.cast):
            raise ConflictError("a second person has consented: it is sent, and may be cancelled")
        own = given.viewer.name == request.sender
        step = CastStep(given.cast, "taken back" if own else "a second person refused")
        return self._forget(
            given.cast,
            [Acknowledged(given.ticket), step],
            [Failed(given.ticket, StoreError("the disk refused it"))],
        )

    def _ask(self, given: AskConsent) -> list[Effect]:
        request = given.request
        cast, sender = request.cast, request.sender
        model.check(cast)
        if cast.id in self.requests or cast.id in self._asked or self._is_known(cast.id):
            raise ConflictError("this id is another cast's, or it waits for consent already")
        if len(self.requests) + len(self._asked) >= REQUESTS_MAX:
            raise LimitError(f"{REQUESTS_MAX} casts wait for consent: try again later")
        own = [*(one.sender for one in self.requests.values()), *self._asked.values()]
        if own.count(sender) >= SENDER_REQUESTS_MAX:
            raise LimitError(f"{SENDER_REQUESTS_MAX} casts of yours wait for consent")

        def then(done: bool, now: int) -> Sequence[Effect]:
            del self._asked[cast.id]
            if not done:
                return [Failed(given.ticket, StoreError("the disk refused the cast"))]
            self._hold(request, now)
            return [Acknowledged(given.ticket, fresh=True), CastStep(cast.id, "asks for consent")]

        self._asked[cast.id] = sender
        return [self._store(((_key(cast.id), msgspec.msgpack.encode(request)),), then)]

    def _give(self, given: GiveConsent, request: ConsentRequest, now: int) -> list[Effect]:
        if given.viewer.name == request.sender:
            raise ForbiddenError("you sent this cast: a second person consents")
        if request.cast.expires is not None and request.cast.expires <= now:
            raise ConflictError("this cast has expired")
        # Once the cast is held it is forgotten here; after a crash it may be consented to again,
        # which sends nothing twice, for its id is known.
        self.timers.set(("sent", given.cast), now + RETRY_US)
        self._given.add(given.cast)
        cast = msgspec.structs.replace(request.cast, sent=now)
        sender = Viewer(request.sender, frozenset(request.groups))
        send = SendCast(given.ticket, cast, sender, request.kind, request.policy, request.priority)
        # An input of another part: the router hands it over.
        return [CastStep(given.cast, "a second person consented"), send]  # type: ignore[list-item]

    def _hold(self, request: ConsentRequest, now: int) -> None:
        self.requests[request.cast.id] = request
        self.timers.set(("expired", request.cast.id), max(now + 1, request.until_us))
        self.timers.set(("sent", request.cast.id), now + RETRY_US)

    def _forget(
        self, cast: str, done_effects: list[Effect], failed_effects: list[Effect]
    ) -> list[Effect]:
        """Delete a request; what follows depends on the disk."""
        request = self.requests.pop(cast)
        self._given.discard(cast)

        def then(done: bool, now: int) -> Sequence[Effect]:
            if not done:
                self._hold(request, now)
                self.timers.set(("expired", cast), max(now + RETRY_US, request.until_us))
                return failed_effects
            return done_effects

        for what in ("expired", "sent"):
            self.timers.cancel((what, cast))
        return [self._store(((_key(cast), None),), then)]

    def _store(self, writes: Writes, then: Callable[[bool, int], Sequence[Effect]]) -> Effect:
        self._token += 1
        self._writing[self._token] = then
        return Store(self._token, writes)


def _key(cast: str) -> str:
    return PREFIX + name_of(cast)
