"""The part of a broker that keeps its past: every state of the map, on disk before it is promised.

What programs publish by HTTP or a session is on disk before it is shown: its step is one more row
of the same transaction (`step_for`). What clients publish over links is shown at once; its step is
written together with what else happens meanwhile, and the client is answered when it is on disk
(decision 0107).

The log has a step each time that what the map shows of a vid begins, changes or ends. A step stands
for itself: no write depends on what was written before it, so no failed write can spoil another.
`channels/past/pieces.py` makes pieces of them, states with their intervals. What people publish
over links is soft: their machines publish it again after a restart. Such a step names the life of
the broker, its epoch.

open → ended → archived: a piece is open until a step ends it. Some time later it is named in a
batch on disk, the batch is appended to the archive, and only then its steps leave the log (0108).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Any, ClassVar, Final

import msgspec

from roamcast.channels.past.feed import BATCH, ArchiveFeed
from roamcast.channels.past.messages import (
    AnswersDue,
    BatchLanded,
    BatchRefused,
    EndedFound,
    ErasePast,
    Follower,
    PastGrew,
)
from roamcast.channels.past.settings import BATCH_PIECES_MAX, RETURN_US, PastSettings
from roamcast.channels.server.messages import Answer
from roamcast.errors import LimitError, StoreError
from roamcast.model.contexts import Context, body_of
from roamcast.model.events import Acknowledged, Failed, RulesChanged
from roamcast.model.machine import (
    Effect,
    Entry,
    Store,
    Stored,
    StoreFailed,
    Writes,
)
from roamcast.model.parts import Occupancy, Part, Timers

PREFIX: Final = "past/"
LIVES: Final = "past/life/"
RULES: Final = "past/rules/"

LIVES_MAX: Final = 64
RULES_MAX: Final = 100_000
WRITE_ROWS_MAX: Final = 1_000
"""Steps in one write."""


STEPS: Final = "steps/"
"""Where the log is. Not a part's prefix: nobody reads the whole log at a start."""
_DIGITS: Final = 16
_VID: Final = len(STEPS) + _DIGITS + 1


class OnMap(msgspec.Struct):
    """What the map shows of a vid, and since when."""

    context: Context
    begin: int
    rules: str
    life: int
    row: int = 0
    """The number of the step that waits for the disk; 0 if it came with a publication."""
    written: int = 0
    """When its step was written, as the step's key says."""

    def same(self, context: Context, rules: str) -> bool:
        """Whether the map shows this state already; when it began does not count."""
        was, stated = self.context, context.attributes
        return (
            was.place == context.place
            and was.point == context.point
            and self.rules == rules
            and was.attributes == stated
            # 1, 1.0 and TRUE are equal in Python, and not in a filter
            and all(type(stated[name]) is type(value) for name, value in was.attributes.items())
        )


