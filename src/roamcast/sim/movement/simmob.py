"""SimMob, AMS's workload generator: people who move about a building.

"The main simulation loop chooses a destination based on the users mode and … expands it to the
sequence of steps (i.e., sightings) along the shortest path. These steps are then emitted at times
based on the step's distance and a global travel-rate. Once a move is complete, [it] chooses a
Poisson-distributed random sleep time" (exponential, as we read it). "Activities … can change the
mode and rate for one or a group of people."
"""

import heapq
import math
import random
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from roamcast.errors import LimitError, PlaceError
from roamcast.model.places import Places
from roamcast.model.places_walk import WaysTo
from roamcast.sim.movement.draws import Draws, exponential
from roamcast.sim.movement.modes import MovementMode
from roamcast.sim.movement.moves import Move

PEOPLE_MAX = 10_000_000
SETTLED_MAX = 4_000_000
"""Maximum settled places in all cached walks, about 400 MB; the least recently used are evicted."""


class Activity(msgspec.Struct, frozen=True):
    """At `time_us` these people change their mode and their mean pause.

    With `within_us` they also set out for their new destination so as to arrive within that time,
    each at their own moment; without it, the change shows at their next decision. A mean pause of
    None means that whoever arrives stays for good.
    """

    time_us: int
    people: Sequence[int]
    mode: MovementMode
    pause_us: float | None
    within_us: int | None = None


class SimMob:
    """A stream of moves of people who start at `starts`; one pass only.

    It is endless unless everybody stays for good or `end_us` is given. Under a mode that nobody
    ever leaves, only `end_us` ends the search for the next move.
    """

    def __init__(
        self,
        places: Places,
        starts: Sequence[int],
        mode: MovementMode,
        generator: random.Random,
        *,
        speed_m_s: float,
        pause_us: float,
        activities: Sequence[Activity] = (),
        start_us: int = 0,
        end_us: int | None = None,
    ) -> None:
        if not 1 <= len(starts) <= PEOPLE_MAX:
            raise LimitError(f"SimMob moves 1 to {PEOPLE_MAX} people, not {len(starts)}")
        if not (speed_m_s > 0 and math.isfinite(speed_m_s) and pause_us > 0):
            raise PlaceError("the travel rate and the mean pause are above 0")
        _check_activities(activities, len(starts), start_us)
        self.people = len(starts)
        self.walking = 0
        self.walking_us = 0
        self._now = start_us
        self._start_us = start_us
        self._end_us = end_us
        self._paths = places.paths
        self._ways = _Ways(places, speed_m_s)
        self._draws = Draws(self.people, generator)
        self._drawn = [0] * self.people
        self._here = list(starts)
        self._mode: list[MovementMode] = [mode] * self.people
        self._pause: list[float | None] = [pause_us] * self.people
        # The rest of each person's walk, next step last; when it is due; its validity.
        self._steps: dict[int, list[int]] = {}
        self._due = [start_us] * self.people
        self._turn = [0] * self.people
        self._called: dict[int, tuple[int, int]] = {}
        self._activities = sorted(activities, key=lambda activity: activity.time_us)
        self._queue: list[tuple[int, int, int]] = []

    def __iter__(self) -> Iterator[Move]:
        """Yield everybody's start, then their steps in time order, ties by person."""
        for index, activity in enumerate(self._activities):
            # Activities have negative person numbers: at the same time they come first, in order.
            self._queue.append((activity.time_us, index - len(self._activities), 0))
        for person in range(self.people):
            self._rest(person, self._start_us)
            yield Move(self._start_us, person, self._paths[self._here[person]])
        heapq.heapify(self._queue)
        while self._queue:
            now, person, turn = heapq.heappop(self._queue)
            if self._end_us is not None and now > self._end_us:
                return
            self.walking_us += self.walking * (now - self._now)
            self._now = now
            if person < 0:
                self._call(self._activities[person + len(self._activities)])
            elif turn == self._turn[person]:  # otherwise a call has replaced this event
                steps = self._steps.get(person)
                if steps is None:
                    self._decide(person, now)
                else:
                    place = self._arrive(person, steps, now)
                    yield Move(now, person, self._paths[place])

    def _unit(self, person: int) -> float:
        self._drawn[person] += 1
        return self._draws.unit(person, self._drawn[person])

    def _at(self, person: int, time_us: int) -> None:
        self._due[person] = time_us
        heapq.heappush(self._queue, (time_us, person, self._turn[person]))

    def _rest(self, person: int, now: int) -> None:
        mean = self._pause[person]
        if mean is not None:
            # At least 1 µs, or a person could decide for ever at one instant.
            self._at(person, now + max(1, round(exponential(self._unit(person), mean))))

    def _decide(self, person: int, now: int) -> None:
        here = self._here[person]
        _, goal = self._called.pop(person, (0, -1))
        if goal < 0:
            goal = self._mode[person].goal(person, here, self._unit(person))
        if goal == here:
            self._rest(person, now)
            return
        steps = self._ways.steps(here, goal)
        self._steps[person] = steps
        self.walking += 1
        self._at(person, now + self._ways.step_us(here, steps[-1]))

    def _arrive(self, person: int, steps: list[int], now: int) -> int:
        place = self._here[person] = steps.pop()
        if steps:
            self._at(person, now + self._ways.step_us(place, steps[-1]))
            return place
        del self._steps[person]
        self.walking -= 1
        if person in self._called:
            self._at(person, max(now, self._called[person][0]))
        else:
            self._rest(person, now)
        return place

    def _call(self, activity: Activity) -> None:
        """Change modes; people called with a deadline set out at the end of their current step."""
        for person in activity.people:
            stayed = self._pause[person] is None and person not in self._called
            self._mode[person] = activity.mode
            self._pause[person] = activity.pause_us
            steps = self._steps.get(person)
            if activity.within_us is None:
                if stayed and steps is None:
                    self._rest(person, activity.time_us)
                continue
            free_at, place = activity.time_us, self._here[person]
            if steps is not None:  # nobody turns round between two places: finish the step
                del steps[:-1]
                free_at, place = self._due[person], steps[-1]
            goal = activity.mode.goal(person, place, self._unit(person))
            latest = activity.time_us + activity.within_us - self._ways.way_us(place, goal)
            leave = free_at + round(self._unit(person) * max(0, latest - free_at))
            self._called[person] = (leave, goal)
            if steps is None:
                self._turn[person] += 1
                self._at(person, leave)


