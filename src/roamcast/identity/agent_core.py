"""What does one more sighting change? The user agent's rules, compiled, on a row of integers.

AMS: "Location information for each person is synthesized from these various sources by the user
agent for that person." This is its only implementation: `step` is called for one sighting at a
time by the live agent (`agent`) and for whole columns by the pipeline (`scan`, below).

A person's state is one row of 64-bit integers. Places and attributes are keys, numbers that stand
for texts and are only ever compared; a point is the bits of its two floats, so nothing is rounded.
The rules, in the order in which `step` applies them:

1. A sighting older than the last one is late and changes nothing; one that repeats what its source
   just said changes nothing.
2. After a silence longer than the heartbeat the context ended at the last sighting, and what the
   sources said before is forgotten.
3. Each source's last word supports its place with its reliability, fading to nothing over its
   freshness. The place with most support wins; it must beat the place held by the margin, unless
   nothing supports that one any more.
4. A new winner becomes the place when it has won for the dwell time, from its first win on.
5. A source's attributes count while it is fresh; any change of the four cuts the context.

A context that a later sighting of the same moment replaces has no length and is not reported.
"""

import numpy as np
import numpy.typing as npt

from roamcast.identity.agent_settings import DWELL, FRESH, HEARTBEAT, MARGIN, RELIABILITY
from roamcast.identity.sightings import SOURCES
from roamcast.model.kernels import kernel

Integers = npt.NDArray[np.int64]

SOURCE_COUNT = len(SOURCES)
NEVER = -(2**62)
"""Earlier than every moment."""
NO_POINT = 0x7FF8000000000000
"""The bits of the float that is no number."""
NONE, UNSAID = 0, -1
"""Keys: no text; and, of attributes in a sighting only, nothing said about them."""

# The state's columns; then for each source: time, place, lon, lat, attributes.
OPEN, SINCE, SEEN, PLACE, LON, LAT, ATTRIBUTES = 0, 1, 2, 3, 4, 5, 6
CANDIDATE = ATTRIBUTES + SOURCE_COUNT
CANDIDATE_SINCE, CANDIDATE_LON, CANDIDATE_LAT = CANDIDATE + 1, CANDIDATE + 2, CANDIDATE + 3
HEARD = CANDIDATE + 4
HEARD_TIME, HEARD_PLACE, HEARD_LON, HEARD_LAT, HEARD_ATTRIBUTES, HEARD_WIDTH = 0, 1, 2, 3, 4, 5
STATE_WIDTH = HEARD + SOURCE_COUNT * HEARD_WIDTH

KEY_COLUMNS = (
    PLACE,
    *range(ATTRIBUTES, ATTRIBUTES + SOURCE_COUNT),
    CANDIDATE,
    *(HEARD + s * HEARD_WIDTH + HEARD_PLACE for s in range(SOURCE_COUNT)),
    *(HEARD + s * HEARD_WIDTH + HEARD_ATTRIBUTES for s in range(SOURCE_COUNT)),
)
"""The columns of a state that hold keys: what to translate when keys get other numbers."""

# A closed context: its interval, place, point, and the key of each source's attributes.
CLOSED_FROM, CLOSED_TO, CLOSED_PLACE, CLOSED_LON, CLOSED_LAT, CLOSED_ATTRIBUTES = 0, 1, 2, 3, 4, 5
CLOSED_WIDTH = CLOSED_ATTRIBUTES + SOURCE_COUNT
CLOSED_MAX = 2
"""One sighting closes at most two contexts: its place was confirmed, and an attribute changed."""

# What `step` answers: the number of contexts closed, and these flags.
CLOSED_MASK, CHANGED, LATE, REPEATED = 3, 4, 8, 16


@kernel
def clear(state: Integers) -> None:
    """Make the state that of a person never seen."""
    state[:] = 0
    state[SEEN] = NEVER
    state[LON] = state[LAT] = NO_POINT
    state[CANDIDATE_LON] = state[CANDIDATE_LAT] = NO_POINT
    for source in range(SOURCE_COUNT):
        heard = HEARD + source * HEARD_WIDTH
        state[heard + HEARD_TIME] = NEVER
        state[heard + HEARD_LON] = state[heard + HEARD_LAT] = NO_POINT


@kernel
def _close(state: Integers, until: int, closed: Integers) -> None:
    closed[CLOSED_FROM] = state[SINCE]
    closed[CLOSED_TO] = until
    closed[CLOSED_PLACE] = state[PLACE]
    closed[CLOSED_LON] = state[LON]
    closed[CLOSED_LAT] = state[LAT]
    for source in range(SOURCE_COUNT):
        closed[CLOSED_ATTRIBUTES + source] = state[ATTRIBUTES + source]


@kernel
def expire(state: Integers, settings: Integers, now: int, closed: Integers) -> int:
    """Close the context if its heartbeats have stopped by `now`; give the number closed, 0 or 1."""
    if state[OPEN] == 0 or state[SEEN] >= now - settings[HEARTBEAT]:
        return 0
    _close(state, state[SEEN], closed)
    clear(state)
    return 1


