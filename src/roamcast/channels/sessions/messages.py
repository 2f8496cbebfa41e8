"""The messages of `WS /session` in both directions: JSON, one object each, told apart by `type`.

`re` is the program's own name for its request; the answer carries it back. The schemas in
`/openapi.json` and the tables in docs/service.md are made from these structs.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from roamcast.channels.sessions.settings import HubSettings
from roamcast.model.casts import ID_LENGTH_MAX, Counted, PlaceCount, Priority, Tense
from roamcast.model.contexts import (
    PATH_LENGTH_MAX,
    VID_LENGTH_MAX,
    FeatureInput,
    FeatureOutput,
    Instant,
    Latitude,
    LocatedFeature,
    Longitude,
)
from roamcast.model.json_text import TOO_DEEP

Re = Annotated[str, Meta(max_length=128, description="the program's name for this request")]
SubscriptionName = Annotated[
    str, Meta(min_length=1, max_length=128, description="the subscription's name in this session")
]
AnsweredRe = Annotated[str, Meta(description="the `re` of the request")]
Scope = Annotated[
    Literal["everywhere", "here"],
    Meta(description="the maps of all nodes of the overlay, or of this one alone"),
]
FILTER_LENGTH_MAX = 65_536
SUBSCRIPTIONS_A_MESSAGE_MAX = 1_000
EVENT_DATA_BYTES_MAX = 1024 * 1024
"""Opaque bytes of one event."""

PARTS_BYTES_MAX = 2 * EVENT_DATA_BYTES_MAX
"""A message that comes in parts: an event's data in base64, and its context."""

LogCount = Annotated[int, Meta(ge=0, le=2**63 - 1)]
LogPosition = tuple[LogCount, LogCount]
"""Epoch and number: how far somebody has come in the log of one origin."""

VECTOR_ORIGINS_MAX = 1_000
EventVector = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=100)], LogPosition],
    Meta(max_length=VECTOR_ORIGINS_MAX, description="origins and how far one has come in each log"),
]


class SessionRequest(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    """A message of a program's."""


class RegisterRequest(SessionRequest, frozen=True, tag="register"):
    """State the bandwidth limit of the session; a later one replaces it."""

    re: Re = ""
    limit_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=2**40,
            description="bytes in any second, 0 for no limit",
            extra_json_schema={"anyOf": [{"const": 0}, {"minimum": HubSettings().limit_bytes_min}]},
        ),
    ] = 0


class HeartbeatRequest(SessionRequest, frozen=True, tag="heartbeat"):
    """Show that the program lives; the answer is `alive`."""

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
    """Place a subscription; the same name again replaces it."""

    re: SubscriptionName
    filter: Annotated[str, Meta(max_length=FILTER_LENGTH_MAX, description="CQL2 text")]
    scope: Scope = "everywhere"


class SubscribeManyRequest(SessionRequest, frozen=True, tag="subscribe_many"):
    """Place many subscriptions: each is answered, charged and refused as if it came alone."""

    filters: Annotated[
        dict[
            SubscriptionName,
            Annotated[str, Meta(max_length=FILTER_LENGTH_MAX, description="CQL2 text")],
        ],
        Meta(
            min_length=1,
            max_length=SUBSCRIPTIONS_A_MESSAGE_MAX,
            description="by the subscriptions' names",
        ),
    ]
    scope: Scope = "everywhere"
    re: Re = ""


class UnsubscribeRequest(SessionRequest, frozen=True, tag="unsubscribe"):
    """End a subscription."""

    re: SubscriptionName


class CountRequest(SessionRequest, frozen=True, tag="count"):
    """Ask how many contexts satisfy a filter now; an editor checks what is being written."""

    re: Re = ""
    filter: Annotated[str, Meta(max_length=FILTER_LENGTH_MAX, description="CQL2 text")] = "true"