def _check_activities(activities: Sequence[Activity], people: int, start_us: int) -> None:
    for activity in activities:
        if activity.time_us < start_us or (activity.within_us or 0) < 0:
            raise PlaceError("an activity begins after the start and its duration is at least 0")
        if any(not 0 <= person < people for person in activity.people):
            raise PlaceError(f"an activity is for people from 0 to {people - 1}")
        if activity.pause_us is not None and not activity.pause_us > 0:
            raise PlaceError("the mean pause is above 0, or none to stay for good")


class _Ways:
    """Shortest walks by destination, cached within a bound, and the duration of each step."""

    def __init__(self, places: Places, speed_m_s: float) -> None:
        self._places = places
        walks = self._walks = places.walks
        micros = np.maximum(1, np.rint(walks.metres / speed_m_s * 1e6)).astype(np.int64)
        keys = walks.starts * len(places) + walks.ends
        self._step_us: dict[int, int] = dict(zip(keys.tolist(), micros.tolist(), strict=True))
        self._count = len(places)
        self._cached: dict[int, WaysTo] = {}
        self._settled = 0

    def step_us(self, here: int, there: int) -> int:
        """Return the duration of one step between neighbours."""
        return self._step_us[here * self._count + there]

    def way_us(self, here: int, goal: int) -> int:
        """Return the duration of a whole walk."""
        total = 0
        for step in reversed(self.steps(here, goal)):
            total += self.step_us(here, step)
            here = step
        return total

    def steps(self, here: int, goal: int) -> list[int]:
        """Return the places of the walk without its start, the next one last."""
        root = self._walks.door_of(goal)
        # Pop and insert again: a dict in order of use is the LRU cache.
        ways = self._cached.pop(root, None)
        if ways is None:
            ways = self._walks.ways_to(goal)
        self._settled -= len(ways)  # a search grows when it is resumed (0031)
        reached = ways.metres(here, goal)
        self._settled += len(ways)
        self._cached[root] = ways
        while self._settled > SETTLED_MAX and len(self._cached) > 1:
            self._settled -= len(self._cached.pop(next(iter(self._cached))))
        if reached is None:
            raise PlaceError(f"there is no walk to {self._places.path(goal)!r}")
        return ways.steps(here, goal)[::-1]
