"""A stretch of time lived again by a real broker, with a session that watches its map.

The broker is the one that serves people, with its map, rules and hub; only its clock and its disk
are ours. So what the session is sent under a setting is what it would have been sent.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from roamcast.broker import (
    Broker,
    CutOff,
    Failed,
    Frame,
    LimitSession,
    OpenSession,
    PublishFor,
    SetRules,
    SubscribeSession,
    UnpublishFor,
)
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.sessions.publications import PublicationSettings
from roamcast.errors import NotFoundError
from roamcast.identity.live_blur import LiveBlur
from roamcast.identity.policy import PUBLIC
from roamcast.identity.rules import EVERYONE, Precision, Rule, Viewer
from roamcast.live.what_if.timeline import TimelineStep, Window
from roamcast.model.contexts import context_of
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Input, Store, Stored
from roamcast.model.places import Places
from roamcast.model.time import EPOCH, MICROSECOND

OWNER: Final = "replay"
WATCHER: Final = "watcher"
CONTEXTS_MAX: Final = 1_000_000
YEAR_US: Final = 366 * 24 * 3_600 * 1_000_000


class ReplaySetting(msgspec.Struct, frozen=True):
    """What the watcher and the broker are like in one replay."""

    limit_bytes: int = 0
    """Bytes that the watcher takes in any second; 0: no limit."""
    precision: Precision = "exact"
    """What the rules of those without rules of their own show of what was shown."""


class ShownState(msgspec.Struct, frozen=True, gc=False):
    """What the watcher's map shows of a vid from `at` on; no feature: nothing."""

    at: int
    vid: str
    feature: bytes
    waited_us: int = 0
    """How long after it had changed."""


class WatchedReplay:
    """One replay: what a session that opened the map at the window's begin was sent."""

    def __init__(
        self,
        setting: ReplaySetting,
        wanted: Filter,
        window: Window,
        *,
        exempt: Collection[str] = (),
        places: Places | None = None,
        grid_s: int = 0,
    ) -> None:
        """`exempt`: vids with rules of their own, for which the default does not count."""
        self.frames: list[tuple[int, int]] = []
        """When each message left, and its bytes."""
        self.updates = 0
        self.shown: list[ShownState] = []
        self.ended = ""
        """Why the session was cut off; empty if it was not."""
        self._setting = setting
        self._wanted = wanted
        self._window = window
        self._exempt = frozenset(exempt)
        self._now = window[0]
        self._machine = Broker(
            "what-if",
            epoch=self._now,
            now=self._now,
            load=lambda _: {},
            map_settings=MapSettings(contexts_max=CONTEXTS_MAX),
            publication_settings=PublicationSettings(
                publications_per_owner_max=CONTEXTS_MAX, lifetime_us_default=YEAR_US
            ),
            default_rules=_rules(setting.precision),
            places=places,
            blur=LiveBlur(grid_s),
        )

    def run(self, steps: Sequence[TimelineStep]) -> None:
        """Give the broker all steps in their order, and time to tell the watcher of them."""
        begin, end = self._window
        early = [step for step in steps if step.at <= begin]
        for step in early:
            self._take(step)
        self._give(OpenSession(0, WATCHER, Viewer("")))
        if self._setting.limit_bytes:
            self._give(LimitSession(0, WATCHER, self._setting.limit_bytes))
        self._give(SubscribeSession(0, WATCHER, "map", self._wanted))
        for step in steps[len(early) :]:
            self._pass(step.at)
            self._take(step)
        self._pass(end)

    def _take(self, step: TimelineStep) -> None:
        if not step.body:
            self._give(UnpublishFor(0, OWNER, step.vid))
            return
        if step.vid in self._exempt:
            self._give(SetRules(0, OWNER, step.vid, PUBLIC))
            self._exempt -= {step.vid}
        context = context_of(step.body)
        if context.place is not None or context.point is not None:  # else it is nowhere on the map
            self._give(PublishFor(0, OWNER, context))

    def _pass(self, until: int) -> None:
        while (due := self._machine.deadline()) is not None and due <= until:
            self._now = max(self._now, due)
            self._carry(self._machine.advance(self._now))
        self._now = until

    def _give(self, given: Input) -> None:
        self._carry(self._machine.receive(given, self._now))

    def _carry(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Store(token):
                    self._carry(self._machine.receive(Stored(token), self._now))
                case Frame():
                    self._read(effect.data)
                case CutOff():
                    self.ended = effect.reason
                case Failed() if not isinstance(effect.error, NotFoundError):
                    raise effect.error
                case _:
                    pass  # records, and what a broker asks of the disk that it does not have here

    def _read(self, data: bytes) -> None:
        self.frames.append((self._now, len(data)))
        frame = _decode(data)
        for raw in frame.features:
            feature = bytes(raw)
            self.shown.append(ShownState(self._now, _vid(feature), feature))
        self.updates += len(frame.features) + len(frame.events)
        for event in frame.events:
            changed = (event.time - EPOCH) // MICROSECOND
            feature = bytes(event.data)
            if feature == b"null":
                feature = b""
            self.shown.append(ShownState(self._now, event.subject, feature, self._now - changed))


class _Event(msgspec.Struct):
    subject: str
    time: datetime
    data: msgspec.Raw = msgspec.Raw(b"null")


class _FrameText(msgspec.Struct):
    features: list[msgspec.Raw] = []
    events: list[_Event] = []


class _FeatureId(msgspec.Struct):
    id: str


_decode = msgspec.json.Decoder(_FrameText).decode
_decode_id = msgspec.json.Decoder(_FeatureId).decode


def _vid(feature: bytes) -> str:
    return _decode_id(feature).id


def _rules(precision: Precision) -> tuple[Rule, ...]:
    if precision == "exact":
        return PUBLIC
    return (Rule(viewers=(EVERYONE,), precision=precision, past=True),)
