"""The user agent's rules, compiled: `step` applies one sighting to a person's state.

AMS: "Location information for each person is synthesized from these various sources by the user
agent for that person." This is the only implementation (decision 0050): the live agent (`agent`)
calls `step` for each sighting, the pipeline calls `scan` for whole columns.

A person's state is one row of 64-bit integers. Places and attributes are keys: numbers that stand
for texts and are only compared. A point is the bits of its two floats, so nothing is rounded.
The rules, in the order in which `step` applies them:

1. A sighting older than the last one is late and changes nothing. One that repeats its source's
   previous sighting changes nothing.
2. After a silence longer than the heartbeat, the context ended at the last sighting, and earlier
   sightings no longer count.
3. Each source's last sighting supports its place with the source's reliability, fading to nothing
   over its freshness. The place with most support wins. It must beat the current place by the
   margin, unless nothing supports the current place any more.
4. A winner becomes the current place once it has won for the dwell time, from its first win on.
5. A source's attributes count while it is fresh. A change of any source's attributes ends the
   context and opens the next.

A context that a later sighting of the same moment replaces has no length and is not reported.
"""

import numpy as np
import numpy.typing as npt

from roamcast.identity.agent_settings import DWELL, FRESH, HEARTBEAT, MARGIN, RELIABILITY
from roamcast.identity.sightings import SOURCES
from roamcast.model.kernels import inlined, kernel

Integers = npt.NDArray[np.int64]

SOURCE_COUNT = len(SOURCES)
NEVER = -(2**62)
"""Earlier than every instant."""
NO_POINT = 0x7FF8000000000000
"""The bits of NaN."""
NONE, UNSAID = 0, -1
"""Keys: no text; and, for a sighting's attributes only, that the source does not report any."""

# Columns of the state; then for each source: time, place, lon, lat, attributes.
OPEN, SINCE, SEEN, PLACE, LON, LAT, ATTRIBUTES = 0, 1, 2, 3, 4, 5, 6
CANDIDATE = ATTRIBUTES + SOURCE_COUNT
CANDIDATE_SINCE, CANDIDATE_LON, CANDIDATE_LAT = CANDIDATE + 1, CANDIDATE + 2, CANDIDATE + 3
REPORT = CANDIDATE + 4
REPORT_TIME, REPORT_PLACE, REPORT_LON, REPORT_LAT, REPORT_ATTRIBUTES, REPORT_WIDTH = (
    0,
    1,
    2,
    3,
    4,
    5,
)
STATE_WIDTH = REPORT + SOURCE_COUNT * REPORT_WIDTH

KEY_COLUMNS = (
    PLACE,
    *range(ATTRIBUTES, ATTRIBUTES + SOURCE_COUNT),
    CANDIDATE,
    *(REPORT + s * REPORT_WIDTH + REPORT_PLACE for s in range(SOURCE_COUNT)),
    *(REPORT + s * REPORT_WIDTH + REPORT_ATTRIBUTES for s in range(SOURCE_COUNT)),
)
"""Columns of a state that hold keys, to be translated when keys are renumbered."""

# A closed context: its interval, place, point, and the key of each source's attributes.
CLOSED_FROM, CLOSED_TO, CLOSED_PLACE, CLOSED_LON, CLOSED_LAT, CLOSED_ATTRIBUTES = 0, 1, 2, 3, 4, 5
CLOSED_WIDTH = CLOSED_ATTRIBUTES + SOURCE_COUNT
CLOSED_MAX = 2
"""A sighting closes at most two contexts: one by confirming a place, one by new attributes."""

# The result of `step`: the number of contexts closed, plus these flags.
CLOSED_MASK, CHANGED, LATE, REPEATED = 3, 4, 8, 16


