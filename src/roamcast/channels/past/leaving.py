"""What leaves the log: which pieces may, and what of them an archive is given."""

from collections.abc import Callable, Iterable, Mapping

from roamcast.channels.past.messages import ArchiveBatch, EndedFound, Leaving, LookForEnded
from roamcast.channels.past.part import Lives, Step, vid_of
from roamcast.channels.past.pieces import decode_step, read
from roamcast.channels.past.settings import BATCH_PIECES_MAX
from roamcast.errors import StoreError
from roamcast.model.contexts import Context, context_of


def ended(rows: Iterable[tuple[str, bytes]], known: Lives, looked: LookForEnded) -> EndedFound:
    """Find the pieces that may leave the log: those that ended first, and long enough ago."""
    counted = list(rows)
    log = read(counted, known)
    too_many = len(counted) - looked.steps_max
    leaving: list[Leaving] = []
    for piece in log.pieces:
        if piece.end is None or (piece.end >= looked.before and too_many <= 0):
            break
        if len(leaving) >= BATCH_PIECES_MAX:
            break
        too_many -= len(piece.keys)
        leaving.append(Leaving((*piece.keys, *piece.late), piece.begin, piece.end))
    return EndedFound(tuple(leaving), tuple(log.strays[:BATCH_PIECES_MAX]))


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
