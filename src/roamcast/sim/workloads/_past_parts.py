"""What the broker workload knows of the past: a plain record, and an archive that keeps batches.

The record has what users were told and when, and nothing of any machine. The archive has the
contract of the real one: a batch lands whole, once, after the batch it names, and stays.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Final

import msgspec

from roamcast.broker import Broker
from roamcast.channels.past.asking import EVER, Asked, coalesced, found, within
from roamcast.channels.past.index import StepIndex
from roamcast.channels.past.leaving import StepsMissingError, contexts
from roamcast.channels.past.messages import ArchiveBatch, BatchLanded, BatchRefused
from roamcast.channels.past.part import STEPS
from roamcast.channels.past.pieces import Piece, Pieces, pieces_within, read
from roamcast.channels.past.settings import PastSettings
from roamcast.channels.past.spans import ReachedTime
from roamcast.identity.rules import Viewer
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.time import FOREVER
from roamcast.sim.checkers import Violation
from roamcast.sim.host import Host
from roamcast.sim.step_log import SimStepLog
from roamcast.sim.workloads._broker_parts import Attempt, Fate, ViewHistory

PAST: Final = PastSettings(
    archive=True,
    store_us=1_500_000,
    look_us=400_000,
    alive_us=300_000,
    return_us=2_500_000,
    retry_us=100_000,
    patience_us=4_000_000,
)
ANYBODY: Final = Viewer("")
ALL: Final = Filter.parse("TRUE")
NOTICED_US: Final = 2_500_000
"""When the silence of a client that fell is noticed at the latest, and a server is back."""
MOMENTS_MAX: Final = 8
"""Moments that a check asks the log about: the last at which something began."""
LATE_US: Final = 700_000
"""How late a heartbeat may arrive that was sent before its client fell."""


class SimArchive:
    """An archive of one feed."""

    def __init__(self) -> None:
        self.last = 0
        self.rows: list[Context] = []

    def append(self, batch: ArchiveBatch, rows: list[Context]) -> BatchLanded | BatchRefused:
        """Take a batch whole, or say that it is there, or refuse it."""
        if self.last != batch.number:
            if self.last != batch.after:
                return BatchRefused(batch.number, "another feed has written to this archive")
            self.last = batch.number
            self.rows += rows
        return BatchLanded(batch.number)


def steps_of(host: Host) -> list[tuple[str, bytes]]:
    """Read the log on a host's disk."""
    return [*host.disk.load(STEPS).items()]


def feed(archive: SimArchive, host: Host, batch: ArchiveBatch) -> BatchLanded | BatchRefused:
    """Append a batch from a host's disk; its rules are not the question here."""
    if batch.number == archive.last:
        return BatchLanded(batch.number)
    try:
        rows = contexts(batch, dict(steps_of(host)), lambda one, _: one)
    except StepsMissingError as error:
        return BatchRefused(batch.number, str(error), lacking=True)
    return archive.append(batch, rows)


def log_of(host: Host, server: Broker, now: int) -> Pieces:
    """Give the pieces that a host's disk has, and what waits for it."""
    memory = server.remembers(ANYBODY, now)
    rows = {**dict(memory.waiting), **dict(steps_of(host))}
    return read(sorted(rows.items()), memory.known)


def pieces_of(
    host: Host, server: Broker, archive: SimArchive, now: int
) -> dict[str, list[Context]]:
    """Give everything that a broker and the archive remember of each vid, in order."""
    by_vid: dict[str, list[Context]] = {}
    for piece in log_of(host, server, now).pieces:
        by_vid.setdefault(piece.vid, []).append(piece.context())
    logged = {(vid, one.t_r, one.attributes["n"]) for vid, some in by_vid.items() for one in some}
    for row in archive.rows:
        # A batch that has landed and not yet left the log. After a split the ends may differ: each
        # side writes when it heard of a client last, and each end is judged. The log counts here:
        # in a real archive ends are rounded to its grid (0089), and answers take the log's.
        if (row.vid, row.t_r, row.attributes["n"]) not in logged:
            by_vid.setdefault(row.vid, []).append(row)
    return {vid: sorted(some, key=lambda one: (one.t_r, one.end)) for vid, some in by_vid.items()}