class NumbersRequest(SessionRequest, frozen=True, tag="numbers"):
    """Ask what the service does; it needs a token with the scope `admin`."""

    re: Re = ""


class EventPublication(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event to publish: what happened, matched as a context is, and opaque data.

    Sent again with the same producer, life and number it is answered again, and not repeated.
    """

    feature: Annotated[FeatureInput, Meta(description="without an id it gets a random one")]
    producer: Annotated[
        str, Meta(max_length=128, description="random name of this program; others see a digest")
    ] = ""
    life: Annotated[LogCount, Meta(description="of the producer; its numbers begin anew")] = 0
    number: Annotated[LogCount, Meta(description="of the event among the producer's")] = 0
    data: Annotated[bytes, Meta(max_length=EVENT_DATA_BYTES_MAX, description="base64")] = b""
    needs: Annotated[EventVector, Meta(description="what must be delivered before it")] = {}


class PublishEventRequest(EventPublication, frozen=True, tag_field="type", tag="publish_event"):
    """Publish an event; answered by `published` once it is on disk."""

    re: Re = ""


WhyMoved = Literal["", "place", "latency", "chosen", "told", "lost"]


class SubscribeEventsRequest(SessionRequest, frozen=True, tag="subscribe_events"):
    """Have every event that a filter matches; the same name again replaces it.

    Answered by `standing`; then `events` and, where a log was too short, `lost`.
    """

    re: SubscriptionName
    filter: Annotated[str, Meta(max_length=FILTER_LENGTH_MAX, description="CQL2 text")] = "true"
    vector: Annotated[EventVector, Meta(description="from where on; from now on if empty")] = {}
    place: Annotated[str, Meta(max_length=PATH_LENGTH_MAX, description="where one is")] = ""
    previous: Annotated[str, Meta(max_length=100, description="the node one comes from")] = ""
    why: Annotated[WhyMoved, Meta(description="why one left it, for the broker's metrics")] = ""
    attachment: Annotated[
        LogPosition | None,
        Meta(description="when the program began, and how many nodes it was at; raised at each"),
    ] = None
    expires_s: Annotated[
        float,
        Meta(ge=0, le=3_600, description="how long events are held when the session is over"),
    ] = 0.0
    modulators: Annotated[
        tuple[dict[str, Any], ...],
        Meta(max_length=8, description="what is done to each event first (docs/modulators.md)"),
    ] = ()
    keeps_state: Annotated[
        bool,
        Meta(description="modulators' state survives and moves; confirm what you had"),
    ] = False
    served: Annotated[
        LogPosition | None, Meta(description="the attachment at which it was last served")
    ] = None
    trail: Annotated[
        tuple[Annotated[str, Meta(max_length=100)], ...],
        Meta(max_length=16, description="the node that served it then, and those tried since"),
    ] = ()
    keeps_events: Annotated[
        bool,
        Meta(description="with modulators: false if what comes between two homes may be skipped"),
    ] = True


class ConfirmEventsRequest(SessionRequest, frozen=True, tag="confirm_events"):
    """Say how far one has come: modulators that keep their state wait for it now and then."""

    re: SubscriptionName
    vector: EventVector


class UnsubscribeEventsRequest(SessionRequest, frozen=True, tag="unsubscribe_events"):
    """End a subscription of events."""

    re: SubscriptionName


Milliseconds = Annotated[float, Meta(ge=0, le=60_000)]


class PlaceRequest(SessionRequest, frozen=True, tag="place"):
    """Say where one is: the next node prepares before one crosses (docs/flows.md)."""

    place: Annotated[str, Meta(min_length=1, max_length=PATH_LENGTH_MAX)]
    re: Re = ""
    point: Annotated[
        tuple[Longitude, Latitude] | None,
        Meta(description="where in it, in degrees; two of them tell which nodes lie ahead"),
    ] = None


class PartRequest(SessionRequest, frozen=True, tag="part"):
    """A part of the text of a `publish_event` that is too long for one message."""

    text: str
    last: bool
    re: Re = ""


class CastOrder(SessionRequest, frozen=True, kw_only=True, tag="cast"):
    """Send a cast, as `POST /casts` does; the answer is `cast`."""

    re: Re = ""
    filter: Annotated[str, Meta(min_length=1, max_length=FILTER_LENGTH_MAX, description="CQL2")]
    text: str = ""
    payload: Annotated[str, Meta(description="bytes in base64, instead of a text")] = ""
    media_type: Annotated[str, Meta(min_length=1, max_length=100)] = "text/plain; charset=utf-8"
    kind: Annotated[str, Meta(min_length=1, max_length=128)] = "text"
    priority: Priority = "routine"
    expires: Instant | None = None
    lifetime_s: Annotated[float, Meta(ge=1, le=60 * 86_400)] | None = None
    id: Annotated[str, Meta(pattern="^[A-Za-z0-9._:@-]+$", max_length=ID_LENGTH_MAX)] | None = None
    policy: Annotated[str, Meta(pattern="^(NH|FBTH|BTH[1-9][0-9]?)$")] = "NH"


class PreviewOrder(SessionRequest, frozen=True, tag="preview"):
    """Ask about how many a cast would reach; nothing is sent."""

    filter: Annotated[str, Meta(min_length=1, max_length=FILTER_LENGTH_MAX, description="CQL2")]
    re: Re = ""


class ProgressOrder(SessionRequest, frozen=True, tag="progress"):
    """Ask what became of a cast of yours; the answer is `cast`."""

    cast: Annotated[str, Meta(min_length=1, max_length=ID_LENGTH_MAX)]
    re: Re = ""


class CancelOrder(SessionRequest, frozen=True, tag="cancel"):
    """Stop a cast of yours; what was delivered stays."""

    cast: Annotated[str, Meta(min_length=1, max_length=ID_LENGTH_MAX)]
    re: Re = ""


class BrokersRequest(SessionRequest, frozen=True, tag="brokers"):
    """Say which brokers one would go to: their homes choose among them (docs/homes.md)."""

    here: Annotated[Milliseconds, Meta(description="to this one and back")]
    found: Annotated[
        dict[Annotated[str, Meta(max_length=1_000)], Milliseconds],
        Meta(max_length=32, description="addresses of others → to each and back"),
    ]
    re: Re = ""


Anything = (
    RegisterRequest
    | HeartbeatRequest
    | PublishRequest
    | ChangeRequest
    | UnpublishRequest
    | SubscribeRequest
    | SubscribeManyRequest
    | UnsubscribeRequest
    | CountRequest
    | NumbersRequest
    | PublishEventRequest
    | SubscribeEventsRequest
    | ConfirmEventsRequest
    | UnsubscribeEventsRequest
    | PlaceRequest
    | BrokersRequest
    | PartRequest
    | CastOrder
    | PreviewOrder
    | ProgressOrder
    | CancelOrder
)


class SessionWelcome(
    msgspec.Struct, frozen=True, tag_field="type", tag="welcome", omit_defaults=True
):
    """The first message of a session."""

    session: Annotated[str, Meta(description="the session's name in logs")]
    time: Instant
    ping_s: Annotated[float, Meta(description="interval of the service's pings")]
    hosts: Annotated[
        tuple[str, ...], Meta(description="where to connect when this host is gone")
    ] = ()
    node: Annotated[str, Meta(description="name of the node; its log has what is published")] = ""


class Done(msgspec.Struct, frozen=True, tag_field="type", tag="done"):
    """The request has been carried out, and is on disk where it must be."""

    re: AnsweredRe
    vid: Annotated[str | None, Meta(description="of the context that was published")] = None


class HeartbeatAnswer(msgspec.Struct, frozen=True, tag_field="type", tag="alive"):
    """The answer to a heartbeat, with the service's time."""

    re: AnsweredRe
    time: Instant


class SessionProblem(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """The request has been refused, and nothing has changed."""

    re: AnsweredRe
    status: Annotated[int, Meta(description="as over HTTP")]
    title: str
    detail: Annotated[str, Meta(description="what is wrong, and what to do")]
    position: Annotated[
        int | msgspec.UnsetType,
        Meta(description="of a wrong filter: the number of the character, from 1"),
    ] = msgspec.UNSET
    url: Annotated[
        str | msgspec.UnsetType,
        Meta(description="with status 421: the service of the node that serves the place"),
    ] = msgspec.UNSET


class SessionCount(msgspec.Struct, frozen=True, tag_field="type", tag="count"):
    """The answer to `count`."""

    re: AnsweredRe
    count: Annotated[int, Meta(ge=0, description="how many contexts satisfy the filter")]


class SessionNumbers(msgspec.Struct, frozen=True, tag_field="type", tag="numbers"):
    """The answer to `numbers`: what the service holds now, and has done since it started.

    A transmission is a message put on a channel or sent to one client, or a frame for the sessions
    that share it: transmissions an update show what sharing saves (AMS). Published events are not
    among them: they are no updates of the map.
    """

    re: AnsweredRe
    time: Instant
    contexts: Annotated[int, Meta(ge=0)]
    sessions: Annotated[int, Meta(ge=0, description="open ones, as the page's")]
    clients: Annotated[int, Meta(ge=0, description="programs of the SDK, on links")]
    queries: Annotated[int, Meta(ge=0)]
    channels: Annotated[int, Meta(ge=0)]
    bands: Annotated[int, Meta(ge=0, description="channels for clients of a bandwidth limit")]
    updates: Annotated[int, Meta(ge=0, description="since the start")]
    transmissions: Annotated[int, Meta(ge=0, description="since the start")]


EventType = Literal[
    "org.roamcast.context.appeared",
    "org.roamcast.context.changed",
    "org.roamcast.context.left",
]


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one context for one query, as a CloudEvent."""

    specversion: Literal["1.0"]
    id: Annotated[str, Meta(description="the service's epoch and the update's number")]
    source: Literal["/collections/contexts"]
    type: EventType
    subject: Annotated[str, Meta(min_length=1, max_length=VID_LENGTH_MAX, description="the vid")]
    time: datetime
    datacontenttype: Literal["application/geo+json"]
    data: Annotated[FeatureOutput | None, Meta(description="the context; null once it has left")]


QueryNumber = Annotated[int, Meta(ge=0, description="number of the query in this session's frames")]


class Subscribed(msgspec.Struct, frozen=True, tag_field="type", tag="subscribed"):
    """The answer to `subscribe`: how many contexts match, and the first page of them."""

    re: AnsweredRe
    query: QueryNumber
    count: Annotated[int, Meta(ge=0, description="contexts that match now")]
    features: list[FeatureOutput]


class CurrentComplete(msgspec.Struct, frozen=True, tag_field="type", tag="current"):
    """The whole current set of a query has been sent."""

    query: QueryNumber


class Changes(msgspec.Struct, frozen=True, tag_field="type", tag="changes", omit_defaults=True):
    """Changes of a query's set; sessions with the same query receive the same bytes."""

    query: QueryNumber
    events: list[CloudEvent]
    pending: Annotated[
        int, Meta(ge=0, description="changes that wait because of the session's limit")
    ] = 0


class StoredEvent(msgspec.Struct, frozen=True):
    """An event is on disk, at this position of this node's log."""

    origin: Annotated[str, Meta(description="the node whose log has it")]
    epoch: Annotated[LogCount, Meta(description="of the log")]
    number: Annotated[LogCount, Meta(description="of the event in it")]


class EventStored(msgspec.Struct, frozen=True, tag_field="type", tag="published"):
    """The answer to `publish_event`: it is on disk, at this position of this node's log."""

    re: AnsweredRe
    origin: Annotated[str, Meta(description="the node whose log has it")]
    at: LogPosition


class SessionEvent(msgspec.Struct, frozen=True):
    """One event."""

    position: Annotated[LogCount, Meta(description="its number in the origin's log")]
    producer: Annotated[str, Meta(description="digest of who published it; the same for a life")]
    life: LogCount
    number: Annotated[LogCount, Meta(description="among its producer's events")]
    feature: FeatureOutput
    data: Annotated[bytes, Meta(description="base64")] = b""
    needs: Annotated[
        EventVector | msgspec.UnsetType,
        Meta(description="positions at other nodes that come before it"),
    ] = msgspec.UNSET


class EventsStand(
    msgspec.Struct, frozen=True, tag_field="type", tag="standing", omit_defaults=True
):
    """The answer to `subscribe_events`: everything after these positions comes."""

    re: AnsweredRe
    vector: EventVector
    served: Annotated[
        LogPosition | None, Meta(description="with modulators: the attachment that is on disk now")
    ] = None


class EventsFrame(msgspec.Struct, frozen=True, tag_field="type", tag="events"):
    """All events of a subscription in (after, upto] of an origin's log; often none."""

    re: AnsweredRe
    origin: str
    after: LogPosition
    upto: LogPosition
    events: list[SessionEvent]


class EventsGap(msgspec.Struct, frozen=True, tag_field="type", tag="lost"):
    """An origin's log no longer has (after, upto]: ask for the current set."""

    re: AnsweredRe
    origin: str
    after: LogPosition
    upto: LogPosition
    reason: str


class ModulatorNews(msgspec.Struct, frozen=True, tag_field="type", tag="modulators"):
    """A subscription's modulators have begun anew, or stopped for good, and why."""

    re: AnsweredRe
    stopped: bool
    reason: str


class ConsumerElsewhere(msgspec.Struct, frozen=True, tag_field="type", tag="moved"):
    """Another node serves this subscription, or is to: go there with its vector."""

    re: AnsweredRe
    to: Annotated[str, Meta(description="the node")]
    url: Annotated[str, Meta(description="its service, where it is known")] = ""


class FramePart(msgspec.Struct, frozen=True, tag_field="type", tag="part"):
    """A part of the text of a message that is too long for one frame; no other's come between."""

    text: str
    last: bool


class SessionCast(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="cast"):
    """What its sender may know of a cast: counts of pseudonyms, with noise."""

    re: AnsweredRe
    id: str
    tense: Tense
    state: Literal["pending", "live", "cancelled", "updated"]
    expires: Instant
    nodes_asked: int
    nodes_answered: int
    found: int
    delivered: int
    waiting: int
    unreachable: int
    refused: int


class SessionPreview(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="preview"):
    """About how many a cast would reach, in all and by place."""

    re: AnsweredRe
    tense: Tense
    past: Counted
    present: Counted
    future: int | None
    future_places: tuple[PlaceCount, ...] = ()


Answer = (
    SessionWelcome
    | Done
    | HeartbeatAnswer
    | SessionCount
    | SessionNumbers
    | SessionProblem
    | Subscribed
    | CurrentComplete
    | Changes
    | EventStored
    | EventsStand
    | EventsFrame
    | EventsGap
    | ModulatorNews
    | ConsumerElsewhere
    | FramePart
    | SessionCast
    | SessionPreview
)

_decode = msgspec.json.Decoder(Anything).decode
encode = msgspec.json.Encoder().encode


def read(data: str | bytes) -> Anything:
    """Read a message; `msgspec.DecodeError` says what is wrong with it."""
    try:
        said: Anything = _decode(data)
    except RecursionError:  # the program's mistake, as everything that can not be read
        raise msgspec.DecodeError(TOO_DEEP) from None
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"not UTF-8: {error.reason}") from None
    return said
