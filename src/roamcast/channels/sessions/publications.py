"""What does the service itself publish, for people without a machine of their own? Kept objects.

AMS's state is soft: a client that lives tells a restarted server everything again. Whoever
publishes by HTTP or from a browser can not, so the service keeps their objects: on disk first, then
on the map, then acknowledged. An object goes with its lifetime, with its publisher's word, or a
while after the session it belongs to.
"""

from collections.abc import Mapping

import msgspec

from roamcast.channels.server.contexts import MapContexts
from roamcast.channels.server.messages import CONTEXT_BYTES_MAX, body_of, context_of
from roamcast.channels.timers import Timers
from roamcast.errors import ConflictError, ContextError, LimitError
from roamcast.model.contexts import Context
from roamcast.model.machine import Effect, Store
from roamcast.model.records import Drop

PREFIX = "object/"
WAIT_US = 100_000
"""What is to go while a write of it is on its way is looked at again so much later."""


class PublicationSettings(msgspec.Struct, frozen=True):
    """Bounds; intervals in microseconds."""

    publications_per_owner_max: int = 100_000
    lifetime_us_default: int = 24 * 3_600_000_000
    lifetime_us_max: int = 366 * 24 * 3_600_000_000
    session_grace_us: int = 30_000_000
    """An object whose session ended stays so long for the session to come back."""


class StoredPublication(msgspec.Struct, frozen=True, array_like=True):
    """An object on disk: who published it, since when, until when or with which session."""

    owner: str
    stamp: int
    expires_us: int
    session: str
    body: bytes


class Acknowledged(Effect, frozen=True, gc=False):
    """What was asked with this ticket is on disk and in force; `fresh`: it was not there before."""

    ticket: int
    fresh: bool = False


class PendingWrites(msgspec.Struct):
    """A vid with writes on their way to the disk: whose they are, and how many."""

    owner: str
    writes: int = 0


