"""Two replays side by side: both maps through the same time, and their differences counted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from roamcast.errors import InputError
from roamcast.identity.live_blur import GRID_S_MAX
from roamcast.identity.rules import Precision
from roamcast.live.what_if.channels import ChannelCost, ThresholdSetting, cost_of
from roamcast.live.what_if.replaying import ReplaySetting, ShownState, WatchedReplay
from roamcast.live.what_if.timeline import TimelineStep, Window
from roamcast.model.contexts import FeatureOutput, Instant
from roamcast.model.filters import Filter
from roamcast.model.places_geojson import read_places
from roamcast.model.time import MICROSECONDS, format_instant

MILLISECOND = 1_000


class TriedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings to try; those that are left out stay as they are."""

    limit_bytes: (
        Annotated[
            int, Meta(ge=1_024, le=2**40, description="bytes in any second that a watcher takes")
        ]
        | None
    ) = None
    default_precision: Annotated[
        Precision | None, Meta(description="`[privacy]`: of contexts whose publisher set no rules")
    ] = None
    subscribers_min: (
        Annotated[int, Meta(ge=1, le=1_000_000, description="`[channels]`: q")] | None
    ) = None
    history_max: Annotated[int, Meta(ge=1, le=100_000, description="`[channels]`: m")] | None = None

    def check(self) -> "TriedSettings":
        """Refuse a question that tries nothing."""
        if self == TriedSettings():
            names = ", ".join(self.__struct_fields__)
            raise InputError(f"nothing to try: give a setting, one of {names}")
        return self

    @property
    def thresholds(self) -> bool:
        """Whether it is about channels."""
        return self.subscribers_min is not None or self.history_max is not None


class ReplayTask(msgspec.Struct, frozen=True):
    """All that a replay needs: it reads nothing else but the journal's segments."""

    window: Window
    filter: str
    steps: list[TimelineStep]
    tried: TriedSettings
    thresholds: ThresholdSetting
    """Those in force."""
    exempt: list[str] = []
    places: bytes = b""
    grid_s: Annotated[int, Meta(ge=0, le=GRID_S_MAX)] = 0
    segments: list[str] = []


ShownChange = Annotated[
    tuple[int, int],
    Meta(
        description="milliseconds after `from`, and which of `features` is shown from then on; "
        "-1 - n: the context of feature n has left"
    ),
]


class ReplayedMap(msgspec.Struct, frozen=True):
    """What a watcher was sent who opened the map when the window began."""

    frames: Annotated[int, Meta(description="messages to the watcher")]
    bytes: int
    updates: Annotated[int, Meta(description="states in them, the current set's among them")]
    contexts: Annotated[int, Meta(description="different contexts that its map showed")]
    mean_contexts: Annotated[float, Meta(description="contexts on its map, over the time")]
    mean_wait_ms: Annotated[float, Meta(description="from a change to its message")]
    wait_ms_max: float
    ended: Annotated[str, Meta(description="why it was cut off; empty if it was not")]
    changes: list[ShownChange]


class MapDifferences(msgspec.Struct, frozen=True):
    """By how much two maps differ over the time."""

    seconds: Annotated[float, Meta(description="for so long they were not the same")]
    mean_contexts: Annotated[float, Meta(description="contexts that differed, over the time")]
    contexts_max: int
    at_ms: Annotated[int, Meta(description="when that was, after `from`")]


class ChannelCosts(msgspec.Struct, frozen=True):
    """What clients on links cost, by channels and one by one."""

    was: ChannelCost
    would: ChannelCost


class WhatIfAnswer(msgspec.Struct, frozen=True, rename={"begin": "from", "end": "to"}):
    """Both maps as a watcher would have had them, and their differences."""

    begin: Instant
    end: Instant
    filter: str
    tried: TriedSettings
    steps: Annotated[int, Meta(description="changes of the map that were replayed")]
    features: list[FeatureOutput]
    was: ReplayedMap
    would: ReplayedMap
    differences: MapDifferences
    channels: ChannelCosts | None


