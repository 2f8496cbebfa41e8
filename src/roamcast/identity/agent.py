"""The user agent of one person: sightings in, contexts out (AMS 18).

A sans-IO machine around the compiled rules of `agent_core`. Its contexts have no vid: the caller
gets one per context from the trusted node (`pseudonyms`), and applies the person's privacy rules
(`rules`) before anybody sees the context.

| state  | sighting                              | silence past the heartbeat |
|--------|---------------------------------------|----------------------------|
| absent | opens a context → present             | —                          |
| present| may close and open contexts → present | closes it → absent         |
"""

import struct

import msgspec
import numpy as np

from roamcast.identity import agent_core as core
from roamcast.identity import attributes
from roamcast.identity.agent_settings import HEARTBEAT, RELIABILITY, AgentSettings
from roamcast.identity.sightings import SOURCES, Sighting, check
from roamcast.identity.whereabouts import Whereabouts
from roamcast.model.contexts import Attribute
from roamcast.model.machine import Effect

FUTURE_MAX = 60 * 1_000_000
"""Maximum lead of a sensor's clock over ours, in microseconds."""

_KEYS_MAX = 64


class Stay(msgspec.Struct, frozen=True):
    """A context without a vid: where a person was, with what attributes, from when to when."""

    place: str | None
    point: tuple[float, float] | None
    attributes: dict[str, Attribute]
    t_r: int
    t_d: int | None


class Closed(Effect, frozen=True, tag="agent_closed"):
    """A context has ended; it is now part of the past."""

    stay: Stay


class Opened(Effect, frozen=True, tag="agent_opened"):
    """The person's context from t_r on; it replaces one that began at the same moment."""

    stay: Stay


class SightingRefused(Effect, frozen=True, tag="agent_refused"):
    """A sighting changed nothing, for this reason."""

    reason: str


class UserAgent:
    """The agent of one person. Time is an argument, in microseconds."""

    def __init__(
        self,
        person: str,
        settings: AgentSettings | None = None,
        whereabouts: Whereabouts | None = None,
    ) -> None:
        self.person = person
        self._settings = (settings or AgentSettings()).vector()
        self._whereabouts = whereabouts or Whereabouts()
        self._state = np.empty(core.STATE_WIDTH, dtype=np.int64)
        self._closed = np.empty((core.CLOSED_MAX, core.CLOSED_WIDTH), dtype=np.int64)
        self._keys: dict[str, int] = {}
        self._texts: dict[int, str] = {}
        self._next_key = 1
        core.clear(self._state)

    def receive(self, sighting: Sighting, now: int) -> list[Effect]:
        """Apply one sighting; return what it closed and opened, or why it changed nothing."""
        check(sighting)
        if sighting.person != self.person:
            return [SightingRefused("it is a sighting of somebody else")]
        if sighting.time > now + FUTURE_MAX:
            return [SightingRefused("time lies in the future")]
        text, point = self._whereabouts.locate(sighting.place, sighting.point)
        reported = sighting.attributes
        row = (
            sighting.time,
            SOURCES.index(sighting.source),
            self._key(text),
            *bits(point),
            core.UNSAID if reported is None else self._key(attributes.to_text(reported)),
        )
        answer = core.step(self._state, self._settings, np.array(row, np.int64), self._closed)
        if answer & core.LATE:
            return [SightingRefused("it is older than the last sighting")]
        effects: list[Effect] = [
            Closed(self._stay(self._closed[n])) for n in range(answer & core.CLOSED_MASK)
        ]
        if answer & core.CHANGED:
            effects.append(Opened(self._present()))
        self._forget_unused_keys()
        return effects

    def advance(self, now: int) -> list[Effect]:
        """Advance to `now`: silence past the heartbeat closes the context at the last sighting."""
        if core.expire(self._state, self._settings, now, self._closed[0]) == 0:
            return []
        return [Closed(self._stay(self._closed[0]))]

    def deadline(self) -> int | None:
        """Return the first moment at which silence would close the context."""
        if not self._state[core.OPEN]:
            return None
        # Silence must be longer than the heartbeat, hence one microsecond later.
        return int(self._state[core.SEEN] + self._settings[HEARTBEAT]) + 1

    def present(self) -> Stay | None:
        """Return the open context, if any."""
        return self._present() if self._state[core.OPEN] else None

    def _present(self) -> Stay:
        row = np.empty(core.CLOSED_WIDTH, dtype=np.int64)
        row[core.CLOSED_FROM] = self._state[core.SINCE]
        row[core.CLOSED_PLACE] = self._state[core.PLACE]
        row[core.CLOSED_LON] = self._state[core.LON]
        row[core.CLOSED_LAT] = self._state[core.LAT]
        row[core.CLOSED_ATTRIBUTES :] = self._state[core.ATTRIBUTES : core.CANDIDATE]
        row[core.CLOSED_TO] = core.NEVER
        return self._stay(row)

    def _stay(self, row: core.Integers) -> Stay:
        t_r, t_d, place, lon, lat, *spoken = (int(number) for number in row)
        text = self._texts[place]
        reliability = self._settings[RELIABILITY : RELIABILITY + len(SOURCES)].tolist()
        said = attributes.merged([self._texts.get(key) for key in spoken], reliability)
        return Stay(
            None if text.startswith("/") else text,
            point_of(lon, lat),
            attributes.from_text(said),
            t_r,
            None if t_d == core.NEVER else t_d,
        )

    def _key(self, text: str) -> int:
        if text == attributes.NOTHING:  # no path is "{}", so this key can stand for "no attributes"
            return core.NONE
        key = self._keys.get(text)
        if key is None:
            key = self._keys[text] = self._next_key
            self._texts[key] = text
            self._next_key += 1
        return key

    def _forget_unused_keys(self) -> None:
        if len(self._keys) <= _KEYS_MAX:
            return
        # Keys are only compared, so numbers of texts that the state no longer has can be dropped;
        # they are never reused.
        used = {int(self._state[column]) for column in core.KEY_COLUMNS}
        self._texts = {key: text for key, text in self._texts.items() if key in used}
        self._keys = {text: key for key, text in self._texts.items()}


def bits(point: tuple[float, float] | None) -> tuple[int, int]:
    """Return a point as the bits of its floats, the representation of `agent_core`."""
    if point is None:
        return core.NO_POINT, core.NO_POINT
    lon, lat = struct.unpack("<qq", struct.pack("<dd", *point))
    return lon, lat


def point_of(lon: int, lat: int) -> tuple[float, float] | None:
    """Return the point with these bits, None for NO_POINT."""
    if lon == core.NO_POINT:
        return None
    east, north = struct.unpack("<dd", struct.pack("<qq", lon, lat))
    return east, north
