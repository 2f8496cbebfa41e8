"""Pieces of the past: what the steps in the log mean.

`read` makes pieces of steps: a state of a vid with its interval. Pieces of a vid that follow each
other without a gap are one run. `pieces_within` gives those that overlap a time, without reading
the others (0350).

A piece of an earlier life of the broker whose publisher does not come back in time ended when that
life did: at the last moment at which it is known to have been up.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Final, Protocol

import msgspec

from roamcast.channels.past.part import Lives, Step, after, key_of, vid_of, written_of
from roamcast.channels.past.spans import ENDED_MAX, LOST, ReachedTime, StepSpan, lost
from roamcast.model.contexts import Context, stored_context


class Piece(msgspec.Struct, gc=False):
    """One state of a vid with its interval."""

    vid: str
    keys: list[str]
    """The steps that are needed for it alone."""
    begin: int
    body: bytes
    rules: str = ""
    life: int = 0
    end: int | None = None
    late: tuple[str, ...] = ()
    """Steps of other hosts that say the same, and may still come (0200)."""
    _context: Context | None = None

    def context(self) -> Context:
        """Give the context as the map showed it, with the interval that a whole log says."""
        if self._context is None:  # a batch of questions asks for it often
            self._context = stored_context(self.body, self.begin, self.end)
        return self._context


class Pieces(msgspec.Struct):
    """What a log says: pieces in the order of their ends, open ones last, and steps of no use."""

    pieces: list[Piece]
    strays: list[str]


decode_step: Final = msgspec.msgpack.Decoder(Step).decode


class StepLog(Protocol):
    """The log as questions read it; `StepIndex` is one."""

    def within(self, reach: ReachedTime) -> Iterable[tuple[str, StepSpan, bytes]]:
        """Give the steps whose spans touch a time, as far as the log alone tells."""

    def since(self, vid: str, written: int) -> Iterable[tuple[str, StepSpan, bytes]]:
        """Give the steps of a vid from the last one before a moment of writing on, in order."""


def pieces_within(
    log: StepLog, reach: ReachedTime, waiting: Iterable[tuple[str, bytes]], known: Lives
) -> list[Piece]:
    """Give the pieces that touch a time, and some more, of the log and of what waits for it."""
    pieces: dict[str, list[tuple[int, Piece]]] = {}
    for vid, span, value in log.within(reach):
        pieces.setdefault(vid, []).append((span.written, piece_of(vid, span, value, known)))
    rows_of: dict[str, dict[str, bytes]] = {}
    for key, value in waiting:
        rows_of.setdefault(vid_of(key), {})[key] = value
    for some in pieces.values():
        some.sort(key=lambda one: one[0])
        for (_, piece), (_, later) in pairwise(some):
            if piece.end is None:  # it lasted when its page was read, and not at the next one
                piece.end = later.begin
    found = [piece for vid, some in pieces.items() if vid not in rows_of for _, piece in some]
    for vid, rows in rows_of.items():
        # What the log says of this vid from the step before on is read again, with what waits.
        first = min(map(written_of, rows))
        lasting: dict[str, Piece] = {}
        for _, span, value in log.since(vid, first):
            if span.written >= first:
                rows[key_of(span.written, vid)] = value
                continue
            first = span.written
            if span.stated:
                lasting[vid] = _stated(vid, span, value)
        found += [piece for written, piece in pieces.get(vid, ()) if written < first]
        found += read(sorted(rows.items()), known, lasting).pieces
    return found


def piece_of(vid: str, span: StepSpan, value: bytes, known: Lives) -> Piece:
    """Give the piece that ends with the span of a step; its earlier steps are not named."""
    piece = _stated(vid, span, value)
    if span.level <= ENDED_MAX:
        piece.end = span.mark
    elif span.level == LOST or _forsaken(piece, known):
        piece.end = _fell(piece, known)
    return piece


def _stated(vid: str, span: StepSpan, value: bytes) -> Piece:
    step = decode_step(value)
    return Piece(vid, [key_of(span.written, vid)], span.begin, step.body, step.rules, step.life)


def read(
    rows: Iterable[tuple[str, bytes]], known: Lives, lasting: dict[str, Piece] | None = None
) -> Pieces:
    """Make pieces of steps that come in the order of their keys; `lasting`: what came before."""
    lasting = {} if lasting is None else lasting
    ended: list[Piece] = []
    strays: list[str] = []
    for key, value in rows:
        vid, step = vid_of(key), decode_step(value)
        before = lasting.get(vid)
        if before is not None and lost(before.life, step):
            before.end = _fell(before, known)
            ended.append(before)
            del lasting[vid]
            before = None
            step = msgspec.structs.replace(step, at=max(step.at, written_of(key)))
        if not step.body:
            if before is None:
                strays.append(key)
                continue
            before.keys.append(key)
            before.end = after(before.begin, step.at)
            ended.append(before)
            del lasting[vid]
        elif before is not None and (before.body, before.rules) == (step.body, step.rules):
            before.keys.append(key)  # published again, after a restart or at another host
            before.life = step.life
        else:
            begin = step.at
            if before is not None:
                before.end = begin = after(before.begin, begin)
                ended.append(before)
            lasting[vid] = Piece(vid, [key], begin, step.body, step.rules, step.life)
        if step.adopted:
            lasting[vid].late += (key_of(step.adopted, vid),)
    for piece in lasting.values():
        if _forsaken(piece, known):
            piece.end = _fell(piece, known)
            ended.append(piece)
    ended.sort(key=lambda piece: (piece.end or 0, piece.keys[0]))
    ended += [piece for piece in lasting.values() if piece.end is None]
    return Pieces(ended, strays)


def _forsaken(piece: Piece, known: Lives) -> bool:
    """Whether a piece is of an earlier life, and its publisher has not come back in time."""
    if piece.life in (0, known.epoch) or piece.vid in known.present:
        return False
    life = known.lives.get(known.epoch)
    return life is None or known.now > life.began + known.return_us


def _fell(piece: Piece, known: Lives) -> int:
    """When a piece's life was last known to be up."""
    life = known.lives.get(piece.life)
    seen = written_of(piece.keys[-1])
    return after(piece.begin, seen if life is None else max(life.alive, seen))
