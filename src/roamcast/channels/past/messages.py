"""What the past of a broker asks of its driver, is told, and tells other parts."""

from collections.abc import Collection
from typing import Any, Protocol

import msgspec

from roamcast.channels.server.messages import Answer
from roamcast.model.contexts import Context
from roamcast.model.machine import Effect, Input


class Leaving(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A piece on its way out of the log: its steps, its interval."""

    keys: tuple[str, ...]
    begin: int
    end: int


class ArchiveBatch(msgspec.Struct, frozen=True, array_like=True):
    """Pieces that go to the archive together, under one number; empty once they are there.

    `after` is the number of the batch before: an archive that has another one is fed by others.
    """

    number: int = 0
    after: int = 0
    pieces: tuple[Leaving, ...] = ()
    strays: tuple[str, ...] = ()


class LookForEnded(Effect, frozen=True, gc=False):
    """Look for pieces that ended before a moment, the first to end first; `EndedFound` follows.

    With more than `steps_max` steps in the log also for later ones, until it is no longer so.
    """

    before: int
    steps_max: int


class EndedFound(Input, frozen=True):
    """The pieces that may leave the log, and steps that are of no use."""

    pieces: tuple[Leaving, ...]
    strays: tuple[str, ...] = ()


class FeedArchive(Effect, frozen=True):
    """Append a batch to the archive, unless it is there; `BatchLanded` or `BatchRefused` follows.

    It is on disk here, so that it is the same batch after a crash or on another host.
    """

    batch: ArchiveBatch


class BatchLanded(Input, frozen=True, gc=False):
    """The archive has the batch of this number."""

    number: int


class BatchRefused(Input, frozen=True, gc=False):
    """The archive did not take the batch of this number."""

    number: int
    reason: str
    lacking: bool = False
    """Steps of it are not on this disk; the archive does not have it."""


class ErasePast(Input, frozen=True):
    """Delete steps of a vid from the log; answered by `Acknowledged` or `Failed`."""

    ticket: int
    vid: str
    keys: tuple[str, ...]


class PastGrew(Effect, frozen=True, gc=False):
    """The map has changed, and steps wait for the disk."""


class AnswersDue(Effect, frozen=True):
    """What these clients published is on disk: they may be answered now."""

    answers: tuple[tuple[str, Answer], ...]


class Follower(Protocol):
    """A part that follows what the map shows; it takes notes, and acts when it is next advanced."""

    follows: Collection[Any]
    """What it follows the map for; while that is empty, it is not told."""

    def shows(self, context: Context) -> None:
        """The map shows this state of a vid; `t_r` is since when."""
        ...

    def ends(self, context: Context) -> None:
        """The map shows a vid no more; `t_d` is when its last state ended."""
        ...
