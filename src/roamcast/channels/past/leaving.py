"""What leaves the log: which pieces may, and what of them an archive is given."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from roamcast.channels.past.messages import ArchiveBatch, EndedFound, Leaving, LookForEnded
from roamcast.channels.past.part import Lives, Step, key_of, vid_of
from roamcast.channels.past.pieces import decode_step, piece_of
from roamcast.channels.past.settings import BATCH_PIECES_MAX
from roamcast.channels.past.spans import StepSpan
from roamcast.errors import StoreError
from roamcast.model.contexts import Context, context_of
from roamcast.model.time import FOREVER


class EndedLog(Protocol):
    """The log as it is asked for what may leave it; `StepIndex` is one."""

    def count(self) -> int:
        """Count the steps."""

    def ended(self, before: int, most: int) -> list[tuple[str, StepSpan]]:
        """Give spans that ended before a moment, the first to end first."""

    def of_other_lives(self, life: int) -> Iterable[tuple[str, StepSpan, bytes]]:
        """Give the steps whose spans end with a life of the broker, other than this one."""

    def piece(self, vid: str, written: int) -> list[tuple[str, StepSpan, bytes]]:
        """Give the steps of the piece that ends with a step's span, in order."""

    def strays(self, most: int) -> list[str]:
        """Give the keys of steps that are of no use."""


def ended(log: EndedLog, known: Lives, looked: LookForEnded) -> EndedFound:
    """Find the pieces that may leave the log: those that ended first, and long enough ago."""
    too_many = log.count() - looked.steps_max
    before = FOREVER if too_many > 0 else looked.before
    ends = [(span.mark, vid, span) for vid, span in log.ended(before, BATCH_PIECES_MAX)]
    for vid, span, value in log.of_other_lives(known.epoch):
        end = piece_of(vid, span, value, known).end
        if end is not None:
            ends.append((end, vid, span))
    ends.sort(key=lambda one: (one[0], one[2].written, one[1]))
    leaving: list[Leaving] = []
    for end, vid, span in ends[:BATCH_PIECES_MAX]:
        if end >= looked.before and too_many <= 0:
            break
        steps = log.piece(vid, span.written)
        keys = tuple(key_of(one.written, vid) for _, one, _ in steps)
        adopted = [decode_step(value).adopted for _, _, value in steps]
        late = tuple(key_of(written, vid) for written in adopted if written)  # 0200
        too_many -= len(keys)
        leaving.append(Leaving((*keys, *late), span.begin, end))
    return EndedFound(tuple(leaving), tuple(log.strays(BATCH_PIECES_MAX)))


class StepsMissingError(StoreError):
    """Steps of a batch are not on this disk: not yet, or they died with another host."""


def contexts(
    batch: ArchiveBatch, rows: Mapping[str, bytes], seen: Callable[[Context, str], Context | None]
) -> list[Context]:
    """Give what everybody may see of the pieces of a batch; raise if `rows` lacks some of them."""
    found = []
    if any(piece.keys[0] not in rows for piece in batch.pieces):
        # Another host's store is still being taken over: its batch came before its steps.
        raise StepsMissingError("steps of this batch are not on this disk yet")
    for piece in batch.pieces:
        said: Step = decode_step(rows[piece.keys[0]])
        context = context_of(said.body)
        whole = Context(
            vid_of(piece.keys[0]),
            context.place,
            context.point,
            context.attributes,
            piece.begin,
            piece.end,
        )
        shown = seen(whole, said.rules)
        if shown is not None:
            found.append(shown)
    return found
