"""Publications that the broker stores for those who have no machine of their own.

AMS's state is soft: a client that lives publishes everything again to a restarted server. Whoever
publishes by HTTP or from a browser cannot, so the broker stores their contexts: on disk first, then
on the map, then acknowledged (decision 0077). A context leaves with its lifetime, when its
publisher unpublishes it, or a while after the session it belongs to. Its vid stays its publisher's
for a while: a claim takes the place of the publication on disk (decision 0090).
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from roamcast.channels.past.messages import PastGrew
from roamcast.channels.past.part import FirstStep, Past
from roamcast.channels.server.contexts import taken
from roamcast.channels.server.map_server import MapServer
from roamcast.channels.server.messages import CONTEXT_BYTES_MAX
from roamcast.errors import (
    ContextError,
    LimitError,
    NotFoundError,
    RoamcastError,
    StoreError,
)
from roamcast.model.contexts import Context, body_of, context_of
from roamcast.model.events import (
    Acknowledged,
    Failed,
    MapTouched,
    PublicationReplaced,
    SessionClosed,
    SessionOpened,
)
from roamcast.model.items import is_item
from roamcast.model.machine import Effect, Entry, Input, Store, Stored, StoreFailed, Writes
from roamcast.model.parts import Occupancy, Part, Timers
from roamcast.model.records import Drop

PREFIX: Final = "publication/"
RETRY_US: Final = 100_000
"""Retry delay for expiring a publication that has a write on its way."""


class PublishFor(Input, frozen=True):
    """Publish a context for an owner: for a lifetime, or as long as a session is open."""

    ticket: int
    owner: str
    context: Context
    session: str = ""
    lifetime_us: int | None = None


class UnpublishFor(Input, frozen=True):
    """Take an owner's publication off the map."""

    ticket: int
    owner: str
    vid: str
    any_owner: bool = False


class PublicationSettings(msgspec.Struct, frozen=True):
    """Bounds; intervals in microseconds."""

    publications_per_owner_max: int = 100_000
    rule_names_per_owner_max: int = 1_000_000
    """Most viewers and attributes that the rules of one owner name in all."""
    lifetime_us_default: int = 24 * 3_600_000_000
    lifetime_us_max: int = 366 * 24 * 3_600_000_000
    session_grace_us: int = 30_000_000
    """How long a publication outlasts its session, for the session to come back."""
    claim_us: int = 30 * 24 * 3_600_000_000
    """How long nobody else may publish under a vid that has left the map."""


class StoredPublication(msgspec.Struct, frozen=True, array_like=True):
    """A publication on disk: who published it, since when, until when or with which session.

    Without a body it is a claim: the context has left the map, its vid is still the owner's.
    """

    owner: str
    stamp: int
    expires_us: int
    session: str
    body: bytes
    first: FirstStep | None = None
    """The step of the past with which this state began; none for a claim."""


class _Writing(msgspec.Struct):
    """A vid with writes on their way to the disk: whose they are, and how many."""

    owner: str
    writes: int = 0


class _Pending(msgspec.Struct, frozen=True):
    """A request that waits for the disk; the publication is none where one is taken away."""

    given: PublishFor | UnpublishFor | None
    """None where the publication has ended by itself."""
    publication: StoredPublication | None
    steps: Writes = ()
    """The steps of the past that are written with it."""