@inlined
def clear(state: Integers) -> None:
    """Reset the state to that of a person never seen."""
    state[:] = 0
    state[SEEN] = NEVER
    state[LON] = state[LAT] = NO_POINT
    state[CANDIDATE_LON] = state[CANDIDATE_LAT] = NO_POINT
    for source in range(SOURCE_COUNT):
        report = REPORT + source * REPORT_WIDTH
        state[report + REPORT_TIME] = NEVER
        state[report + REPORT_LON] = state[report + REPORT_LAT] = NO_POINT


@inlined
def _close(state: Integers, until: int, closed: Integers) -> None:
    closed[CLOSED_FROM] = state[SINCE]
    closed[CLOSED_TO] = until
    closed[CLOSED_PLACE] = state[PLACE]
    closed[CLOSED_LON] = state[LON]
    closed[CLOSED_LAT] = state[LAT]
    for source in range(SOURCE_COUNT):
        closed[CLOSED_ATTRIBUTES + source] = state[ATTRIBUTES + source]


@inlined
def expire(state: Integers, settings: Integers, now: int, closed: Integers) -> int:
    """Close the context if its heartbeats have stopped by `now`; return the number closed."""
    if state[OPEN] == 0 or state[SEEN] >= now - settings[HEARTBEAT]:
        return 0
    _close(state, state[SEEN], closed)
    clear(state)
    return 1


@inlined
def _support(state: Integers, settings: Integers, place: int, time: int) -> int:
    total = 0
    for source in range(SOURCE_COUNT):
        report = REPORT + source * REPORT_WIDTH
        fresh = settings[FRESH + source]
        age = time - state[report + REPORT_TIME]
        if state[report + REPORT_PLACE] == place and age <= fresh:
            # Integer arithmetic, so that the live agent and the pipeline agree bit by bit (0050).
            total += settings[RELIABILITY + source] * (fresh - age) // fresh
    return total


@inlined
def _winner(state: Integers, settings: Integers, time: int, sighted: int) -> int:
    """Return the source whose place has most support, -1 if the current place stays."""
    held = state[PLACE]
    best, best_support = -1, 0
    for offset in range(SOURCE_COUNT):  # start with the source of this sighting: it wins ties
        source = (sighted + offset) % SOURCE_COUNT
        report = REPORT + source * REPORT_WIDTH
        if time - state[report + REPORT_TIME] > settings[FRESH + source]:
            continue
        place = state[report + REPORT_PLACE]
        if place == held:  # it can win nothing: whoever stays costs no division
            continue
        support = _support(state, settings, place, time)
        if support > best_support:
            best, best_support = source, support
    if best < 0:
        return -1
    held_support = _support(state, settings, held, time)
    return best if held_support == 0 or best_support > held_support + settings[MARGIN] else -1


@inlined
def _move(state: Integers, settings: Integers, time: int, sighted: int, closed: Integers) -> int:
    """Apply rules 3 and 4; return 1 if a context closed, plus CHANGED if the place changed."""
    winner = _winner(state, settings, time, sighted)
    if winner < 0:
        state[CANDIDATE] = NONE
        return 0
    report = REPORT + winner * REPORT_WIDTH
    if state[CANDIDATE] != state[report + REPORT_PLACE]:
        state[CANDIDATE] = state[report + REPORT_PLACE]
        state[CANDIDATE_SINCE] = time
        state[CANDIDATE_LON] = state[report + REPORT_LON]
        state[CANDIDATE_LAT] = state[report + REPORT_LAT]
    if time - state[CANDIDATE_SINCE] < settings[DWELL]:
        return 0
    # The move counts from the first win, but a context never begins before the one it replaces: an
    # attribute may have opened that one in the meantime.
    cut = max(state[CANDIDATE_SINCE], state[SINCE])
    answer = CHANGED
    if cut > state[SINCE]:  # otherwise the old context has no length and is replaced silently
        _close(state, cut, closed)
        answer += 1
    state[SINCE] = cut
    state[PLACE] = state[CANDIDATE]
    state[LON] = state[CANDIDATE_LON]
    state[LAT] = state[CANDIDATE_LAT]
    state[CANDIDATE] = NONE
    return answer