class _FeatureTable:
    """Numbers features, so that what both maps show is written once."""

    def __init__(self) -> None:
        self.features: list[Any] = []
        self._numbers: dict[bytes, int] = {}

    def number(self, feature: bytes) -> int:
        known = self._numbers.get(feature)
        if known is None:
            known = self._numbers[feature] = len(self.features)
            self.features.append(msgspec.Raw(feature))
        return known


def answer(task: ReplayTask) -> WhatIfAnswer:
    """Replay a window as it was and as it would have been."""
    begin, end = task.window
    wanted = Filter.parse(task.filter)
    places = read_places(task.places) if task.places else None
    tried = task.tried

    def replayed(setting: ReplaySetting) -> WatchedReplay:
        made = WatchedReplay(
            setting, wanted, task.window, exempt=task.exempt, places=places, grid_s=task.grid_s
        )
        made.run(task.steps)
        return made

    was = would = replayed(ReplaySetting())
    setting = ReplaySetting(tried.limit_bytes or 0, tried.default_precision or "exact")
    if setting != ReplaySetting():
        would = replayed(setting)
    table = _FeatureTable()
    return WhatIfAnswer(
        format_instant(begin),
        format_instant(end),
        task.filter,
        tried,
        len(task.steps),
        table.features,
        _described(was, task.window, table),
        _described(would, task.window, table),
        differences(was.shown, would.shown, task.window),
        _channel_costs(task) if tried.thresholds else None,
    )


def _channel_costs(task: ReplayTask) -> ChannelCosts:
    tried, force = task.tried, task.thresholds
    other = ThresholdSetting(
        tried.subscribers_min or force.subscribers_min, tried.history_max or force.history_max
    )
    segments = [Path(name) for name in task.segments]
    return ChannelCosts(
        cost_of(segments, task.window, force), cost_of(segments, task.window, other)
    )


def _described(replay: WatchedReplay, window: Window, table: _FeatureTable) -> ReplayedMap:
    begin, end = window
    current: dict[str, int] = {}
    seen: dict[str, None] = {}
    changes: list[tuple[int, int]] = []
    area, last = 0, begin
    for state in replay.shown:
        area += len(current) * (state.at - last)
        last = state.at
        at_ms = (state.at - begin) // MILLISECOND
        if state.feature:
            current[state.vid] = number = table.number(state.feature)
            seen[state.vid] = None
            changes.append((at_ms, number))
        elif state.vid in current:
            changes.append((at_ms, -1 - current.pop(state.vid)))
    area += len(current) * (end - last)
    waits = [state.waited_us for state in replay.shown]
    return ReplayedMap(
        frames=len(replay.frames),
        bytes=sum(size for _, size in replay.frames),
        updates=replay.updates,
        contexts=len(seen),
        mean_contexts=area / (end - begin),
        mean_wait_ms=sum(waits) / MILLISECOND / (len(waits) or 1),
        wait_ms_max=max(waits, default=0) / MILLISECOND,
        ended=replay.ended,
        changes=changes,
    )


def differences(
    was: Sequence[ShownState], would: Sequence[ShownState], window: Window
) -> MapDifferences:
    """Count for how long, and in how many contexts, two maps differed."""
    begin, end = window
    maps: tuple[dict[str, bytes], dict[str, bytes]] = ({}, {})
    differing: dict[str, None] = {}
    area = apart_us = most = most_at = 0
    last = begin
    both = [(state.at, 0, state) for state in was] + [(state.at, 1, state) for state in would]
    both.sort(key=lambda one: one[0])  # stable: each map's own order stays
    for number, (at, side, state) in enumerate(both):
        area += len(differing) * (at - last)
        apart_us += (at - last) if differing else 0
        last = at
        if state.feature:
            maps[side][state.vid] = state.feature
        else:
            maps[side].pop(state.vid, None)
        if maps[0].get(state.vid) == maps[1].get(state.vid):
            differing.pop(state.vid, None)
        else:
            differing[state.vid] = None
        settled = number + 1 == len(both) or both[number + 1][0] > at
        if settled and len(differing) > most:
            most, most_at = len(differing), at
    area += len(differing) * (end - last)
    apart_us += (end - last) if differing else 0
    length = end - begin
    at_ms = (most_at - begin) // MILLISECOND if most else 0
    return MapDifferences(apart_us / MICROSECONDS, area / length, most, at_ms)
