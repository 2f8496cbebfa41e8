"""Pieces of the past: what the steps in the log mean.

`read` makes pieces of steps: a state of a vid with its interval. Pieces of a vid that follow each
other without a gap are one run.

A piece of an earlier life of the broker whose publisher does not come back in time ended when that
life did: at the last moment at which it is known to have been up.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from roamcast.channels.past.part import Lives, Step, after, key_of, vid_of, written_of
from roamcast.model.contexts import Context, context_of


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
            said = context_of(self.body)
            self._context = Context(
                said.vid, said.place, said.point, said.attributes, self.begin, self.end
            )
        return self._context


class Pieces(msgspec.Struct):
    """What a log says: pieces in the order of their ends, open ones last, and steps of no use."""

    pieces: list[Piece]
    strays: list[str]


decode_step: Final = msgspec.msgpack.Decoder(Step).decode


def read(rows: Iterable[tuple[str, bytes]], known: Lives) -> Pieces:
    """Make pieces of steps that come in the order of their keys."""
    lasting: dict[str, Piece] = {}
    ended: list[Piece] = []
    strays: list[str] = []
    for key, value in rows:
        vid, step = vid_of(key), decode_step(value)
        before = lasting.get(vid)
        # Most steps are of stored publications, which have no life: every step asks.
        if before is not None and before.life and _lost(before, step, key, known):
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


def _lost(piece: Piece, step: Step, key: str, known: Lives) -> bool:
    """Whether a piece of an earlier life had ended with that when the next step was written."""
    if not step.life or step.life == piece.life:
        return False
    life = known.lives.get(step.life)
    return life is not None and written_of(key) > life.began + known.return_us


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
