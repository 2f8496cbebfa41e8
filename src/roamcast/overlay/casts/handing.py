"""Handing casts to neighbours: as soon as somebody beyond one may match, once for each."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from roamcast.model.machine import Effect
from roamcast.model.records import CastStep
from roamcast.overlay.casts.delivery import What
from roamcast.overlay.casts.desk import HeldCasts
from roamcast.overlay.casts.held import PAYLOADS, SENT, HeldCast, name_of
from roamcast.overlay.casts.messages import CAST, CastParcel
from roamcast.overlay.events import CameByLink
from roamcast.overlay.tables.messages import TableChunk
from roamcast.overlay.topology.messages import TopologyItems

SCAN: Final[What] = ("scan", "", 0)


class Handing:
    """The casts whose links are to be looked at, and those on their way to neighbours."""

    def __init__(self, desk: HeldCasts, tell: Callable[[HeldCast, int], None]) -> None:
        """`tell`: the sender should hear of it."""
        self.dirty: dict[str, None] = {}
        """Casts whose links are to be looked at."""
        self.ended: Callable[[HeldCast, int], list[Effect]] = lambda _held, _now: []
        """What to do with a cast that ended while it was handed on."""
        self._desk = desk
        self._tell = tell

    def changed(self, given: Any, now: int) -> Sequence[Effect]:
        """Take news of links, tree and tables: casts may have to go elsewhere, too."""
        spreading = self._desk.spreading
        assert spreading is not None, f"casts take no {type(given).__name__}"
        match given:
            case CameByLink(_, TopologyItems(items)):
                before = spreading.joined_us
                spreading.learn(items, now)
                if spreading.joined_us == before:
                    return ()
            case CameByLink(link, TableChunk(table, last=True)):
                if not spreading.is_news(link, table):
                    return ()
            case CameByLink():
                return ()
            case _:
                spreading.changed(now)
        self.dirty.update(dict.fromkeys(self._desk.casts))
        self._desk.timers.sooner(SCAN, now + self._desk.settings.scan_us)
        return ()

    def scan(self, now: int) -> list[Effect]:
        """Look at the links of some casts."""
        effects: list[Effect] = []
        for cast in list(self.dirty)[: self._desk.settings.scan_casts]:
            del self.dirty[cast]
            held = self._desk.casts.get(cast)
            if held is not None:
                effects += self.spread(held, now)
        if self.dirty:
            self._desk.timers.sooner(SCAN, now + self._desk.settings.scan_us)
        return effects

    def spread(self, held: HeldCast, now: int) -> list[Effect]:
        """Hand a cast to the neighbours beyond which somebody may match, and that lack it."""
        if self._desk.spreading is None or not held.live:
            return []
        if (
            len(self._desk.requests.posts) + len(self._desk.requests.reads)
            >= self._desk.settings.posts_max
        ):
            self.later(held, now)
            return []
        if not self._desk.spreading.lacking((*held.sent_to, *held.posting, held.came_from)):
            return []
        links, soon = self._desk.spreading.wanted(
            held.body, held.came_from, now, pushed=held.pushed
        )
        if soon:
            self.later(held, now)
        new = [link for link in links if link not in held.sent_to and link not in held.posting]
        if not new:
            return []
        held.posting.update(dict.fromkeys(new))
        return [self.hand(held, new)]

    def later(self, held: HeldCast, now: int) -> None:
        """Look at a cast's links again soon."""
        self.dirty[held.id] = None
        self._desk.timers.sooner(SCAN, now + max(self._desk.settings.scan_us, 1))

    def hand(self, held: HeldCast, links: Sequence[str]) -> Effect:
        """Give neighbours a cast: custody of it and that they have it are one write."""
        branches = held.branches
        if len(held.sent_to) + len(held.posting) > 1 and self._desk.node not in branches:
            branches = (*branches, self._desk.node)
        patience = max(self._desk.settings.hop_us, held.patience_us - self._desk.settings.hop_us)

        def read(payload: bytes | None, now: int) -> Sequence[Effect]:
            if payload is None or not held.live or held.id not in self._desk.casts:
                for link in links:
                    held.posting.pop(link, None)
                return []
            parcel = CastParcel(held.body, branches, patience, self._desk.node, payload)
            body = msgspec.msgpack.encode(parcel)
            name = name_of(held.id)
            writes = tuple((f"{SENT}{name}/{link}", link.encode()) for link in links)
            del now
            return [self._desk.requests.post(CAST, links, body, writes, posted)]

        def posted(done: bool, now: int) -> Sequence[Effect]:
            for link in links:
                held.posting.pop(link, None)
                if done:
                    held.sent_to[link] = None
            self._tell(held, now)
            if not done:
                self._desk.timers.set(("spread", held.id, 0), now + self._desk.settings.retry_us)
                return []
            if not held.live:  # it ended meanwhile: they must hear of it
                return self.ended(held, now)
            return [CastStep(held.id, "handed on", link) for link in links]

        return self._desk.requests.read(PAYLOADS + name_of(held.id), read)
