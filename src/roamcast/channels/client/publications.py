"""What a client publishes: its contexts with their stamps, and its recent removals.

Stamps are the client's own and grow, so that any two servers agree which of its states is newer
(0026).
"""

from collections.abc import Iterator

import msgspec

from roamcast.channels.server.map import Removal, Removed
from roamcast.channels.server.messages import Publish, Unpublish, body_of
from roamcast.channels.server.settings import MapSettings
from roamcast.model.contexts import Context, check
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
        body, stamp = body_of(context), stamp or self._stamp(now)
        self.contexts[context.vid] = PublishedContext(body, stamp)
        self.removed.forget(context.vid)
        return Publish(body, stamp)

    def cancel(self, given: UnpublishContext | DisownContext, now: int) -> Unpublish | None:
        """End a publication; give the operation, None if the context is not the client's."""
        if self.contexts.pop(given.vid, None) is None:
            return None
        if isinstance(given, DisownContext):
            return Unpublish(given.vid)
        stamp = given.stamp or self._stamp(now)
        self.removed.note(given.vid, Removal(stamp, "", now), now)
        return Unpublish(given.vid, stamp)

    def overtaken(self, vid: str, stamp: int) -> bool:
        """Drop a context of which somebody else has a newer state; False if ours is newer."""
        known = self.contexts.get(vid)
        if known is None or known.stamp > stamp:
            return False
        del self.contexts[vid]
        return True

    def all(self, now: int) -> Iterator[tuple[str, Publish | Unpublish]]:
        """Give the operations for a new session: all contexts, and recent removals.

        The server may still have what was removed while the client could not reach it.
        """
        for vid, known in self.contexts.items():
            yield vid, Publish(known.body, known.stamp)
        for vid, removal in self.removed.items(now):
            yield vid, Unpublish(vid, removal.stamp)

    def _stamp(self, now: int) -> int:
        self._last_stamp = max(now, self._last_stamp + 1)
        return self._last_stamp
