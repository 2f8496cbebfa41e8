"""One neighbour: its states, the attempt to link with it, or the session that is up."""

import enum
from typing import Final

import msgspec

from roamcast.overlay.links.session import LinkSession
from roamcast.overlay.links.settings import NeighbourSettings

ANSWERS_BURST: Final = 8
"""Greetings of one neighbour that are answered at once; later ones in turn with our own."""


class NeighbourState(enum.StrEnum):
    """Whether a neighbour is linked."""

    DOWN = "down"
    GREETING = "greeting"
    UP = "up"


class NeighbourEvent(enum.StrEnum):
    """What moves a neighbour from state to state."""

    DUE = "the next attempt is due"
    GREETED = "the neighbour greeted us"
    PROVED = "the neighbour signed our nonce"
    GAVE_UP = "the attempt took too long, or was refused"
    ENDED = "the link ended, with a reason"


_S, _E = NeighbourState, NeighbourEvent
LINKS_TABLE: Final = {
    (_S.DOWN, _E.DUE): _S.GREETING,
    (_S.DOWN, _E.GREETED): _S.GREETING,
    (_S.GREETING, _E.PROVED): _S.UP,
    (_S.GREETING, _E.GAVE_UP): _S.DOWN,
    (_S.UP, _E.PROVED): _S.UP,
    (_S.UP, _E.ENDED): _S.DOWN,
}


class LinkView(msgspec.Struct, frozen=True):
    """What is known of a neighbour, for people."""

    node: str
    state: str
    address: str
    epoch: int
    offset_us: int
    reason: str
    """Why it is not up, or was not before."""
    waiting: int
    found: bool
    """It called or was found; the settings do not name it as a neighbour."""


class NeighbourLink:
    """One neighbour: the attempt to link with it, or the session that is up."""

    def __init__(self, node: str, settings: NeighbourSettings) -> None:
        self.node = node
        self.settings = settings
        self.found = False
        """Whether it called or was found, and is not configured."""
        self.state = NeighbourState.DOWN
        self.session: LinkSession | None = None
        self.nonce = b""
        """Ours, for the next session; drawn when it is needed."""
        self.echo = b""
        self.address = ""
        self.attempts = 0
        self.failures = 0
        self.until = 0
        """When the attempt is given up."""
        self.shunned_until = 0
        self.epoch = 0
        self.offset_us = 0
        self.reason = ""
        self.answers = float(ANSWERS_BURST)
        self.answers_at = 0
        self.frames = 0.0
        """Room for frames that the neighbour may send at once."""
        self.frames_at = 0

    def view(self) -> LinkView:
        """Describe it for people."""
        session = self.session
        return LinkView(
            self.node,
            self.state.value,
            self.address if session is None else session.address,
            self.epoch,
            self.offset_us,
            self.reason,
            0 if session is None else session.queue[0] + session.under_way,
            self.found,
        )