class StoredPublications:
    """The objects the service publishes on others' behalf."""

    def __init__(self, contexts: MapContexts, settings: PublicationSettings) -> None:
        self.contexts: dict[str, StoredPublication] = {}
        self.settings = settings
        self._map = contexts
        self._owned: dict[str, int] = {}
        self._sessions: dict[str, dict[str, None]] = {}
        self._timers: Timers[str] = Timers()
        self._unsure: dict[str, PendingWrites] = {}
        """Between the write and its acknowledgement."""

    def restore(self, stored: Mapping[str, bytes], now: int) -> None:
        """Publish again what was on disk; sessions get their grace to come back."""
        decoder = msgspec.msgpack.Decoder(StoredPublication)
        for key in sorted(stored):
            if key.startswith(PREFIX):
                one = decoder.decode(stored[key])
                self._publish(self._with_grace(one, open_session=False, now=now))

    def keeps(self, vid: str, owner: str) -> bool:
        """Whether an object is kept for this owner."""
        known = self.contexts.get(vid)
        return known is not None and known.owner == owner

    def adopt(self, vid: str, value: bytes | None, *, open_session: bool, now: int) -> None:
        """Take over from another host's disk what it has newer; here it is on disk already."""
        if value is None:
            self.removed(vid)
            return
        one = msgspec.msgpack.decode(value, type=StoredPublication)
        self._publish(self._with_grace(one, open_session, now))

    def check(self, context: Context, owner: str) -> None:
        """Refuse what can not be published by this owner."""
        if context.place is None and context.point is None:
            raise ContextError("a context on the map needs a place or a point")
        if len(body_of(context)) > CONTEXT_BYTES_MAX:
            raise LimitError(f"a context has at most {CONTEXT_BYTES_MAX} bytes")
        self.check_owner(context.vid, owner)
        most = self.settings.publications_per_owner_max
        known = self.contexts.get(context.vid)
        if (known is None or known.owner != owner) and self._owned.get(owner, 0) >= most:
            raise LimitError(f"one publisher has at most {most} contexts on the map")

    def check_owner(self, vid: str, owner: str) -> None:
        """Refuse to change what somebody else publishes, or is about to."""
        pending = self._unsure.get(vid)
        if pending is not None and pending.owner != owner:
            raise ConflictError(f"{vid!r} is published by somebody else")
        self._map.check_owner(vid, owner)

    def write(
        self, context: Context, owner: str, *, session: str, lifetime_us: int | None, now: int
    ) -> tuple[StoredPublication, tuple[str, bytes]]:
        """Give an object and what to write before it is published."""
        self.check(context, owner)
        lifetime = self.settings.lifetime_us_default if lifetime_us is None else lifetime_us
        if not 0 < lifetime <= self.settings.lifetime_us_max:
            most = self.settings.lifetime_us_max // 1_000_000
            raise LimitError(f"a lifetime is more than 0 and at most {most} seconds")
        stamp = max(now, self._map.map.stamp(context.vid) + 1)
        known = self.contexts.get(context.vid)
        if known is not None:
            stamp = max(stamp, known.stamp + 1)
        kept = StoredPublication(
            owner, stamp, 0 if session else now + lifetime, session, body_of(context)
        )
        self._map.map.reserve(context.vid)
        self._unsure.setdefault(context.vid, PendingWrites(owner)).writes += 1
        return kept, (PREFIX + context.vid, msgspec.msgpack.encode(kept))

    def written(self, kept: StoredPublication, *, open_session: bool, now: int) -> bool:
        """An object is on disk: put it on the map; give whether it was not there before."""
        vid = context_of(kept.body).vid
        fresh = vid not in self._map.map.contexts
        self._publish(self._with_grace(kept, open_session, now))
        self._settled(vid)
        return fresh

    def _with_grace(
        self, kept: StoredPublication, open_session: bool, now: int
    ) -> StoredPublication:
        """Let an object whose session is not open go, if that does not come back in time."""
        if not kept.session or open_session:
            return kept
        return msgspec.structs.replace(kept, expires_us=now + self.settings.session_grace_us)

    def _settled(self, vid: str) -> None:
        """One write of an object has reached the disk, or never will."""
        self._unsure[vid].writes -= 1
        if not self._unsure[vid].writes:
            del self._unsure[vid]
            self._map.map.release(vid)

    def failed(self, kept: StoredPublication) -> None:
        """An object could not be written: nothing changes."""
        self._settled(context_of(kept.body).vid)

    def removed(self, vid: str) -> None:
        """An object is gone from disk: take it off the map."""
        known = self.contexts.pop(vid, None)
        if known is None:
            return
        self._timers.cancel(vid)
        self._owned[known.owner] -= 1
        if not self._owned[known.owner]:
            del self._owned[known.owner]
        self._bind(vid, known.session, bound=False)
        self._map.withdraw(known.owner, vid)

    def _bind(self, vid: str, session: str, *, bound: bool) -> None:
        if not session:
            return
        vids = self._sessions.setdefault(session, {})
        if bound:
            vids[vid] = None
        else:
            vids.pop(vid, None)
        if not vids:
            del self._sessions[session]

    def _publish(self, kept: StoredPublication) -> None:
        context = context_of(kept.body)
        before = self.contexts.get(context.vid)
        if before is not None:
            self._owned[before.owner] -= 1
            if not self._owned[before.owner]:
                del self._owned[before.owner]
            self._bind(context.vid, before.session, bound=False)
        self.contexts[context.vid] = kept
        self._owned[kept.owner] = self._owned.get(kept.owner, 0) + 1
        self._bind(context.vid, kept.session, bound=True)
        if kept.expires_us:
            self._timers.set(context.vid, kept.expires_us)
        else:
            self._timers.cancel(context.vid)
        self._map.put_for(kept.owner, context, kept.body, kept.stamp)

    def session_back(self, session: str) -> None:
        """A session is open again: what belongs to it stays."""
        for vid in self._sessions.get(session, ()):
            self._timers.cancel(vid)

    def session_gone(self, session: str, now: int) -> None:
        """A session ended without a word: what belongs to it stays for a while."""
        for vid in self._sessions.get(session, ()):
            self._timers.set(vid, now + self.settings.session_grace_us)

    def expired(self, now: int) -> list[Effect]:
        """Take off what has outlived its time; a crash before the disk knows removes it again.

        A write that is on its way would be undone on disk by a removal behind it: first it counts.
        """
        effects: list[Effect] = []
        for vid in self._timers.due(now):
            if vid in self._unsure:
                self._timers.set(vid, now + WAIT_US)
                continue
            self.removed(vid)
            effects.append(Store(0, ((PREFIX + vid, None),)))
            effects.append(Drop("lifetime over", "object"))
        return effects

    def deadline(self) -> int | None:
        """When the next object goes."""
        return self._timers.deadline()