class PastRecord:
    """What was acknowledged and when, by vid and number of the attempt."""

    def __init__(self) -> None:
        self.archive = SimArchive()
        self._logs: dict[str, SimStepLog] = {}
        self.acknowledged: dict[tuple[str, int], int] = {}
        """(vid, number of the attempt) → when it was acknowledged."""
        self.fell: dict[str, int] = {}
        """Vids of clients' earlier lives → when their client was last up."""
        self.trouble: list[int] = []
        """When a server started, stood still or handed over, in order."""

    def log(self, host: Host) -> StepIndex:
        """Give the log on a host's disk with its index."""
        return self._logs.setdefault(host.name, SimStepLog()).of(dict(steps_of(host)))

    def check(
        self,
        host: Host,
        server: Broker,
        states: Mapping[str, ViewHistory],
        now: int,
        *,
        exact: bool,
        skewed: bool,
    ) -> None:
        """Check what a broker remembers against the record."""
        if len(set(map(_identity, self.archive.rows))) != len(self.archive.rows):
            raise Violation("nothing is archived twice", f"by {host.name}")
        by_vid = pieces_of(host, server, self.archive, host.local(now))
        self._check_question(host, server, by_vid, host.local(now))
        self._check_reading(host, server, host.local(now))
        for vid, history in states.items():
            pieces = by_vid.get(vid, [])
            for piece in pieces:
                number = piece.attributes.get("n")
                if history.attempts[number].fate is Fate.REFUSED:  # type: ignore[index]
                    raise Violation("nothing in the past is invented", f"{vid} {number}")
            if not vid.partition("/")[0].endswith("#link"):
                self._check_found(host, vid, history, pieces, exact=exact)
            elif not skewed and vid in self.fell:
                archived = (row for row in self.archive.rows if row.vid == vid)
                self._check_sighting(vid, [*pieces, *archived])

    def _check_found(
        self, host: Host, vid: str, history: ViewHistory, pieces: list[Context], *, exact: bool
    ) -> None:
        """Every acknowledged state on this disk is found, from when to when it held."""
        for attempt in history.attempts[1:]:
            if attempt.fate is not Fate.DONE or attempt.value is None:
                continue
            if host.name not in attempt.holders:
                continue
            own = [one for one in pieces if one.attributes.get("n") == attempt.number]
            if not own:
                raise Violation("what was acknowledged is found", f"{vid} {attempt} on {host}")
            if exact:
                self._check_interval(vid, attempt, history, own)

    def _check_interval(
        self, vid: str, attempt: Attempt, history: ViewHistory, own: list[Context]
    ) -> None:
        begin, end = own[0].t_r, max(one.end for one in own)
        if begin != attempt.asked_us:
            raise Violation("the past has the right interval", f"{vid} {attempt} from {begin}")
        for one, other in pairwise(own):
            if other.t_r < one.end:
                raise Violation("nothing is found twice", f"{vid} {one} and {other}")
        after = history.attempts[attempt.number + 1 :]
        if not after:
            if end != Context(vid).end:
                raise Violation("the past has the right interval", f"{vid} {attempt} until {end}")
        elif after[0].fate is Fate.DONE:
            done = self.acknowledged.get((vid, after[0].number), end)
            latest = after[0].asked_us if after[0].value is not None else done
            if not after[0].asked_us <= end <= latest:
                raise Violation("the past has the right interval", f"{vid} {attempt} until {end}")

    def _check_sighting(self, vid: str, pieces: list[Context]) -> None:
        """What a client published before it fell ended when it was last heard of."""
        fell = self.fell[vid]
        # A server that falls before it notices the silence does not know it in its next life, nor
        # does the one that takes over: to both the piece ended with that server, at the last moment
        # at which it was known to be up. They may fall before they notice in turn. So a piece may
        # last until the last such trouble, but no longer: nobody has heard of the client since.
        heard, noticed = fell, fell + NOTICED_US
        for trouble in self.trouble:
            if fell - LATE_US <= trouble <= noticed:
                heard, noticed = max(heard, trouble), max(noticed, trouble + NOTICED_US)
        for piece in pieces:
            if piece.t_d is not None and piece.t_d > heard + LATE_US:
                detail = f"{vid} ended at {piece.t_d}, its client was last up at {fell}"
                raise Violation("silence ends a context at the last sighting", detail)

    def _check_question(
        self, host: Host, server: Broker, by_vid: dict[str, list[Context]], now: int
    ) -> None:
        """A question about all times finds every vid, once, in its last state."""
        memory = server.remembers(ANYBODY, now)
        answers = found(
            Asked(ALL, EVER),
            lambda one, _: one,
            waiting=memory.waiting,
            log=self.log(host),
            archive=lambda: self.archive.rows,
            known=memory.known,
            whole=memory.whole,
        )
        right = {vid: coalesced(pieces)[-1] for vid, pieces in by_vid.items()}
        if {vid: _identity(one) for vid, one in answers.items()} != {
            vid: _identity(one) for vid, one in right.items()
        }:
            raise Violation("a question about the past finds all of it", f"{answers}, not {right}")

    def _check_reading(self, host: Host, server: Broker, now: int) -> None:
        """What a question reads of the log is what the whole log says of its time."""
        memory = server.remembers(ANYBODY, now)
        log, pieces = self.log(host), log_of(host, server, now).pieces
        moments = sorted({one.begin for one in pieces})[-MOMENTS_MAX:]
        for span in [EVER, *pairwise(moments), *((one, one) for one in moments)]:
            reach = ReachedTime(*span)
            some = within(pieces_within(log, reach, memory.waiting, memory.known), reach)
            if sorted(map(_interval, some)) != sorted(map(_interval, within(pieces, reach))):
                raise Violation("a question reads all that matters", f"{host.name} {reach}")


def _interval(piece: Piece) -> tuple[str, int, int, bytes, str]:
    return (
        piece.vid,
        piece.begin,
        FOREVER if piece.end is None else piece.end,
        piece.body,
        piece.rules,
    )


def _identity(context: Context) -> bytes:
    return msgspec.msgpack.encode(context)
