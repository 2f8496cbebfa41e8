"""What does a client publish, and since when? Its objects, and those it cancelled a while ago.

Stamps are the client's own and grow, so that any two servers agree which of its states is newer.
"""

from collections.abc import Iterator

import msgspec

from roamcast.channels.server.map import Removal, Removed
from roamcast.channels.server.messages import Publish, Unpublish, body_of
from roamcast.channels.server.settings import MapSettings
from roamcast.model.contexts import Context, check
from roamcast.model.machine import Input


class PublishContext(Input, frozen=True):
    """The user publishes an object or changes it; `stamp` 0 means that it is so from now on."""

    context: Context
    stamp: int = 0


class UnpublishContext(Input, frozen=True):
    """The user cancels the publication of an object, and of all its states until this stamp."""

    vid: str
    stamp: int = 0


class DisownContext(Input, frozen=True):
    """The user publishes an object no more, but somebody else may, in the same state."""

    vid: str


class PublishedContext(msgspec.Struct):
    """An object of the user's: its bytes and since when it is so."""

    body: bytes
    stamp: int


class Publications:
    """One client's objects by vid."""

    def __init__(self, settings: MapSettings) -> None:
        self.contexts: dict[str, PublishedContext] = {}
        self.cancelled = Removed(settings.removed_us, settings.removed_max)
        self._last_stamp = 0

    def put(self, context: Context, stamp: int, now: int) -> Publish:
        """Publish an object or change it, as of now without a stamp; give what to tell."""
        check(context)
        body, stamp = body_of(context), stamp or self._stamp(now)
        self.contexts[context.vid] = PublishedContext(body, stamp)
        self.cancelled.forget(context.vid)
        return Publish(body, stamp)

    def cancel(self, given: UnpublishContext | DisownContext, now: int) -> Unpublish | None:
        """Publish an object no more; give what to tell, None if it is not one of these."""
        if self.contexts.pop(given.vid, None) is None:
            return None
        if isinstance(given, DisownContext):
            return Unpublish(given.vid)
        stamp = given.stamp or self._stamp(now)
        self.cancelled.note(given.vid, Removal(stamp, "", now), now)
        return Unpublish(given.vid, stamp)

    def overtaken(self, vid: str, stamp: int) -> bool:
        """Let go of an object that somebody else has a newer version of; False if ours is newer."""
        one = self.contexts.get(vid)
        if one is None or one.stamp > stamp:
            return False
        del self.contexts[vid]
        return True

    def all(self, now: int) -> Iterator[tuple[str, Publish | Unpublish]]:
        """Say everything, to a server that knows nothing; what was cancelled may be left there."""
        for vid, one in self.contexts.items():
            yield vid, Publish(one.body, one.stamp)
        for vid, gone in self.cancelled.items(now):
            yield vid, Unpublish(vid, gone.stamp)

    def _stamp(self, now: int) -> int:
        self._last_stamp = max(now, self._last_stamp + 1)
        return self._last_stamp
