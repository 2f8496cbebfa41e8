"""What a client publishes: its contexts with their stamps, and its recent removals.

Stamps are the client's own and grow, so that any two servers agree which of its states is newer
(0026).
"""

from collections.abc import Iterator

import msgspec

from roamcast.channels.server.messages import Publish, Unpublish
from roamcast.channels.server.removals import Removal, Removed
from roamcast.channels.server.settings import MapSettings
from roamcast.model.contexts import Context, body_of, check
from roamcast.model.machine import Input


class PublishContext(Input, frozen=True):
    """The user publishes a context or changes it; `stamp` 0 means as of now."""

    context: Context
    stamp: int = 0


class UnpublishContext(Input, frozen=True):
    """The user unpublishes a context, in all its states until this stamp; 0 means until now."""

    vid: str
    stamp: int = 0


class DisownContext(Input, frozen=True):
    """The user no longer publishes a context, but somebody else may, in the same state."""

    vid: str


class PublishedContext(msgspec.Struct):
    """A context of the user's: its bytes and its stamp."""

    body: bytes
    stamp: int


class Publications:
    """One client's contexts by vid, and those it unpublished a while ago."""

    def __init__(self, settings: MapSettings) -> None:
        self.contexts: dict[str, PublishedContext] = {}
        self.removed = Removed(settings.removed_us, settings.removed_max)
        self._last_stamp = 0

    def put(self, context: Context, stamp: int, now: int) -> Publish:
        """Publish a context or change it, as of now without a stamp; give the operation."""
        check(context)
        body, stamp = body_of(context), stamp or self._stamp(now, context.vid)
        self.contexts[context.vid] = PublishedContext(body, stamp)
        self.removed.forget(context.vid)
        return Publish(body, stamp)

    def cancel(self, given: UnpublishContext | DisownContext, now: int) -> Unpublish | None:
        """End a publication; give the operation, None if the context is not the client's."""
        if given.vid not in self.contexts:
            return None
        stamp = 0
        if isinstance(given, UnpublishContext):
            stamp = given.stamp or self._stamp(now, given.vid)
        del self.contexts[given.vid]
        if not stamp:
            return Unpublish(given.vid)
        self.removed.note(given.vid, Removal(stamp, "", now), now)
        return Unpublish(given.vid, stamp)

    def overtaken(self, vid: str, stamp: int) -> bool:
        """Drop a context of which somebody else has a newer state; False if ours is newer."""
        known = self.contexts.get(vid)
        if known is None or known.stamp > stamp:
            return False
        del self.contexts[vid]
        return True

    def outdated(self, vid: str, stamp: int, now: int) -> Publish | Unpublish | None:
        """Stamp a context, or its removal, later than what a server has from before a restart.

        Our clock was ahead then. Give the operation, None if ours is later already.
        """
        ours = self.contexts.get(vid)
        removal = self.removed.get(vid)
        if ours is not None and ours.stamp <= stamp:
            ours.stamp = max(self._stamp(now, vid), stamp + 1)
            return Publish(ours.body, ours.stamp)
        if ours is None and removal is not None and removal.stamp <= stamp:
            removal = Removal(max(self._stamp(now, vid), stamp + 1), "", now)
            self.removed.note(vid, removal, now)
            return Unpublish(vid, removal.stamp)
        return None

    def all(self, now: int) -> Iterator[tuple[str, Publish | Unpublish]]:
        """Give the operations for a new session: all contexts, and recent removals.

        The server may still have what was removed while the client could not reach it.
        """
        for vid, known in self.contexts.items():
            yield vid, Publish(known.body, known.stamp)
        for vid, removal in self.removed.items(now):
            yield vid, Unpublish(vid, removal.stamp)

    def _stamp(self, now: int, vid: str) -> int:
        """Give a stamp later than all before, and than one that a server had of this context."""
        self._last_stamp = max(now, self._last_stamp + 1)
        known = self.contexts.get(vid) or self.removed.get(vid)
        return self._last_stamp if known is None else max(self._last_stamp, known.stamp + 1)
