"""The user agent's rules over sorted Arrow batches: one task's sightings to contexts.

Runs inside Spark's Python workers, on chunks of a few hundred thousand rows whatever the number of
people. One dictionary per chunk numbers the keys, the compiled scan does the rest. A person whose
rows reach into the next chunk is carried over, so memory does not grow with anybody's rows. What
sources say about people is parsed once per distinct text.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from secrets import token_bytes
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roamcast.errors import InputError
from roamcast.identity import agent_core as core
from roamcast.identity.agent_settings import HEARTBEAT, RELIABILITY, AgentSettings
from roamcast.identity.attributes import NOTHING, canonical, merged
from roamcast.identity.keys import TrustedKeys
from roamcast.identity.pseudonyms import HANDLE_BYTES, new_handles, seal
from roamcast.identity.sightings import SOURCES
from roamcast.identity.whereabouts import CELL_RESOLUTION, Whereabouts
from roamcast.model.places_geojson import read_places
from roamcast.pipeline.ingest import rows
from roamcast.pipeline.ingest.pack import compact

REMEMBERED_MAX = 100_000
"""Distinct texts remembered between chunks."""

Outcome = tuple[str | None, str | None]
"""The canonical text, none if it says nothing; and what is wrong, if something is."""


NO_ROOM = "the archive has no room for another attribute name"


class Spoken:
    """The attributes of one task; `columns` gathers those that its sightings and contexts have.

    room: the columns that the archive has room for; none if it has room for any.
    """

    def __init__(self, reliability: list[int], room: frozenset[str] | None = None) -> None:
        self.columns: set[str] = set()
        self._reliability = reliability
        self._room = room
        self._read: dict[str, Outcome] = {}

    def canonical(self, text: str) -> Outcome:
        """Read what a source wrote."""
        outcome = self._read.get(text)
        if outcome is None:
            outcome = self._outcome(text)
            if len(self._read) >= REMEMBERED_MAX:
                self._read.clear()
            self._read[text] = outcome
        return outcome

    def _outcome(self, text: str) -> Outcome:
        try:
            found = canonical(text)
        except InputError as error:
            return None, error.problem
        columns = _columns(found)
        if self._room is not None and not columns <= self._room:
            return None, NO_ROOM
        # already now, not when a context ends: by then others could have taken the room
        self.columns |= columns
        return None if found == NOTHING else found, None

    def merged(self, codes: Any, texts: pa.Array) -> pa.Array:
        """Join what the sources of each context say; `codes` has a row of their keys each."""
        if not codes.any():  # nobody says anything: the usual case costs nothing
            return pa.array([NOTHING], pa.string()).take(pa.array(np.zeros(len(codes), np.int64)))
        first, which = _alike(codes)
        known = texts.take(pa.array(codes[first].ravel())).to_pylist()
        width = len(SOURCES)
        fours = [known[start : start + width] for start in range(0, len(known), width)]
        joined = [merged(four, self._reliability) for four in fours]
        for text in joined:
            self.columns |= _columns(text)
        return pa.array(joined, pa.string()).take(pa.array(which))


def _alike(codes: core.Integers) -> tuple[core.Integers, core.Integers]:
    """Number equal rows alike; give a row of each number, and the number of each row.

    A column at a time: to sort whole rows takes ten times as long.
    """
    key = np.zeros(len(codes), np.int64)
    for column in codes.T:
        if column.any():
            numbers = np.unique(key, return_inverse=True)[1] if key.any() else key
            key = numbers * (int(column.max()) + 1) + column
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return first, which


def _columns(text: str) -> set[str]:
    return set(msgspec.json.decode(text, type=dict[str, Any]))


CHUNK_ROWS = 262_144
EVER = 2**61
"""Later than every moment: nothing waits."""

UNSEEN = 2**62
"""The earliest sighting of somebody who was never seen."""


class ScanTask(msgspec.Struct, frozen=True):
    """Parameters of a task; small, because they are pickled with the function.

    room: the attribute columns that the archive has room for; none if it has room for any.
    """

    keys: TrustedKeys
    settings: AgentSettings
    release_until: int
    places: str | None = None
    resolution: int = CELL_RESOLUTION
    room: frozenset[str] | None = None


class Scanner:
    """`mapInArrow`'s function: sorted rows of `ingest_rows.TAKEN` in, rows of GIVEN out."""

    def __init__(self, task: ScanTask) -> None:
        self.task = task

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Scan one partition."""
        scan = _Scan(self.task)
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            waiting.append(batch)
            if sum(part.num_rows for part in waiting) >= CHUNK_ROWS:
                yield from scan.chunk(pa.Table.from_batches(waiting))
                waiting = []
        if waiting:
            yield from scan.chunk(pa.Table.from_batches(waiting))
        yield from scan.finish()


@lru_cache(maxsize=2)
def _places(path: str, modified_ns: int) -> Any:
    del modified_ns  # a changed file is another file
    return read_places(Path(path).read_bytes())


class _Carried(msgspec.Struct):
    """The person whose rows may go on: name, handle, state, and the texts of its keys.

    `known`: since and until when the person's sightings had been worked in before this batch;
    `first`: its earliest sighting so far. `states`: of what goes on, and of what is filled in
    before `known` (decision 0158).
    """

    person: str
    known: tuple[int, int]
    first: int
    handle: npt.NDArray[np.uint8]
    states: core.Integers
    texts: pa.Array


class _Register(msgspec.Struct):
    """What is known of a chunk's people, a row each: `_Carried`, as arrays."""

    people: pa.Array
    handles: npt.NDArray[np.uint8]
    since: core.Integers
    until: core.Integers
    first: core.Integers

    def part(self, start: int, end: int) -> "_Register":
        """Give some of them."""
        own = (column[start:end] for column in (self.since, self.until, self.first))
        return _Register(self.people[start:end], self.handles[start:end], *own)


