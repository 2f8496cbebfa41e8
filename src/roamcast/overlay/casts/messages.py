"""What casts ask of their driver and are told, and what nodes send each other about them.

The driver looks things up in the past, seals payloads, and talks to trusted nodes. It holds no
policy: everything that is owed is on disk here, and is asked for again after a crash.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from roamcast.errors import RoamcastError
from roamcast.identity.rules import Viewer
from roamcast.model.areas import Area
from roamcast.model.casts import ID_LENGTH_MAX, PAYLOAD_BYTES_MAX, Cast, Tense
from roamcast.model.filters.scan import LENGTH_MAX
from roamcast.model.machine import Effect, Input
from roamcast.model.wire import Count
from roamcast.overlay.links.messages import NodeName

NAME_LENGTH_MAX: Final = 128
GROUPS_MAX: Final = 256
BRANCHES_MAX: Final = 256
PAIRS_MAX: Final = 256
"""Vids of one page; a deposit at a trusted node has at most as many."""

KEY_BYTES_MAX: Final = 4_096
"""Bytes of one sealing key: that of ML-KEM-768 with X25519 has about 1,220."""

Policy = Annotated[str, Meta(pattern="^(NH|FBTH|BTH[1-9][0-9]?)$")]
"""Where vids are resolved: at each node, the first, or the n-th branching point (TCC III-C)."""

CastId = Annotated[str, Meta(min_length=1, max_length=ID_LENGTH_MAX)]
Named = Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]
Payload = Annotated[bytes, Meta(max_length=PAYLOAD_BYTES_MAX)]

# --- inputs of the driver: what users ask for


class SendCast(Input, frozen=True):
    """Send a cast; `Acknowledged` once it is on disk, or `Failed`. A repeated id changes nothing.

    The cast sees of people what `viewer` may see of them. `expires` is the last moment that counts
    for a match; without it, the last one that the filter allows, and at least a day.
    """

    ticket: int
    cast: Cast
    viewer: Viewer
    kind: str = "text"
    policy: str = "NH"
    priority: int = 0


class CancelCast(Input, frozen=True):
    """Stop a cast wherever it has gone; mail that was deposited stays. Answered as `SendCast`.

    Only its sender may, at the node that sent it; `any_sender` is for administrators.
    """

    ticket: int
    cast: str
    viewer: Viewer
    any_sender: bool = False


class UpdateCast(Input, frozen=True):
    """Stop a cast, and send this to exactly those whom it has reached (CAP: Update, All Clear)."""

    ticket: int
    cast: str
    id: str
    """The update's own id: people get it once, as any cast."""
    payload: bytes
    viewer: Viewer
    kind: str = "text"
    media_type: str = "text/plain; charset=utf-8"
    any_sender: bool = False


# --- what the driver is asked for, and answers


class PastQuestion(msgspec.Struct, frozen=True):
    """One question of a batch, about everybody whom `viewer` may see; see `looking.look_up`."""

    filter: str
    window: tuple[int, int]
    viewer: Viewer
    until: int
    """The last moment that counts: the cast's expiry."""


class LookUpPast(Effect, frozen=True):
    """Answer these questions from memory, log and archive, read in this order and once for all."""

    token: int
    questions: tuple[PastQuestion, ...]


