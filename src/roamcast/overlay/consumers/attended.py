"""What a desk holds of a session's subscription, and how it names somebody towards other nodes."""

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, Literal

import msgspec

from roamcast.channels.sessions.events import Format, Frame
from roamcast.errors import RoamcastError
from roamcast.model.events import Failed
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect
from roamcast.overlay.flows.vector import Position
from roamcast.overlay.handoff.messages import Attachment
from roamcast.overlay.homes.relocation import Relocation
from roamcast.overlay.modulators.specs import Spec

NAME_BYTES: Final = 16


def digest(*texts: str) -> str:
    """Name somebody towards other nodes: the same everywhere, and no subject can be read off it."""
    return blake2b("\0".join(texts).encode(), digest_size=NAME_BYTES).hexdigest()


def answered(ask: Callable[[Any, int], list[Effect]]) -> Callable[[Any, int], list[Effect]]:
    """Let who asks hear why something is refused."""

    def asked(given: Any, now: int) -> list[Effect]:
        try:
            return ask(given, now)
        except RoamcastError as error:
            return [Failed(given.ticket, error)]

    return asked


def framed(session: str, frame: bytes, events: int) -> Effect:
    """Send a frame to a session; `events`: how many it has."""
    return Frame((session,), frame, "json", events, of_map=False)


class Attended(msgspec.Struct):
    """One subscription of a session."""

    name: str
    """The consumer's, as all nodes know it."""
    session: str
    subscription: str
    form: Format
    text: str
    filter: Filter
    attachment: Attachment
    place: str
    expires_us: int
    state: Literal["served", "still", "asleep"] = "served"
    """`still`: its session takes no more for now. `asleep`: its session is over."""
    vector: dict[str, Position] = msgspec.field(default_factory=dict)
    specs: tuple[Spec, ...] = ()
    """Its modulators."""
    relocation: Relocation = Relocation()
    was_served: Attachment = Attachment(0, 0)
    trail: tuple[str, ...] = ()


class WaitingFrames(msgspec.Struct):
    """Frames that wait until a session's limit lets them go."""

    frames: deque[tuple[bytes, int]] = msgspec.field(default_factory=deque)
    bytes: int = 0