class _Scan:
    def __init__(self, task: ScanTask) -> None:
        places = task.places
        known = None if places is None else _places(places, Path(places).stat().st_mtime_ns)
        self.whereabouts = Whereabouts(known, task.resolution)
        self.task = task
        self.settings = task.settings.vector()
        self.empty = np.empty(core.STATE_WIDTH, np.int64)
        core.clear(self.empty)
        self.carried: _Carried | None = None
        self.counts = dict.fromkeys(rows.COUNTED, 0)
        self.newest = core.NEVER
        reliability = self.settings[RELIABILITY : RELIABILITY + len(SOURCES)]
        self.spoken = Spoken(reliability.tolist(), task.room)

    def chunk(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """Scan some rows; hold back the last person until the next rows come."""
        alive = pc.is_null(table["reason"])
        if pc.any(pc.invert(alive)).as_py():
            dead = table.filter(pc.invert(alive))
            self.counts["malformed"] += dead.num_rows
            self.counts["sightings"] += dead.num_rows
            yield rows.passed_on(rows.DEAD, dead)
            table = table.filter(alive)
        if table.num_rows:
            yield from self._people(table)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Return the remaining rows and the counts."""
        last = self.carried
        if last is not None:
            numbers, texts = rows.renumbered(last.states, last.texts)
            register = _Register(
                pa.array([last.person], pa.string()),
                last.handle.reshape(1, -1),
                *(np.array([number]) for number in (*last.known, last.first)),
            )
            yield from self._settled(register, numbers[:1], numbers[1:], texts)
        told = [*self.counts.values(), self.newest]
        yield rows.count_row(told, sorted(self.spoken.columns))

    def _people(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """Scan rows that all belong to somebody.

        Each has two states: of sightings after all that were worked in before, and of those
        filled in before them.
        """
        person = table["person"].combine_chunks()
        starts = np.flatnonzero(np.diff(person.indices.to_numpy(), prepend=-1))
        people = person.take(pa.array(starts)).cast(pa.string())
        lengths = np.diff(starts, append=table.num_rows)
        if self.carried is not None and people[0].as_py() != self.carried.person:
            people = pa.concat_arrays([pa.array([self.carried.person], pa.string()), people])
            lengths = np.concatenate([[0], lengths])
        index = np.repeat(np.arange(len(people)), lengths)
        rank = table["rank"].to_numpy()
        sighted = np.flatnonzero(rank == rows.RANK_SIGHTING)
        sightings = table
        if len(sighted) < table.num_rows:
            sightings = rows.chosen(table, sighted)
        register = self._known(table, rank, index, people)
        whose = index[sighted]
        now, filled, keys, pieces = yield from self._sorted_out(
            sightings, register.since[whose], register.until[whose]
        )
        opened = np.flatnonzero(rank == rows.RANK_OPEN)
        found, texts = rows.held_states(
            *(table[name].combine_chunks().take(pa.array(opened)) for name in ("numbers", "texts"))
        )
        where, lons, lats = self._located(sightings, now)
        carried = [] if self.carried is None else [self.carried.texts]
        codes, dictionary = rows.numbered([where, pieces, texts, *carried])
        count = len(people)
        states = np.tile(self.empty, (2 * count, 1))
        held = list(core.KEY_COLUMNS)
        found[:, held] = codes[2].reshape(-1, len(held))
        if self.carried is not None:
            states[[0, count]] = self.carried.states
            states[np.ix_([0, count], held)] = codes[3].reshape(2, -1)
        states[index[opened]] = found  # after: a carried person's open interval may come only now
        times = sightings["time"].to_numpy()[now]
        table_now = np.empty((len(now), 6), np.int64)
        table_now[:, 0] = times
        table_now[:, 1] = sightings["source"].to_numpy()[now]
        table_now[:, 2] = codes[0]
        table_now[:, 3], table_now[:, 4] = lons.view(np.int64), lats.view(np.int64)
        table_now[:, 5] = np.append(codes[1], core.UNSAID)[keys[now]]
        np.minimum.at(register.first, whose[now], times)
        state_of = np.where(filled[now], whose[now] + count, whose[now])
        twice = np.concatenate([register.handles, register.handles])
        yield from self._scanned(state_of, table_now, states, dictionary, twice)
        last = count - 1
        kept = states[[last, count + last]]
        self.carried = _Carried(
            people[last].as_py(),
            (int(register.since[last]), int(register.until[last])),
            int(register.first[last]),
            register.handles[last],
            kept,
            dictionary.take(pa.array(kept[:, held].ravel())),
        )
        yield from self._settled(
            register.part(0, last), states[:last], states[count : count + last], dictionary
        )

    def _located(self, sightings: pa.Table, now: core.Integers) -> tuple[pa.Array, Any, Any]:
        """Give the locations of some sightings, and their points."""
        where = sightings.select(["place", "lon", "lat"])
        if len(now) < sightings.num_rows:
            where = where.take(pa.array(now))
        place = where["place"].combine_chunks()
        lons, lats = (rows.degrees(where[name]) for name in ("lon", "lat"))
        if not place.null_count and (self.whereabouts.places is None or not np.isnan(lons).any()):
            return place, lons, lats  # all is said: the usual case costs nothing
        return self.whereabouts.locate_many(place.cast(pa.string()), lons, lats)

    def _sorted_out(self, sightings: pa.Table, since: core.Integers, until: core.Integers) -> Any:
        """Set aside what is late, malformed or has to wait; the rest is scanned now.

        A generator that returns the rows to scan now, which rows are filled in, the key of
        attributes by row, and their texts.
        """
        times = sightings["time"].to_numpy()
        fresh = sightings["fresh"].to_numpy()
        self.counts["sightings"] += int(fresh.sum())
        said = compact(sightings["attributes"].combine_chunks())
        outcomes = [self.spoken.canonical(text) for text in said.dictionary.to_pylist()]
        keys = said.indices.fill_null(len(outcomes)).to_numpy(zero_copy_only=False)
        wrong = np.array([reason is not None for _, reason in outcomes] + [False])[keys]
        known = fresh & (times <= until) & ~wrong
        # 0158: before a silence that ends a context anyway, the order of coming changes nothing
        filled = known & (times < since - self.settings[HEARTBEAT])
        late = known & ~filled
        waits = (times > self.task.release_until) & ~wrong & ~late
        if len(valid := times[fresh & ~wrong & ~late]):
            self.newest = max(self.newest, int(valid.max()))
        for name, chosen in (("malformed", wrong), ("late", late), ("pending", waits)):
            self.counts[name] += int(chosen.sum())
        if wrong.any():
            reasons = pa.array([reason for _, reason in outcomes] + [None], pa.string())
            chosen = np.flatnonzero(wrong)
            told = reasons.take(pa.array(keys[chosen]))
            yield rows.passed_on(rows.DEAD, sightings.take(pa.array(chosen)), told)
        if late.any():
            told = pa.array(["it came too late"] * int(late.sum()), pa.string())
            yield rows.passed_on(rows.DEAD, sightings.take(pa.array(np.flatnonzero(late))), told)
        if waits.any():
            yield rows.passed_on(rows.PENDING, sightings.take(pa.array(np.flatnonzero(waits))))
        pieces = pa.array([text for text, _ in outcomes], pa.string())
        return np.flatnonzero(~(late | waits | wrong)), filled, keys, pieces

    def _known(self, table: pa.Table, rank: Any, index: Any, people: pa.Array) -> _Register:
        """Give everybody's handle, drawn for whoever has none, and what was worked in before."""
        count = len(people)
        known = np.flatnonzero(rank == rows.RANK_PERSON)
        handles = rows.handle_matrix(new_handles(count, token_bytes)).copy()
        since, until = np.full(count, UNSEEN), np.full(count, core.NEVER)
        found = _Register(people, handles, since, until, since.copy())
        if self.carried is not None:
            handles[0], found.first[0] = self.carried.handle, self.carried.first
            since[0], until[0] = self.carried.known
        given = table["handle"].combine_chunks().take(pa.array(known))
        handles[index[known]] = rows.handle_matrix(given)
        until[index[known]] = table["time"].fill_null(core.NEVER).to_numpy()[known]
        # registers of earlier versions do not say since when: nothing can be filled in
        said = table["file"].fill_null(core.NEVER).to_numpy()[known]
        since[index[known]] = said
        found.first[index[known]] = np.minimum(found.first[index[known]], said)
        return found

    def _scanned(
        self, people: Any, sightings: Any, states: Any, texts: pa.Array, handles: Any
    ) -> Iterator[pa.RecordBatch]:
        room = 2 * len(sightings) + 2  # a step may look at two rows of room and use none
        closed = np.empty((room, core.CLOSED_WIDTH), np.int64)
        whose, answers = np.empty(room, np.int64), np.empty(len(sightings), np.int64)
        count = core.scan(people, sightings, states, self.settings, closed, whose, answers)
        self.counts["repeated"] += int(((answers & core.REPEATED) > 0).sum())
        yield from self._contexts(closed[:count], texts, handles[whose[:count]])

    def _settled(
        self, register: _Register, states: Any, filled: Any, texts: pa.Array
    ) -> Iterator[pa.RecordBatch]:
        """Finish people whose rows are complete: silent ones end, the others stay open.

        What was filled in ends in any case: what comes after it was worked in before.
        """
        people = register.people
        until = np.maximum(register.until, states[:, core.SEEN])
        for some, moment in ((states, self.task.release_until), (filled, EVER)):
            closed = np.empty((len(some) + 1, core.CLOSED_WIDTH), np.int64)
            whose = np.empty(len(some) + 1, np.int64)
            count = core.expire_all(some, self.settings, moment, closed, whose)
            yield from self._contexts(closed[:count], texts, register.handles[whose[:count]])
        self.counts["people"] += len(people)
        yield rows.person_rows(people, register.handles, register.first, until)
        lasting = np.flatnonzero(states[:, core.OPEN] == 1)
        self.counts["open"] += len(lasting)
        names = people.take(pa.array(lasting))
        held = rows.held_columns(states[lasting], texts)
        seen = pa.array(states[lasting, core.SEEN])  # by which it is found when it is due
        yield rows.given(rows.OPEN, len(lasting), {"person": names, "time": seen, **held})

    def _contexts(self, closed: Any, texts: pa.Array, handles: Any) -> Iterator[pa.RecordBatch]:
        if not len(closed):
            return
        self.counts["contexts"] += len(closed)
        spoken = self.spoken.merged(closed[:, core.CLOSED_ATTRIBUTES :], texts)
        data = pa.py_buffer(np.ascontiguousarray(handles).tobytes())
        sealed = pa.Array.from_buffers(pa.binary(HANDLE_BYTES), len(closed), [None, data])
        vids = seal(sealed, self.task.keys, token_bytes)
        yield rows.context_rows(closed, texts, spoken, vids)
