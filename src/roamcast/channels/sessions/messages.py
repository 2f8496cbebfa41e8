"""What may a program say on its session, in JSON? One object a message, told apart by `type`.

`re` is the program's own name for what it asks; the answer carries it back. Answers are `welcome`,
`done`, `alive`, `subscribed` (with the current set), `current` (all of it has come), `changes`
(CloudEvents) and `error`; docs/service.md shows each.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from roamcast.channels.sessions.settings import HubSettings
from roamcast.model.contexts import VID_LENGTH_MAX
from roamcast.model.features import LocatedFeature

Re = Annotated[str, Meta(max_length=128)]
FILTER_LENGTH_MAX = 65_536


class SessionRequest(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    """A message of a program's."""


class RegisterRequest(SessionRequest, frozen=True, tag="register"):
    """Say how many bytes a second the program can take, 0 for no limit; may be said again."""

    re: Re = ""
    limit_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=2**40,
            extra_json_schema={"anyOf": [{"const": 0}, {"minimum": HubSettings().limit_bytes_min}]},
        ),
    ] = 0


class HeartbeatRequest(SessionRequest, frozen=True, tag="heartbeat"):
    """Say that the program lives; answered by `alive` with the service's time."""

    re: Re = ""


class PublishRequest(SessionRequest, frozen=True, tag="publish"):
    """Publish a context, a GeoJSON Feature, for as long as the session is open."""

    feature: LocatedFeature
    re: Re = ""


class ChangeRequest(SessionRequest, frozen=True, tag="change"):
    """Change a context."""

    feature: LocatedFeature
    re: Re = ""


class UnpublishRequest(SessionRequest, frozen=True, tag="unpublish"):
    """Take a context off the map."""

    vid: Annotated[str, Meta(min_length=1, max_length=VID_LENGTH_MAX)]
    re: Re = ""


class SubscribeRequest(SessionRequest, frozen=True, tag="subscribe"):
    """Place a standing query under a name; the same name again replaces it."""

    re: Annotated[str, Meta(min_length=1, max_length=128)]
    filter: Annotated[str, Meta(max_length=FILTER_LENGTH_MAX)]


class UnsubscribeRequest(SessionRequest, frozen=True, tag="unsubscribe"):
    """End the standing query of this name."""

    re: Annotated[str, Meta(min_length=1, max_length=128)]


Anything = (
    RegisterRequest
    | HeartbeatRequest
    | PublishRequest
    | ChangeRequest
    | UnpublishRequest
    | SubscribeRequest
    | UnsubscribeRequest
)


class SessionWelcome(
    msgspec.Struct, frozen=True, tag_field="type", tag="welcome", omit_defaults=True
):
    """The first message of a session; `hosts` are where to look when this one is gone."""

    session: str
    time: str
    ping_s: float
    hosts: tuple[str, ...] = ()


class Done(msgspec.Struct, frozen=True, tag_field="type", tag="done"):
    """What was asked has been done, and is on disk where it must be."""

    re: str
    vid: str | None = None


class HeartbeatAnswer(msgspec.Struct, frozen=True, tag_field="type", tag="alive"):
    """The answer to a heartbeat."""

    re: str
    time: str


class SessionProblem(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """What was asked has not been done, and why; nothing has changed."""

    re: str
    status: int
    title: str
    detail: str


Answer = SessionWelcome | Done | HeartbeatAnswer | SessionProblem

_decode = msgspec.json.Decoder(Anything).decode
encode = msgspec.json.Encoder().encode


def read(data: str | bytes) -> Anything:
    """Read a message; `msgspec.DecodeError` says what is wrong with it."""
    said: Anything = _decode(data)
    return said
