"""What the parts of a broker tell each other, and how a broker answers whoever asked.

A request carries a ticket of the driver's; it is answered once, by `Acknowledged` or `Failed`.
"""

from roamcast.errors import RoamcastError
from roamcast.model.machine import Effect


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


class ClassesEnded(Effect, frozen=True):
    """Nobody may stay in these view classes: someone who has their key may no longer read them."""

    view_classes: tuple[str, ...]


class ClientsMoved(Effect, frozen=True):
    """These clients may see otherwise from now on: they register again, into another class."""

    clients: tuple[str, ...]


class SessionOpened(Effect, frozen=True):
    """A session is open, for the first time or again."""

    session: str


class SessionClosed(Effect, frozen=True):
    """A session is over."""

    session: str


class MapTouched(Effect, frozen=True):
    """A part of this process has changed the map: let its updates leave."""