@kernel
def _support(state: Integers, settings: Integers, place: int, time: int) -> int:
    total = 0
    for source in range(SOURCE_COUNT):
        heard = HEARD + source * HEARD_WIDTH
        fresh = settings[FRESH + source]
        age = time - state[heard + HEARD_TIME]
        if state[heard + HEARD_PLACE] == place and age <= fresh:
            total += settings[RELIABILITY + source] * (fresh - age) // fresh
    return total


@kernel
def _winner(state: Integers, settings: Integers, time: int, sighted: int) -> int:
    """Give the source whose place has most support, -1 while the place held is good enough."""
    held = state[PLACE]
    best, best_support = -1, 0
    for offset in range(SOURCE_COUNT):  # the source that just spoke first: it wins ties
        source = (sighted + offset) % SOURCE_COUNT
        heard = HEARD + source * HEARD_WIDTH
        if time - state[heard + HEARD_TIME] > settings[FRESH + source]:
            continue
        place = state[heard + HEARD_PLACE]
        support = _support(state, settings, place, time)
        if place != held and support > best_support:
            best, best_support = source, support
    held_support = _support(state, settings, held, time)
    if best >= 0 and (held_support == 0 or best_support > held_support + settings[MARGIN]):
        return best
    return -1


@kernel
def _move(state: Integers, settings: Integers, time: int, sighted: int, closed: Integers) -> int:
    """Apply rules 3 and 4; give 1 if a context closed, CHANGED if the place did."""
    winner = _winner(state, settings, time, sighted)
    if winner < 0:
        state[CANDIDATE] = NONE
        return 0
    heard = HEARD + winner * HEARD_WIDTH
    if state[CANDIDATE] != state[heard + HEARD_PLACE]:
        state[CANDIDATE] = state[heard + HEARD_PLACE]
        state[CANDIDATE_SINCE] = time
        state[CANDIDATE_LON] = state[heard + HEARD_LON]
        state[CANDIDATE_LAT] = state[heard + HEARD_LAT]
    if time - state[CANDIDATE_SINCE] < settings[DWELL]:
        return 0
    cut = max(state[CANDIDATE_SINCE], state[SINCE])
    answer = CHANGED
    if cut > state[SINCE]:
        _close(state, cut, closed)
        answer += 1
    state[SINCE] = cut
    state[PLACE] = state[CANDIDATE]
    state[LON] = state[CANDIDATE_LON]
    state[LAT] = state[CANDIDATE_LAT]
    state[CANDIDATE] = NONE
    return answer


@kernel
def _refresh(state: Integers, settings: Integers, time: int, closed: Integers) -> int:
    """Apply rule 5; give 1 if a context closed, CHANGED if the attributes did."""
    changed = False
    for source in range(SOURCE_COUNT):
        heard = HEARD + source * HEARD_WIDTH
        fresh = time - state[heard + HEARD_TIME] <= settings[FRESH + source]
        if state[ATTRIBUTES + source] != (state[heard + HEARD_ATTRIBUTES] if fresh else NONE):
            changed = True
    if not changed:
        return 0
    answer = CHANGED
    if time > state[SINCE]:
        _close(state, time, closed)
        state[SINCE] = time
        answer += 1
    for source in range(SOURCE_COUNT):
        heard = HEARD + source * HEARD_WIDTH
        fresh = time - state[heard + HEARD_TIME] <= settings[FRESH + source]
        state[ATTRIBUTES + source] = state[heard + HEARD_ATTRIBUTES] if fresh else NONE
    return answer


@kernel
def step(state: Integers, settings: Integers, sighting: Integers, closed: Integers) -> int:
    """Apply one sighting (time, source, place, lon, lat, attributes) to a person's state.

    Closed contexts go to the first rows of `closed`; the answer is how many, plus the flags.
    """
    time, source, attributes = sighting[0], sighting[1], sighting[5]
    if time < state[SEEN]:
        return LATE
    heard = HEARD + source * HEARD_WIDTH
    said = attributes != UNSAID
    if (
        time == state[heard + HEARD_TIME]
        and sighting[2] == state[heard + HEARD_PLACE]
        and sighting[3] == state[heard + HEARD_LON]
        and sighting[4] == state[heard + HEARD_LAT]
        and (not said or attributes == state[heard + HEARD_ATTRIBUTES])
    ):
        return REPEATED
    count = expire(state, settings, time, closed[0])
    state[heard + HEARD_TIME] = time
    state[heard + HEARD_PLACE] = sighting[2]
    state[heard + HEARD_LON] = sighting[3]
    state[heard + HEARD_LAT] = sighting[4]
    if said:
        state[heard + HEARD_ATTRIBUTES] = attributes
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
    for two a row, with the person in `whose`; the answer is how many there are.
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
    """Close every context whose heartbeats have stopped by `now`; give how many."""
    count = 0
    for person in range(len(states)):
        if expire(states[person], settings, now, closed[count]) == 1:
            whose[count] = person
            count += 1
    return count