class Lasting(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A context that is still open: whether it matches depends on its end, or on time to pass."""

    vid: str
    part: int
    """Which alternative of the filter's normal form its other terms satisfy."""
    begin: int
    """Since when they do, without a break (0109)."""


class Pair(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Somebody who was found, and the key to seal to."""

    vid: Annotated[str, Meta(max_length=256)]
    key: Annotated[bytes, Meta(max_length=KEY_BYTES_MAX)]


class PastFound(Input, frozen=True):
    """A page of the answer to one question of a batch; `done` with the last page of the batch."""

    token: int
    question: int
    found: tuple[str, ...]
    lasting: tuple[Lasting, ...] = ()
    done: bool = True
    keys: tuple[Pair, ...] = ()
    """Keys that the archive has for some of those found: a user agent's (0221)."""


class PastUnread(Input, frozen=True):
    """The past could not be read; the batch is asked again later."""

    token: int
    reason: str


class PlanFilter(Effect, frozen=True):
    """Take a cast's filter apart, beside the loop (`held.plan_of`); `FilterPlanned` follows."""

    token: int
    body: "CastBody"


class FilterPlanned(Input, frozen=True):
    """A filter is taken apart, and remembered; or it cannot be followed."""

    token: int
    problem: RoamcastError | None = None


class ReadPayload(Effect, frozen=True):
    """Read the value stored under this key; `PayloadRead` follows."""

    token: int
    name: str


class PayloadRead(Input, frozen=True):
    """What is stored under a key; None if nothing is."""

    token: int
    payload: bytes | None


class DepositMail(Effect, frozen=True):
    """Seal a payload to each of these keys and deposit it at a trusted node.

    There is no filter, target or place in it: a trusted node learns no context. `payload` is the
    key under which the bytes are stored.
    """

    token: int
    node: str
    cast: str
    sender: str
    kind: str
    priority: int
    expires_us: int
    back_s: int
    """How far into the past the filter reaches, in seconds, rounded up to hours."""
    payload: str
    media_type: str
    parcels: tuple[tuple[str, bytes], ...]
    """(vid, its sealing key)."""


class MailDeposited(Input, frozen=True):
    """The trusted node's answer, in vids; what was `full` is deposited again later."""

    token: int
    reached: int
    unreachable: int
    refused: int
    full: int


class DepositFailed(Input, frozen=True):
    """Nothing is known of a deposit; it is repeated with growing delays until the cast is over."""

    token: int
    reason: str


# --- what is read


CastState = Literal["pending", "live", "cancelled", "updated"]
"""Pending: it waits for a second person's consent."""


class CastView(msgspec.Struct, frozen=True):
    """How far a cast has come. A driver tells its sender the counts of people with noise only."""

    cast: str
    tense: Tense
    state: CastState
    expires_us: int
    nodes_asked: int
    nodes_answered: int
    found: int
    delivered: int
    waiting: int
    """Found, and not yet at their trusted node."""
    unreachable: int
    refused: int
    given_up: tuple[str, ...] = ()
    """Nodes that were not heard of in time."""


# --- what travels between nodes, as bodies of parcels; MessagePack, never a pickle


class CastBody(msgspec.Struct, frozen=True, array_like=True):
    """What does not change of a cast on its way."""

    id: CastId
    filter: Annotated[str, Meta(max_length=LENGTH_MAX)]
    target: Area | None
    sent: int
    split_at: int
    """Set by the origin: what is past and what is future, for all nodes."""
    expires_us: int
    over_us: int
    """When every node forgets it, whoever has not been heard of."""
    media_type: Annotated[str, Meta(max_length=255)]
    sender: Named
    groups: Annotated[tuple[Named, ...], Meta(max_length=GROUPS_MAX)]
    kind: Named
    policy: Policy
    priority: Annotated[int, Meta(ge=-100, le=100)]
    origin: Annotated[str, Meta(max_length=100)]
    """The node; empty at a broker without neighbours."""


class CastParcel(msgspec.Struct, frozen=True, array_like=True):
    """A cast, from a node to its neighbour."""

    body: CastBody
    branches: Annotated[tuple[NodeName, ...], Meta(max_length=BRANCHES_MAX)]
    """Branching points from the origin to here (TCC III-C)."""
    patience_us: Count
    """How long the receiver waits for its own neighbours' results."""
    came_from: NodeName
    payload: Payload


class CastResult(msgspec.Struct, frozen=True, array_like=True):
    """A page of results on its way back; `complete`: the sender's part of the tree has answered."""

    cast: CastId
    node: NodeName
    pairs: Annotated[tuple[Pair, ...], Meta(max_length=PAIRS_MAX)]
    complete: bool


class CastEnding(msgspec.Struct, frozen=True, array_like=True):
    """A cast is over: cancelled, or replaced by an update. It goes wherever the cast went."""

    cast: CastId
    over_us: int
    """For how long it is to be remembered, for it may overtake its cast."""
    update: CastId | None = None
    payload: Payload = b""
    kind: Named = ""
    media_type: Annotated[str, Meta(max_length=255)] = ""


class CastReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A node's counts so far, for the origin; the higher number is newer."""

    cast: CastId
    node: NodeName
    number: Count
    asked: Count
    """Neighbours that it handed the cast to."""
    answered: bool
    """Whether its own past was looked up."""
    found: Count
    delivered: Count
    waiting: Count
    unreachable: Count
    refused: Count


CAST: Final = "cast"
RESULT: Final = "cast.result"
ENDING: Final = "cast.ending"
REPORT: Final = "cast.report"
CAST_KINDS: Final = frozenset({CAST, RESULT, ENDING, REPORT})