class StoredPublications(Part):
    """The contexts that a broker publishes on others' behalf."""

    part: ClassVar[str] = "publications"
    inputs: ClassVar = (PublishFor, UnpublishFor, SessionOpened, SessionClosed, PublicationReplaced)
    prefix: ClassVar[str] = PREFIX

    def __init__(self, server: MapServer, settings: PublicationSettings, past: Past) -> None:
        self.publications: dict[str, StoredPublication] = {}
        self.settings = settings
        self._server = server
        self._map = server.contexts
        self._past = past
        past.depends(lambda: len(self._of_session))
        self.claims: dict[str, str] = {}
        """Vids that have left the map → whose they still are."""
        self._claims_of: dict[str, dict[str, None]] = {}
        """Owners → their claims, the oldest first."""
        server.contexts.claims = self.claims
        server.contexts.is_stored = self.holds
        self._owned: dict[str, int] = {}
        self._open: dict[str, None] = {}
        """Sessions that are open."""
        self._closed: dict[str, int] = {}
        """Sessions with publications that have closed in this life, and when."""
        self._of_session: dict[str, dict[str, None]] = {}
        self.timers: Timers[str] = Timers()
        self._writing: dict[str, _Writing] = {}
        self._ending: dict[str, int] = {}
        """Vids whose publisher ends them → how many such writes are on their way."""
        self._pending: dict[int, _Pending] = {}
        self._token = 0

    def occupancy(self) -> Occupancy:
        """How much is held; writes on their way are bounded by the disk part."""
        most = max(self._owned.values(), default=0)
        claims = max(map(len, self._claims_of.values()), default=0)
        bound = self.settings.publications_per_owner_max
        held, room = len(self.publications), self._server.settings.contexts_max
        owners, claimed = len(self._claims_of), len(self.claims)
        return {
            "of one owner": (most, bound),
            "claims of one owner": (claims, bound),
            "claims": (claimed, owners * bound),
            "publications": (held, room),
            "owners": (len(self._owned), held),
            "bound to a session": (sum(map(len, self._of_session.values())), held),
            "closed sessions": (len(self._closed), len(self._of_session)),
            "timers": (len(self.timers), held + claimed),
            "writes": (len(self._pending), room),
            "vids being written": (len(self._writing), len(self._pending)),
            "vids being ended": (len(self._ending), len(self._pending)),
        }

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Publish again what was on disk; sessions get their grace to come back."""
        self._server.desk.now = now
        decoder = msgspec.msgpack.Decoder(StoredPublication)
        effects: list[Effect] = []
        for key in sorted(stored):
            effects += self._take_up(key[len(PREFIX) :], decoder.decode(stored[key]), now)
        return effects

    def adopt(self, entries: Sequence[Entry], now: int) -> Sequence[Effect]:
        """Take over what a replica had newer."""
        self._server.desk.now = now
        effects: list[Effect] = []
        for entry in entries:
            vid = entry.key[len(PREFIX) :]
            if entry.value is None:
                self._adopt_end(vid, now)
                self._unclaim(vid)
            else:
                publication = msgspec.msgpack.decode(entry.value, type=StoredPublication)
                if not publication.body:
                    self._adopt_end(vid, now)
                effects += self._take_up(vid, publication, now, adopted=True)
        return [MapTouched(), *effects]

    def _adopt_end(self, vid: str, now: int) -> None:
        """A replica knows that a publication has ended, and when: that is in the log."""
        if self._shows(vid):
            self._past.end(vid, self.publications[vid].owner, now, now)
        self._remove(vid)

    def _shows(self, vid: str) -> bool:
        """Whether the map shows a vid as it is stored here."""
        known, here = self.publications.get(vid), self._map.map.contexts.get(vid)
        return known is not None and here is not None and here.owner == known.owner

    def _take_up(
        self, vid: str, stored: StoredPublication, now: int, *, adopted: bool = False
    ) -> list[Effect]:
        """Take up what is on disk: a publication, or a claim."""
        if stored.body:
            return self._publish(self._with_grace(stored, now), adopted=adopted)
        self._remove(vid)
        return self._claim(vid, stored)

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a request, the disk's answer, or what happened to a session."""
        match given:
            case PublishFor() | UnpublishFor():
                return self._ask(given, now)
            case Stored(token):
                return self._stored(self._pending.pop(token), now)
            case StoreFailed(token, reason):
                return self._failed(self._pending.pop(token), reason)
            case SessionOpened(session):
                self._open[session] = None
                self._closed.pop(session, None)
                for vid in self._of_session.get(session, ()):
                    self.timers.cancel(vid)
            case SessionClosed(session):
                self._open.pop(session, None)
                if session in self._of_session:
                    self._closed[session] = now
                for vid in self._of_session.get(session, ()):
                    self.timers.set(vid, now + self.settings.session_grace_us)
            case PublicationReplaced(vid, owner):
                # A write on its way decides when it is on disk.
                return [] if vid in self._writing else self._replaced(vid, owner, now)
            case _:
                raise AssertionError(f"publications take no {type(given).__name__}")
        return ()

    def advance(self, now: int) -> Sequence[Effect]:
        """Take off what has outlived its time; a crash before the disk knows removes it again.

        A removal behind a write on its way would undo that write on disk: it waits its turn.
        """
        outcomes: list[Effect] = []
        self._server.desk.now = now
        for vid in self.timers.due(now):
            if vid in self._writing:
                self.timers.set(vid, now + RETRY_US)
                continue
            if vid in self.claims:
                self._unclaim(vid)
                outcomes.append(Store(0, ((PREFIX + vid, None),)))
                continue
            outcomes += [*self._give_up(vid, now), Drop("lifetime over", "publication")]
        return [MapTouched(), *outcomes]

    def holds(self, vid: str, owner: str) -> bool:
        """Whether a context is published here for this owner."""
        known = self.publications.get(vid)
        return known is not None and known.owner == owner

    def check_owner(self, vid: str, owner: str) -> None:
        """Refuse to change what somebody else publishes, or is about to."""
        writing = self._writing.get(vid)
        if writing is not None and writing.owner != owner:
            raise taken(vid)
        self._map.check_owner(vid, owner)

    def _ask(self, given: PublishFor | UnpublishFor, now: int) -> list[Effect]:
        """Check what is asked and ask the disk; refuse with the reason before anything changes."""
        publication: StoredPublication | None = None
        value: bytes | None = None
        steps: Writes = ()
        try:
            if isinstance(given, PublishFor):
                vid = given.context.vid
                publication, steps = self._check(given, now)
                value = msgspec.msgpack.encode(publication)
                self._map.map.reserve(vid)
                self._writing.setdefault(vid, _Writing(given.owner)).writes += 1
            else:
                vid = given.vid
                self._check_published(given.owner, vid, given.any_owner)
                if self._shows(vid):
                    steps = self._past.end_of(vid, now, now)
                self._ending[vid] = self._ending.get(vid, 0) + 1
                if not given.any_owner:  # an operator frees the vid
                    publication = self._claim_of(given.owner, vid, now)
                    value = msgspec.msgpack.encode(publication)
        except RoamcastError as error:
            return [Failed(given.ticket, error)]
        return [self._write(_Pending(given, publication, steps), vid, value)]

    def _write(self, pending: _Pending, vid: str, value: bytes | None) -> Store:
        self._token += 1
        self._pending[self._token] = pending
        return Store(self._token, ((PREFIX + vid, value), *pending.steps))

    def _check(self, given: PublishFor, now: int) -> tuple[StoredPublication, Writes]:
        """Give what to write for a publication, with its step of the past, or refuse it."""
        context, owner, settings = given.context, given.owner, self.settings
        if context.place is None and context.point is None and not is_item(context):
            raise ContextError("a context on the map needs a place or a point")
        body = body_of(context)
        if len(body) > CONTEXT_BYTES_MAX:
            raise LimitError(f"a context has at most {CONTEXT_BYTES_MAX} bytes")
        if self._map.check_place is not None:
            self._map.check_place(context.place, context.point)
        self.check_owner(context.vid, owner)
        known = self.publications.get(context.vid)
        most = settings.publications_per_owner_max
        if (known is None or known.owner != owner) and self._owned.get(owner, 0) >= most:
            raise LimitError(f"one publisher has at most {most} contexts on the map")
        lifetime = given.lifetime_us
        if lifetime is None:
            lifetime = settings.lifetime_us_default
        if not 0 < lifetime <= settings.lifetime_us_max:
            longest = settings.lifetime_us_max // 1_000_000
            raise LimitError(f"a lifetime is more than 0 and at most {longest} seconds")
        stamp = max(now, self._map.map.stamp(context.vid) + 1)
        if known is not None:
            stamp = max(stamp, known.stamp + 1)
        expires_us = 0 if given.session else now + lifetime
        alone = context.vid not in self._writing and context.vid not in self._ending
        said = self._map.shown_body(context, body)
        first, steps = self._past.step_for(context, said, now, alone=alone)
        return StoredPublication(owner, stamp, expires_us, given.session, body, first), steps

    def _check_published(self, owner: str, vid: str, any_owner: bool) -> None:
        known = self.publications.get(vid)
        if any_owner and vid in self.claims:
            return
        if known is None or (known.owner != owner and not any_owner):
            # The same for both: whether somebody else has it may be hidden from who asks.
            raise NotFoundError(f"you have published no context {vid[:100]!r}")

    def _stored(self, pending: _Pending, now: int) -> list[Effect]:
        given, publication = pending.given, pending.publication
        if given is None:
            return []
        self._server.desk.now = now
        fresh = False
        if isinstance(given, PublishFor):
            assert publication is not None
            fresh = given.context.vid not in self._map.map.contexts
            effects = self._publish(self._with_grace(publication, now), given.context)
            self._settled(given.context.vid)
        else:
            self._not_ending(given.vid)
            if pending.steps:
                self._past.gone(given.vid, now)
            self._remove(given.vid)
            self._unclaim(given.vid)
            effects = [] if publication is None else self._claim(given.vid, publication)
        return [MapTouched(), *effects, Acknowledged(given.ticket, fresh)]

    def _claim_of(self, owner: str, vid: str, now: int) -> StoredPublication:
        stamp = max(now, self._map.map.stamp(vid) + 1)
        return StoredPublication(owner, stamp, now + self.settings.claim_us, "", b"")

    def _give_up(self, vid: str, now: int) -> list[Effect]:
        """Take a publication off the map, and leave its owner's claim in its place."""
        claim = self._claim_of(self.publications[vid].owner, vid, now)
        steps: Writes = ()
        if self._shows(vid):
            ended = self._ended(self.publications[vid], now)
            steps = self._past.end_of(vid, ended, now)
            self._past.gone(vid, ended)
        self._remove(vid)
        store = self._write(_Pending(None, None, steps), vid, msgspec.msgpack.encode(claim))
        return [store, *self._claim(vid, claim)]

    def _ended(self, publication: StoredPublication, now: int) -> int:
        """Say when a publication ended that nobody ended: when its publisher was last heard of.

        That is when its session closed, or when the life before this one fell. A lifetime is what
        the publisher has said: until then it was there.
        """
        if publication.session:
            return self._closed.get(publication.session, self._past.fell_us)
        return min(now, publication.expires_us or now)

    def _claim(self, vid: str, claim: StoredPublication) -> list[Effect]:
        """Let nobody else publish under a vid for a while; beyond the bound the oldest ends."""
        self._unclaim(vid)
        self.claims[vid] = claim.owner
        claims = self._claims_of.setdefault(claim.owner, {})
        claims[vid] = None
        self.timers.set(vid, claim.expires_us)
        if len(claims) <= self.settings.publications_per_owner_max:
            return []
        oldest = next(iter(claims))
        self._unclaim(oldest)
        return [Store(0, ((PREFIX + oldest, None),))]

    def _unclaim(self, vid: str) -> None:
        owner = self.claims.pop(vid, None)
        if owner is not None:
            self.timers.cancel(vid)
            del self._claims_of[owner][vid]
            if not self._claims_of[owner]:
                del self._claims_of[owner]

    def _replaced(self, vid: str, owner: str, now: int) -> list[Effect]:
        """Another way of the subject has the context now: the disk must not bring ours back."""
        here = self._map.map.contexts.get(vid)
        if not self.holds(vid, owner) or (here is not None and here.owner == owner):
            return []
        return self._give_up(vid, now)

    def _failed(self, pending: _Pending, reason: str) -> list[Effect]:
        if pending.given is None:  # the claim is lost; the end must not be
            self._past.again(pending.steps)
            return [PastGrew()]
        if isinstance(pending.given, PublishFor):
            self._settled(pending.given.context.vid)
        else:
            self._not_ending(pending.given.vid)
        return [Failed(pending.given.ticket, StoreError(reason))]

    def _not_ending(self, vid: str) -> None:
        self._ending[vid] -= 1
        if not self._ending[vid]:
            del self._ending[vid]

    def _settled(self, vid: str) -> None:
        """One write of a publication has reached the disk, or never will."""
        self._writing[vid].writes -= 1
        if not self._writing[vid].writes:
            del self._writing[vid]
            self._map.map.release(vid)

    def _with_grace(self, publication: StoredPublication, now: int) -> StoredPublication:
        """Let a publication whose session is not open expire, if that does not come back."""
        if not publication.session or publication.session in self._open:
            return publication
        expires_us = now + self.settings.session_grace_us
        return msgspec.structs.replace(publication, expires_us=expires_us)

    def _publish(
        self,
        publication: StoredPublication,
        context: Context | None = None,
        *,
        adopted: bool = False,
    ) -> list[Effect]:
        """Put a publication on the map; its body is decoded only if the context is not at hand."""
        if context is None:
            context = context_of(publication.body)
        vid = context.vid
        self._unclaim(vid)
        before = self.publications.get(vid)
        if before is not None:
            self._disown(before.owner)
            self._bind(vid, before.session, bound=False)
        self.publications[vid] = publication
        self._owned[publication.owner] = self._owned.get(publication.owner, 0) + 1
        self._bind(vid, publication.session, bound=True)
        if publication.expires_us:
            self.timers.set(vid, publication.expires_us)
        else:
            self.timers.cancel(vid)
        owner, body = publication.owner, publication.body
        if self._map.put_for(owner, context, body, publication.stamp, stored=True):
            self._remember(publication, context, adopted)
            return []
        contexts = self._map.map
        known = contexts.contexts.get(vid) or contexts.removed.get(vid)
        if known is not None and known.owner == owner:
            # 0078: the disk decides between writes. Where a replica's clock is behind, the write
            # that outranks ours there has an earlier stamp here: ours must not stay on the map.
            if self._map.put_for(owner, context, body, known.stamp + 1, stored=True):
                self._remember(publication, context, adopted)
            return []
        if vid in self._writing and self._writing[vid].writes > 1:
            return []  # the last of them decides
        self._past.correct(vid, self._server.desk.now)  # its step is on disk, and never came true
        return self._replaced(vid, owner, self._server.desk.now)

    def _remember(self, publication: StoredPublication, context: Context, adopted: bool) -> None:
        """The map shows a publication: its step is on disk, or is written soon."""
        owner, first = publication.owner, publication.first
        assert first is not None  # only a claim has none
        if adopted:
            body = self._map.shown_body(context, publication.body)
            self._past.adopt_state(context, body, owner, first, self._server.desk.now)
        else:
            self._past.stored(context, first)

    def _remove(self, vid: str) -> None:
        """A publication is gone from disk: take it off the map."""
        known = self.publications.pop(vid, None)
        if known is None:
            return
        self.timers.cancel(vid)
        self._disown(known.owner)
        self._bind(vid, known.session, bound=False)
        self._map.withdraw(known.owner, vid, stored=True)

    def _disown(self, owner: str) -> None:
        self._owned[owner] -= 1
        if not self._owned[owner]:
            del self._owned[owner]

    def _bind(self, vid: str, session: str, *, bound: bool) -> None:
        if not session:
            return
        vids = self._of_session.setdefault(session, {})
        if bound:
            vids[vid] = None
        else:
            vids.pop(vid, None)
        if not vids:
            del self._of_session[session]
            self._closed.pop(session, None)
