"""Publications that the broker stores for those who have no machine of their own.

AMS's state is soft: a client that lives publishes everything again to a restarted server. Whoever
publishes by HTTP or from a browser cannot, so the broker stores their contexts: on disk first, then
on the map, then acknowledged (decision 0077). A context leaves with its lifetime, when its
publisher unpublishes it, or a while after the session it belongs to.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from roamcast.channels.server.map_server import MapServer
from roamcast.channels.server.messages import CONTEXT_BYTES_MAX, body_of, context_of
from roamcast.channels.timers import Timers
from roamcast.errors import (
    ConflictError,
    ContextError,
    LimitError,
    NotFoundError,
    RoamcastError,
    StoreError,
)
from roamcast.model.contexts import Context
from roamcast.model.events import Acknowledged, Failed, MapTouched, SessionClosed, SessionOpened
from roamcast.model.machine import Effect, Entry, Input, Store, Stored, StoreFailed
from roamcast.model.parts import Occupancy, Part
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
    lifetime_us_default: int = 24 * 3_600_000_000
    lifetime_us_max: int = 366 * 24 * 3_600_000_000
    session_grace_us: int = 30_000_000
    """How long a publication outlasts its session, for the session to come back."""


class StoredPublication(msgspec.Struct, frozen=True, array_like=True):
    """A publication on disk: who published it, since when, until when or with which session."""

    owner: str
    stamp: int
    expires_us: int
    session: str
    body: bytes


class _Writing(msgspec.Struct):
    """A vid with writes on their way to the disk: whose they are, and how many."""

    owner: str
    writes: int = 0


class _Pending(msgspec.Struct, frozen=True):
    """A request that waits for the disk; the publication is none where one is taken away."""

    given: PublishFor | UnpublishFor
    publication: StoredPublication | None


class StoredPublications(Part):
    """The contexts that a broker publishes on others' behalf."""

    part: ClassVar[str] = "publications"
    inputs: ClassVar = (PublishFor, UnpublishFor, SessionOpened, SessionClosed)
    prefix: ClassVar[str] = PREFIX

    def __init__(self, server: MapServer, settings: PublicationSettings) -> None:
        self.publications: dict[str, StoredPublication] = {}
        self.settings = settings
        self._server = server
        self._map = server.contexts
        self._owned: dict[str, int] = {}
        self._open: dict[str, None] = {}
        """Sessions that are open."""
        self._of_session: dict[str, dict[str, None]] = {}
        self._timers: Timers[str] = Timers()
        self._writing: dict[str, _Writing] = {}
        self._pending: dict[int, _Pending] = {}
        self._token = 0

    def occupancy(self) -> Occupancy:
        """How much is held; writes on their way are bounded by the disk part."""
        most = max(self._owned.values(), default=0)
        return {"of one owner": (most, self.settings.publications_per_owner_max)}

    def restore(self, stored: Mapping[str, bytes], now: int) -> None:
        """Publish again what was on disk; sessions get their grace to come back."""
        self._server.desk.now = now
        decoder = msgspec.msgpack.Decoder(StoredPublication)
        for key in sorted(stored):
            self._publish(self._with_grace(decoder.decode(stored[key]), now))

    def adopt(self, entries: Sequence[Entry], now: int) -> Sequence[Effect]:
        """Take over what a replica had newer."""
        self._server.desk.now = now
        for entry in entries:
            if entry.value is None:
                self._remove(entry.key[len(PREFIX) :])
            else:
                publication = msgspec.msgpack.decode(entry.value, type=StoredPublication)
                self._publish(self._with_grace(publication, now))
        return [MapTouched()]

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
                for vid in self._of_session.get(session, ()):
                    self._timers.cancel(vid)
            case SessionClosed(session):
                self._open.pop(session, None)
                for vid in self._of_session.get(session, ()):
                    self._timers.set(vid, now + self.settings.session_grace_us)
            case _:
                raise AssertionError(f"publications take no {type(given).__name__}")
        return ()

    def advance(self, now: int) -> Sequence[Effect]:
        """Take off what has outlived its time; a crash before the disk knows removes it again.

        A removal behind a write on its way would undo that write on disk: it waits its turn.
        """
        outcomes: list[Effect] = []
        self._server.desk.now = now
        for vid in self._timers.due(now):
            if vid in self._writing:
                self._timers.set(vid, now + RETRY_US)
                continue
            self._remove(vid)
            outcomes += [Store(0, ((PREFIX + vid, None),)), Drop("lifetime over", "publication")]
        return [MapTouched(), *outcomes]

    def deadline(self) -> int | None:
        """When the next publication expires."""
        return self._timers.deadline()

    def holds(self, vid: str, owner: str) -> bool:
        """Whether a context is published here for this owner."""
        known = self.publications.get(vid)
        return known is not None and known.owner == owner

    def check_owner(self, vid: str, owner: str) -> None:
        """Refuse to change what somebody else publishes, or is about to."""
        writing = self._writing.get(vid)
        if writing is not None and writing.owner != owner:
            raise ConflictError(f"{vid!r} is published by somebody else")
        self._map.check_owner(vid, owner)

    def _ask(self, given: PublishFor | UnpublishFor, now: int) -> list[Effect]:
        """Check what is asked and ask the disk; refuse with the reason before anything changes."""
        publication: StoredPublication | None = None
        value: bytes | None = None
        try:
            if isinstance(given, PublishFor):
                publication = self._check(given, now)
                value = msgspec.msgpack.encode(publication)
                vid = given.context.vid
                self._map.map.reserve(vid)
                self._writing.setdefault(vid, _Writing(given.owner)).writes += 1
            else:
                vid = given.vid
                self._check_published(given.owner, vid, given.any_owner)
        except RoamcastError as error:
            return [Failed(given.ticket, error)]
        self._token += 1
        self._pending[self._token] = _Pending(given, publication)
        return [Store(self._token, ((PREFIX + vid, value),))]

    def _check(self, given: PublishFor, now: int) -> StoredPublication:
        """Give what to write for a publication, or refuse it."""
        context, owner, settings = given.context, given.owner, self.settings
        if context.place is None and context.point is None:
            raise ContextError("a context on the map needs a place or a point")
        body = body_of(context)
        if len(body) > CONTEXT_BYTES_MAX:
            raise LimitError(f"a context has at most {CONTEXT_BYTES_MAX} bytes")
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
        return StoredPublication(owner, stamp, expires_us, given.session, body)

    def _check_published(self, owner: str, vid: str, any_owner: bool) -> None:
        known = self.publications.get(vid)
        if known is None or (known.owner != owner and not any_owner):
            # The same for both: whether somebody else has it may be hidden from who asks.
            raise NotFoundError(f"you have published no context {vid[:100]!r}")

    def _stored(self, pending: _Pending, now: int) -> list[Effect]:
        given, publication = pending.given, pending.publication
        self._server.desk.now = now
        fresh = False
        if isinstance(given, PublishFor):
            assert publication is not None
            fresh = given.context.vid not in self._map.map.contexts
            self._publish(self._with_grace(publication, now), given.context)
            self._settled(given.context.vid)
        else:
            self._remove(given.vid)
        return [MapTouched(), Acknowledged(given.ticket, fresh)]

    def _failed(self, pending: _Pending, reason: str) -> list[Effect]:
        if isinstance(pending.given, PublishFor):
            self._settled(pending.given.context.vid)
        return [Failed(pending.given.ticket, StoreError(reason))]

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

    def _publish(self, publication: StoredPublication, context: Context | None = None) -> None:
        """Put a publication on the map; its body is decoded only if the context is not at hand."""
        if context is None:
            context = context_of(publication.body)
        vid = context.vid
        before = self.publications.get(vid)
        if before is not None:
            self._disown(before.owner)
            self._bind(vid, before.session, bound=False)
        self.publications[vid] = publication
        self._owned[publication.owner] = self._owned.get(publication.owner, 0) + 1
        self._bind(vid, publication.session, bound=True)
        if publication.expires_us:
            self._timers.set(vid, publication.expires_us)
        else:
            self._timers.cancel(vid)
        self._map.put_for(publication.owner, context, publication.body, publication.stamp)

    def _remove(self, vid: str) -> None:
        """A publication is gone from disk: take it off the map."""
        known = self.publications.pop(vid, None)
        if known is None:
            return
        self._timers.cancel(vid)
        self._disown(known.owner)
        self._bind(vid, known.session, bound=False)
        self._map.withdraw(known.owner, vid)

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