class Step(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the map shows of a vid from a moment on; without a body nothing any more."""

    at: int
    body: bytes = b""
    rules: str = ""
    """The id of the vid's own rules; empty while it has none."""
    life: int = 0
    """The epoch of the broker whose client published it; 0 if the broker stores it."""
    adopted: int = 0
    """When the step of another host was written that this one repeats; 0 if there is none."""
    settled: bool = False
    """Written when all who came back had done so: a state of an earlier life had ended by then."""


class FirstStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a stored publication knows of the step with which its state began."""

    begin: int
    written: int
    rules: str

    def row(self, vid: str, body: bytes) -> tuple[str, bytes]:
        """Give the step's key and value."""
        return key_of(self.written, vid), encode_step(Step(self.begin, body, self.rules))


class Uptime(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From when to when one life of a broker is known to have been up."""

    began: int
    alive: int


class Lives(msgspec.Struct, frozen=True):
    """What reading has to know of the broker: its own life, earlier ones, and who is there."""

    epoch: int
    lives: Mapping[int, Uptime]
    present: Collection[str]
    """The vids on the map that come from links."""
    now: int
    return_us: int = RETURN_US


encode_step: Final = msgspec.msgpack.Encoder().encode


def key_of(written: int, vid: str) -> str:
    """Name a step: steps sort by when they were written."""
    return f"{STEPS}{max(0, written):0{_DIGITS}x}/{vid}"


def vid_of(key: str) -> str:
    """Give the vid of a step's key."""
    return key[_VID:]


def written_of(key: str) -> int:
    """Give when a step was written."""
    return int(key[len(STEPS) : _VID - 1], 16)


def after(begin: int, at: int) -> int:
    """Give when a state ends that began then: as a clock says, but a microsecond later at least.

    A clock may be far behind what is on disk. States of one vid that all began at one moment could
    not be told apart, and one shown under two sets of rules would be archived twice.
    """
    return max(at, begin + 1)


_Row = tuple[int, bytes | None]
"""The number of a step that somebody may wait for, 0 if nobody does, and what is written."""


class _Retry(msgspec.Struct, frozen=True):
    """Write again what the disk refused."""


class _Alive(msgspec.Struct, frozen=True):
    """Note that this broker is up."""


class _Look(msgspec.Struct, frozen=True):
    """Look for what may leave the log."""


class Past(Part):
    """The past of one broker in one life."""

    part: ClassVar[str] = "past"
    inputs: ClassVar = (
        PastGrew,
        RulesChanged,
        EndedFound,
        BatchLanded,
        BatchRefused,
        ErasePast,
    )
    prefix: ClassVar[str] = PREFIX

    def __init__(
        self,
        *,
        epoch: int,
        now: int,
        settings: PastSettings,
        stamp: Callable[[int], int],
        rules_of: Callable[[str], bytes | None],
    ) -> None:
        """`stamp` gives one later than all on disk, so that steps sort later; rules are encoded."""
        self.settings = settings
        self.epoch = epoch
        self.lives: dict[int, Uptime] = {}
        self.rules: dict[str, bytes] = {}
        """Rules by their id, encoded."""
        self.fell_us = 0
        """When the life before this one was last known to be up."""
        self.followers: list[Follower] = []
        """Parts that follow what the map shows, in the order in which it does."""
        self.companions: Callable[[Context | None], Writes] = lambda _: ()
        """Gives rows that must be on disk with a state, or with the end of one."""
        self._began = now
        self._stamp = stamp
        self._rules_of = rules_of
        self._shown: dict[str, OnMap] = {}
        self._soft = 0
        """How many of them are lost with this process."""
        self._gone: dict[str, int] = {}
        self._rows: dict[str, _Row] = {}
        """What waits to be written, in its order."""
        self._in_flight: dict[str, _Row] = {}
        self._row = 0
        self._row_stored = 0
        self._on_disk: dict[str, None] = {}
        """The ids of rules that are on disk for certain."""
        self._resting = True
        """Nothing is written: before the first timer, and after the disk refused something."""
        self._rows_of: dict[str, int] = {}
        """Clients → the last of their steps that is not on disk."""
        self._held: dict[str, tuple[int, Answer]] = {}
        """Clients → the answer that waits, and for which step."""
        self._depending: Callable[[], int] = lambda: 0
        self._erasing: dict[int, ErasePast] = {}
        self._token = _OWN_TOKENS
        self.timers: Timers[_Retry | _Alive | _Look] = Timers()
        self.feed = ArchiveFeed(settings, _BATCH, self.again, partial(self.timers.set, _Look()))
        self.timers.set(_Look(), now + settings.look_us)
        self.timers.set(_Alive(), now)
        self.timers.set(_Retry(), now)

    def depends(self, count: Callable[[], int]) -> None:
        """Ask this how many stored contexts end with their session, and so with this process."""
        self._depending = count

    def occupancy(self) -> Occupancy:
        """How much is held."""
        known = 2 * len(self._shown) + len(self.rules) + LIVES_MAX
        return {
            "rows": (len(self._rows), self.settings.rows_max + known),
            "lives": (len(self.lives), LIVES_MAX),
            "rows on their way": (len(self._in_flight), WRITE_ROWS_MAX),
            "rules": (len(self.rules), RULES_MAX),
            "rules on disk": (len(self._on_disk), len(self.rules)),
            "gone": (len(self._gone), self.settings.gone_max),
            "clients waiting": (len(self._rows_of), len(self._rows) + len(self._in_flight)),
            "answers": (len(self._held), len(self._rows_of)),
            "batch": (len(self.feed.batch.pieces), BATCH_PIECES_MAX),
            "timers": (len(self.timers), 3),
        }

    @property
    def shown(self) -> int:
        """How many contexts on the map it knows."""
        return len(self._shown)

    # --- the disk -----------------------------------------------------------------------------

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Take up lives, rules and the batch; the log stays where it is."""
        del now
        for key, value in stored.items():
            self._take(key, value)
        self.fell_us = max((life.alive for life in self.lives.values()), default=0)
        return self.feed.resume()

    def adopt(self, entries: Sequence[Entry], now: int) -> Sequence[Effect]:
        """Take up what a replica had newer; its batch is to be finished first."""
        del now
        before = self.feed.batch
        for entry in entries:
            self._take(entry.key, entry.value)
        return () if self.feed.batch == before else self.feed.resume()

    def _take(self, key: str, value: bytes | None) -> None:
        if key.startswith(LIVES):
            epoch = int(key[len(LIVES) :])
            if value is None:
                self.lives.pop(epoch, None)
            else:
                self.lives[epoch] = msgspec.msgpack.decode(value, type=Uptime)
        elif key.startswith(RULES) and value is not None:
            self.rules[key[len(RULES) :]] = value
            self._on_disk[key[len(RULES) :]] = None
        elif key == BATCH and value is not None:
            self.feed.take(value)

    # --- what the map shows -------------------------------------------------------------------

    def step_for(
        self, context: Context, body: bytes, now: int, *, alone: bool
    ) -> tuple[FirstStep, Writes]:
        """Name the step with which a stored publication's state begins, and give it to be written.

        Nothing is to write if the map shows this state already, and on disk. `alone`: no other
        write of this vid is on its way, which might never arrive.
        """
        vid = context.vid
        rules, writes = self._rules(vid)
        known = self._shown.get(vid)
        if alone and known is not None and not known.life and known.same(context, rules):
            return FirstStep(known.begin, known.written, rules), ()
        first = FirstStep(self._begin(vid, context.t_r, now), self._stamp(now), rules)
        if context.t_r != first.begin:
            context = msgspec.structs.replace(context, t_r=first.begin)
        beside = self.companions(context)
        return first, (*beside, *writes, first.row(vid, body))

    def end_of(self, vid: str, at: int, now: int) -> Writes:
        """Give the step to write with what ends a stored publication."""
        return *self.companions(None), (key_of(self._stamp(now), vid), encode_step(Step(at)))

    def stored(self, context: Context, first: FirstStep) -> None:
        """A stored publication is on the map; its step is on disk."""
        rules, writes = self._rules(context.vid)
        self._on_disk.update((key[len(RULES) :], None) for key, _ in writes)
        self._note(context.vid, OnMap(context, first.begin, rules, 0, written=first.written))

    def adopt_state(
        self, context: Context, body: bytes, owner: str, first: FirstStep, now: int
    ) -> None:
        """The map shows what a replica had newer: a step of ours is the last of the vid.

        0200: It names the replica's own step, which may arrive long after the state has left for
        the archive: both are deleted then, and that deletion stands.
        """
        self.begin(context, body, owner, now, soft=False, adopted=first.written)

    def begin(
        self,
        context: Context,
        body: bytes,
        owner: str,
        now: int,
        *,
        soft: bool = True,
        adopted: int = 0,
    ) -> None:
        """The map shows something that is not on disk: write a step soon.

        `soft`: it is lost with this process, unless its publisher comes again. `adopted`: when the
        step of another host was written that says the same.
        """
        vid = context.vid
        known = self._shown.get(vid)
        rules, writes = self._rules(vid)
        life = self.epoch if soft else 0
        if known is not None and known.life == life and known.same(context, rules):
            return
        if known is not None and known.same(context, rules):
            begin = known.begin  # only who publishes it has changed
        else:
            begin = self._begin(vid, context.t_r, now)
        self.again((*self.companions(msgspec.structs.replace(context, t_r=begin)), *writes))
        row, written = self._add(vid, Step(begin, body, rules, life, adopted), now)
        if soft:
            self._rows_of[owner] = row
        self._note(vid, OnMap(context, begin, rules, life, row, written))

    def end(self, vid: str, owner: str, at: int, now: int) -> None:
        """The map shows a vid no more: write that soon; its owner is answered then."""
        known = self._shown.get(vid)
        if known is not None:
            self.again(self.companions(None))
            row, _ = self._add(vid, Step(after(known.begin, at)), now)
            if known.life:
                self._rows_of[owner] = row
            self.gone(vid, at)

    def correct(self, vid: str, now: int) -> None:
        """A step of a vid is on disk that never came true: write what the map shows after it."""
        known = self._shown.get(vid)
        if known is None:
            self._add(vid, Step(now), now)
            return
        stated = msgspec.structs.replace(known.context, t_r=known.begin)
        begin = after(known.begin, now)
        again = Step(begin, body_of(stated), known.rules, known.life)
        known.row, known.written = self._add(vid, again, now)

    def gone(self, vid: str, at: int) -> None:
        """The map shows a vid no more."""
        known = self._shown.pop(vid, None)
        if known is None:
            return
        self._soft -= bool(known.life)
        self._gone.pop(vid, None)
        ended = self._gone[vid] = after(known.begin, at)
        if len(self._gone) > self.settings.gone_max:
            del self._gone[next(iter(self._gone))]
        for follower in self.followers:
            if follower.follows:
                last = msgspec.structs.replace(known.context, t_r=known.begin, t_d=ended)
                follower.ends(last)

    def again(self, rows: Writes) -> None:
        """Write rows that came with something else, or that the disk refused with it."""
        self._rows.update((key, (0, value)) for key, value in rows)

    def check_room(self) -> None:
        """Refuse a publication while too much waits for the disk."""
        if len(self._rows) >= self.settings.rows_max:
            raise LimitError("too many publications wait for the disk: try again in a moment")

    def hold(self, client: str, answer: Answer) -> bool:
        """Hold an answer back until what the client published is on disk; False if it is."""
        row = self._rows_of.get(client, 0)
        if row <= self._row_stored:
            return False
        self._held[client] = row, answer
        return True

    @property
    def grown(self) -> bool:
        """Whether something waits to be written, and nothing is on its way."""
        return bool(self._rows) and not self._in_flight and not self._resting

    @property
    def waiting(self) -> list[tuple[str, bytes]]:
        """The steps that may not be on disk yet, in their order."""
        rows = {**self._in_flight, **self._rows}
        steps = ((key, row[1]) for key, row in rows.items() if not key.startswith(PREFIX))
        return sorted((key, value) for key, value in steps if value is not None)

    def known(self, now: int) -> Lives:
        """Give what reading the log has to know."""
        present = frozenset(vid for vid, shown in self._shown.items() if shown.life)
        lives = {**self.lives, self.epoch: Uptime(self._began, now)}
        return Lives(self.epoch, lives, present, now, self.settings.return_us)

    def _begin(self, vid: str, t_r: int, now: int) -> int:
        """Say when a state begins: as its publisher says, but after what came before it."""
        known = self._shown.get(vid)
        if known is not None:
            return t_r if t_r > known.begin else after(known.begin, now)
        return t_r if t_r >= self._gone.get(vid, t_r) else max(now, self._gone[vid])

    def _note(self, vid: str, shown: OnMap) -> None:
        before = self._shown.get(vid)
        self._soft += bool(shown.life) - bool(before is not None and before.life)
        self._shown[vid] = shown
        self._gone.pop(vid, None)
        context = shown.context
        if context.t_r != shown.begin:
            context = msgspec.structs.replace(context, t_r=shown.begin)
        for follower in self.followers:
            if follower.follows:
                follower.shows(context)

    def _rules(self, vid: str) -> tuple[str, Writes]:
        """Give the id of a vid's rules, and the row that says what it stands for, if it is new."""
        encoded = self._rules_of(vid)
        if encoded is None:
            return "", ()
        name = blake2b(encoded, digest_size=12).hexdigest()
        if name in self._on_disk:
            return name, ()
        if name not in self.rules and len(self.rules) >= RULES_MAX:
            raise LimitError(f"the past knows at most {RULES_MAX} sets of rules: try later")
        self.rules[name] = encoded
        return name, ((RULES + name, encoded),)

    def _add(self, vid: str, stated: Step, now: int) -> tuple[int, int]:
        """Let a step be written soon; give its number and when it was written, as its key says."""
        self._row += 1
        written = self._stamp(now)
        if stated.life and written > self._began + self.settings.return_us:
            stated = msgspec.structs.replace(stated, settled=True)
        self._rows[key_of(written, vid)] = self._row, encode_step(stated)
        return self._row, written

    # --- the machine --------------------------------------------------------------------------

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take what happened to the map, to the disk or to the archive."""
        match given:
            case PastGrew():
                pass
            case RulesChanged(vid):
                self._reconsider(vid, now)
            case Stored(token):
                return self._stored(token, now)
            case StoreFailed(token, reason):
                return self._failed(token, reason, now)
            case EndedFound():
                return self.feed.found(given, now)
            case BatchLanded():
                return self.feed.landed(given)
            case BatchRefused():
                return [self.feed.refused(given, now), *self._flush()]
            case ErasePast():
                return self._erase(given)
            case _:
                raise AssertionError(f"the past takes no {type(given).__name__}")
        return self._flush()

    def advance(self, now: int) -> Sequence[Effect]:
        """Write again what failed, note that this broker is up, look what may leave the log."""
        effects: list[Effect] = []
        for timer in self.timers.due(now):
            match timer:
                case _Retry():
                    self._resting = False
                case _Alive():
                    self.timers.set(timer, now + self.settings.alive_us)
                    self._note_alive(now)
                case _Look():
                    effects += self.feed.look(now)
        return [*effects, *self._flush()]

    def _reconsider(self, vid: str, now: int) -> None:
        """The rules of a vid have changed: what the map shows from now on is under the new ones."""
        known = self._shown.get(vid)
        if known is None or known.rules == self._rules(vid)[0]:
            return
        rules, writes = self._rules(vid)
        self.again(writes)
        begin = after(known.begin, now)
        again = Step(begin, body_of(known.context), rules, known.life)
        row, written = self._add(vid, again, now)
        self._note(vid, OnMap(known.context, begin, rules, known.life, row, written))

    def _note_alive(self, now: int) -> None:
        if not self._soft and not self._depending():
            return
        self.lives[self.epoch] = Uptime(self._began, now)
        self._rows[f"{LIVES}{self.epoch}"] = 0, msgspec.msgpack.encode(self.lives[self.epoch])
        if len(self.lives) > LIVES_MAX:
            oldest = min(self.lives, key=lambda epoch: self.lives[epoch].alive)
            del self.lives[oldest]
            self._rows[f"{LIVES}{oldest}"] = 0, None

    def _flush(self) -> list[Effect]:
        """Write what waits, one write at a time: the more comes meanwhile, the fewer writes."""
        if self._in_flight or not self._rows or self._resting:
            return []
        keys = list(islice(self._rows, WRITE_ROWS_MAX))
        self._in_flight = {key: self._rows.pop(key) for key in keys}
        return [Store(_ROWS, tuple((key, row[1]) for key, row in self._in_flight.items()))]

    def _stored(self, token: int, now: int) -> list[Effect]:
        if token == _ROWS:
            done, self._in_flight = self._in_flight, {}
            self._row_stored = max(self._row_stored, *(row for row, _ in done.values()))
            self._on_disk.update((key[len(RULES) :], None) for key in done if key.startswith(RULES))
            return [*self._release(), *self._flush()]
        if token == _BATCH:
            return [*self.feed.stored(now), *self._flush()]
        erased = self._erasing.pop(token)
        return [Acknowledged(erased.ticket)]

    def _release(self) -> list[Effect]:
        """Answer the clients whose steps are on disk."""
        due = []
        for client, row in [*self._rows_of.items()]:
            if row <= self._row_stored:
                del self._rows_of[client]
        for client, (row, answer) in [*self._held.items()]:
            if row <= self._row_stored:
                del self._held[client]
                due.append((client, answer))
        return [AnswersDue(tuple(due))] if due else []

    def _failed(self, token: int, reason: str, now: int) -> list[Effect]:
        if token == _ROWS:
            self._rows = {**self._in_flight, **self._rows}
            self._in_flight = {}
            self._resting = True
            self.timers.set(_Retry(), now + self.settings.retry_us)
            return []
        if token == _BATCH:
            self.feed.failed(now)
            return []
        return [Failed(self._erasing.pop(token).ticket, StoreError(reason))]

    def _erase(self, given: ErasePast) -> list[Effect]:
        self._token += 1
        self._erasing[self._token] = given
        return [Store(self._token, tuple((key, None) for key in given.keys))]


_ROWS: Final = 1
_BATCH: Final = 2
_OWN_TOKENS: Final = 2
"""Tokens up to here are those of steps and of batches; erasures have later ones."""
