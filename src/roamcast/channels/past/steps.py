"""The log of the map: a step each time that what the map shows of a vid begins, changes or ends.

Steps are only appended, in the same transaction as the publication they belong to. A step stands
for itself: no write depends on what was written before it, so no failed write can spoil another
(decision 0107). `read` makes pieces of them: a state of a vid with its interval. Pieces of a vid
that follow each other without a gap are one run.

What people publish over links is soft: their machines publish it again after a restart. Such a step
names the life of the broker, its epoch. A piece of an earlier life whose publisher does not come
back in time ended when that life did: at the last moment at which it is known to have been up.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from roamcast.model.contexts import Context, context_of

PREFIX: Final = "steps/"
"""Not a part's prefix: nobody reads the whole log at a start."""

_DIGITS: Final = 16
_VID: Final = len(PREFIX) + _DIGITS + 1

RETURN_US: Final = 60_000_000
"""How long after a restart a publisher may come back as if nothing had happened (0048)."""


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

    def context(self) -> Context:
        """Give the context as the map showed it, with the piece's interval."""
        said = context_of(self.body)
        return Context(said.vid, said.place, said.point, said.attributes, self.begin, self.end)


class Pieces(msgspec.Struct):
    """What a log says: pieces in the order of their ends, open ones last, and steps of no use."""

    pieces: list[Piece]
    strays: list[str]


class Lives(msgspec.Struct, frozen=True):
    """What reading has to know of the broker: its own life, earlier ones, and who is there."""

    epoch: int
    lives: Mapping[int, Uptime]
    present: Collection[str]
    """The vids on the map that come from links."""
    now: int
    return_us: int = RETURN_US


encode_step: Final = msgspec.msgpack.Encoder().encode
decode_step: Final = msgspec.msgpack.Decoder(Step).decode


def key_of(written: int, vid: str) -> str:
    """Name a step: steps sort by when they were written."""
    return f"{PREFIX}{max(0, written):0{_DIGITS}x}/{vid}"


def vid_of(key: str) -> str:
    """Give the vid of a step's key."""
    return key[_VID:]


def written_of(key: str) -> int:
    """Give when a step was written."""
    return int(key[len(PREFIX) : _VID - 1], 16)


def after(begin: int, at: int) -> int:
    """Give when a state ends that began then: as a clock says, but a microsecond later at least.

    A clock may be far behind what is on disk. States of one vid that all began at one moment could
    not be told apart, and one shown under two sets of rules would be archived twice.
    """
    return max(at, begin + 1)


def read(rows: Iterable[tuple[str, bytes]], known: Lives) -> Pieces:
    """Make pieces of steps that come in the order of their keys."""
    lasting: dict[str, Piece] = {}
    ended: list[Piece] = []
    strays: list[str] = []
    for key, value in rows:
        vid, step = vid_of(key), decode_step(value)
        before = lasting.get(vid)
        if before is not None and _lost(before, step, written_of(key), known):
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
    for piece in lasting.values():
        if _forsaken(piece, known):
            piece.end = _fell(piece, known)
            ended.append(piece)
    ended.sort(key=lambda piece: (piece.end or 0, piece.keys[0]))
    ended += [piece for piece in lasting.values() if piece.end is None]
    return Pieces(ended, strays)


def _lost(piece: Piece, step: Step, written: int, known: Lives) -> bool:
    """Whether a piece of an earlier life had ended with that when the next step was written."""
    if not piece.life or not step.life or step.life == piece.life:
        return False
    life = known.lives.get(step.life)
    return life is not None and written > life.began + known.return_us


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