@inlined
def _refresh(state: Integers, settings: Integers, time: int, closed: Integers) -> int:
    """Apply rule 5; return 1 if a context closed, plus CHANGED if attributes changed."""
    changed = False
    for source in range(SOURCE_COUNT):
        report = REPORT + source * REPORT_WIDTH
        fresh = time - state[report + REPORT_TIME] <= settings[FRESH + source]
        if state[ATTRIBUTES + source] != (state[report + REPORT_ATTRIBUTES] if fresh else NONE):
            changed = True
    if not changed:
        return 0
    answer = CHANGED
    if time > state[SINCE]:
        _close(state, time, closed)
        state[SINCE] = time
        answer += 1
    for source in range(SOURCE_COUNT):
        report = REPORT + source * REPORT_WIDTH
        fresh = time - state[report + REPORT_TIME] <= settings[FRESH + source]
        state[ATTRIBUTES + source] = state[report + REPORT_ATTRIBUTES] if fresh else NONE
    return answer


@kernel
def step(state: Integers, settings: Integers, sighting: Integers, closed: Integers) -> int:
    """Apply one sighting (time, source, place, lon, lat, attributes) to a person's state.

    Closed contexts go to the first rows of `closed`; returns their number, plus the flags.
    """
    time, source, attributes = sighting[0], sighting[1], sighting[5]
    if time < state[SEEN]:
        return LATE
    report = REPORT + source * REPORT_WIDTH
    said = attributes != UNSAID
    if (
        time == state[report + REPORT_TIME]
        and sighting[2] == state[report + REPORT_PLACE]
        and sighting[3] == state[report + REPORT_LON]
        and sighting[4] == state[report + REPORT_LAT]
        and (not said or attributes == state[report + REPORT_ATTRIBUTES])
    ):
        return REPEATED
    # Silence is decided when the next sighting comes, so that no timer is needed in the pipeline
    # (0050); the live agent's timer reaches the same end earlier.
    count = expire(state, settings, time, closed[0])
    state[report + REPORT_TIME] = time
    state[report + REPORT_PLACE] = sighting[2]
    state[report + REPORT_LON] = sighting[3]
    state[report + REPORT_LAT] = sighting[4]
    if said:
        state[report + REPORT_ATTRIBUTES] = attributes
    state[SEEN] = time
    flags = 0
    if state[OPEN] == 0:
        state[OPEN] = 1
        state[SINCE] = time
        state[PLACE] = sighting[2]
        state[LON] = sighting[3]
        state[LAT] = sighting[4]
        flags = CHANGED
    else:
        answer = _move(state, settings, time, source, closed[count])
        count += answer & CLOSED_MASK
        flags |= answer & CHANGED
    answer = _refresh(state, settings, time, closed[count])
    count += answer & CLOSED_MASK
    return count | flags | (answer & CHANGED)


@kernel
def scan(
    people: Integers,
    sightings: Integers,
    states: Integers,
    settings: Integers,
    closed: Integers,
    whose: Integers,
    answers: Integers,
) -> int:
    """Apply rows of sightings, sorted by person and time, each to the state of its person.

    `people[row]` is the person's row in `states`. Closed contexts go to `closed`, which has room
    for two per row, with the person in `whose`; returns their number.
    """
    count = 0
    for row in range(len(people)):
        answer = step(states[people[row]], settings, sightings[row], closed[count : count + 2])
        answers[row] = answer
        for _ in range(answer & CLOSED_MASK):
            whose[count] = people[row]
            count += 1
    return count


@kernel
def expire_all(
    states: Integers, settings: Integers, now: int, closed: Integers, whose: Integers
) -> int:
    """Close every context whose heartbeats have stopped by `now`; return their number."""
    count = 0
    for person in range(len(states)):
        if expire(states[person], settings, now, closed[count]) == 1:
            whose[count] = person
            count += 1
    return count
