"""What the parts of a broker tell each other, and how a broker answers whoever asked.

A request carries a ticket of the driver's; it is answered once, by `Acknowledged` or `Failed`.
"""

from typing import Final

from roamcast.errors import RoamcastError
from roamcast.model.machine import Effect

VIEW_CLASSES_MAX: Final = 10_000
"""Maximum view classes of a broker; a policy retires unused ones before it makes more."""


class Acknowledged(Effect, frozen=True, gc=False):
    """What was asked with this ticket is in force, and on disk if it has to be.

    `fresh`: it was not there before.
    """

    ticket: int
    fresh: bool = False


class Failed(Effect, frozen=True):
    """What was asked with this ticket was not done, and nothing has changed."""

    ticket: int
    error: RoamcastError


class RulesChanged(Effect, frozen=True):
    """The rules of a vid are in force; they name these viewers for the first time."""

    vid: str
    viewers: tuple[str, ...]


class PublicationReplaced(Effect, frozen=True):
    """Another way of the same subject published a context later than this owner, or removed it."""

    vid: str
    owner: str


class ClassesEnded(Effect, frozen=True):
    """Nobody may stay in these view classes: someone who has their key may no longer read them."""

    view_classes: tuple[str, ...]


class ClientsMoved(Effect, frozen=True):
    """These clients may see otherwise from now on: they register again, into another class."""

    clients: tuple[str, ...]


class SessionOpened(Effect, frozen=True):
    """A session is open, for the first time or again."""

    session: str


class SessionRequested(Effect, frozen=True):
    """A part of this process wants a session for a viewer, or (without one) no longer wants it.

    The session's frames are SSE; the driver hands them back.
    """

    session: str
    viewer: str = ""
    groups: frozenset[str] = frozenset()


class SessionClosed(Effect, frozen=True):
    """A session is over."""

    session: str


class MapTouched(Effect, frozen=True):
    """A part of this process has changed the map: let its updates leave."""
