"""Routes of the trusted node, and of those who come to the service without a name.

Pools, mailbox and reach rules need a token with a name; a registration needs none. `POST /deposits`
is what brokers send: vids and sealed payloads, neither a place nor a filter.
"""

import asyncio
from base64 import b64decode
from collections import deque
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, TypeVar

import msgspec
from litestar import Response
from litestar.params import Parameter
from litestar.response import Stream
from msgspec import Meta

from roamcast.errors import ForbiddenError, InputError, NotFoundError
from roamcast.identity.credentials import CREDENTIAL_LENGTH_MAX, VidKeys, public_key
from roamcast.identity.trusted.mailboxes import Deposit, Mail, SealedParcel
from roamcast.identity.trusted.reach import PAST_S_MAX, Reach
from roamcast.identity.trusted.settings import (
    NAME_LENGTH_MAX,
    PARCELS_MAX,
    SEALED_BYTES_MAX,
    TrustSettings,
)
from roamcast.identity.trusted.waking import ENDPOINT_LENGTH_MAX
from roamcast.live.http.changes import COMMENT_S
from roamcast.live.http.routes import Asked, route, service_of
from roamcast.live.http.shapes import as_json
from roamcast.live.trust.host import RunningTrust
from roamcast.live.trust.mail_socket import MailBody, as_body, person_of
from roamcast.live.trust.pushing import Pushing
from roamcast.model import json_text
from roamcast.model.casts import ID_LENGTH_MAX
from roamcast.model.time import format_instant

POOL_SIZE: Final = TrustSettings().pool_size
PEOPLE_MAX: Final = 1_000
"""Names in one request for handles: each new one waits for the disk."""

VIDS_ASKED_MAX: Final = 5_000
_LETTER: Final = "[A-Za-z0-9+/]"

CastId = Annotated[
    str, Parameter(min_length=1, max_length=ID_LENGTH_MAX, description="the id of the mail's cast")
]
IngestName = Annotated[
    str, Parameter(min_length=1, max_length=NAME_LENGTH_MAX, description="the name of an ingest")
]
SubjectName = Annotated[
    str, Parameter(min_length=1, max_length=NAME_LENGTH_MAX, description="the person's name")
]
Base64 = Annotated[
    str,
    Meta(
        pattern=f"^({_LETTER}{{4}})*({_LETTER}{{2}}==|{_LETTER}{{3}}=)?$",
        max_length=4 * SEALED_BYTES_MAX // 3 + 4,
    ),
]
Base64Of32 = Annotated[str, Meta(pattern=f"^{_LETTER}{{43}}=$")]
Base64Of64 = Annotated[str, Meta(pattern=f"^{_LETTER}{{86}}==$")]
SealingKey = Annotated[str, Meta(pattern=f"^({_LETTER}{{43}}=|{_LETTER}{{1622}}==)$")]
Body = TypeVar("Body")


class Nonce(msgspec.Struct, frozen=True):
    """What a registration signs."""

    nonce: bytes


class Registration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A credential, a nonce of this service, and the vid's signature over both."""

    credential: Annotated[str, Meta(max_length=CREDENTIAL_LENGTH_MAX)]
    nonce: Base64Of32
    signature: Base64Of64


class ReceiptKeyAnswer(msgspec.Struct, frozen=True):
    """The node that signs receipts, and its public key (Ed25519)."""

    node: str
    key: bytes


class Registered(msgspec.Struct, frozen=True):
    """A token for the vid."""

    vid: str
    token: str
    expires: str
    receipts: ReceiptKeyAnswer
    """Whose signature receipts of this service have."""


class VidKeysBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The public keys of a vid to be."""

    signing: Base64Of32
    sealing: SealingKey


class PoolBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a pool."""

    keys: Annotated[tuple[VidKeysBody, ...], Meta(min_length=POOL_SIZE, max_length=POOL_SIZE)]


class PoolAnswer(msgspec.Struct, frozen=True):
    """Credentials in the order of the keys."""

    credentials: tuple[str, ...]


class MailboxAnswer(msgspec.Struct, frozen=True):
    """What waits, in the order of arrival."""

    mails: tuple[MailBody, ...]


class HeldKeyBody(msgspec.Struct, frozen=True):
    """A vid that the service holds for you, and the seed of its keys."""

    credential: str
    seed: bytes


class HeldKeysAnswer(msgspec.Struct, frozen=True):
    """Keys that the service holds on your behalf, in the order of use."""

    keys: tuple[HeldKeyBody, ...]


class ParcelBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A payload sealed to one vid."""

    vid: Annotated[str, Meta(max_length=256)]
    sealed: Base64


class DepositBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mail of one cast for the people behind some vids."""

    cast: Annotated[str, Meta(min_length=1, max_length=ID_LENGTH_MAX)]
    sender: Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]
    kind: Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]
    expires_us: Annotated[int, Meta(ge=0, le=2**62)]
    parcels: Annotated[tuple[ParcelBody, ...], Meta(max_length=PARCELS_MAX)]
    back_s: Annotated[int, Meta(ge=0, le=PAST_S_MAX)] = 0
    urgent: bool = False


class DepositAnswer(msgspec.Struct, frozen=True):
    """What became of the vids, rounded down."""

    reached: int
    unreachable: int
    refused: int
    full: int


class PushKeyAnswer(msgspec.Struct, frozen=True):
    """A public key (P-256, base64url), as browsers take it."""

    key: str


class DeviceBody(msgspec.Struct, frozen=True):
    """A PushSubscription as browsers write it down; fields besides `endpoint` are ignored."""

    endpoint: Annotated[str, Meta(min_length=1, max_length=ENDPOINT_LENGTH_MAX)]


class DevicesAnswer(msgspec.Struct, frozen=True):
    """Where devices are woken."""

    endpoints: tuple[str, ...]


class IngestKeyAnswer(msgspec.Struct, frozen=True):
    """The epoch that a user agent seals with."""

    node: str
    epoch: int
    key: bytes


class PeopleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """People by the names that sensors know them by."""

    people: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)], ...],
        Meta(max_length=PEOPLE_MAX),
    ]


class HandlesAnswer(msgspec.Struct, frozen=True):
    """Handles in the order of the names."""

    handles: tuple[bytes, ...]


class VidsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Some vids."""

    vids: Annotated[
        tuple[Annotated[str, Meta(max_length=256)], ...], Meta(max_length=VIDS_ASKED_MAX)
    ]


class ErasureAnswer(msgspec.Struct, frozen=True):
    """How many entries of the mailbox were deleted, besides the person's own."""

    deleted: int


@route("GET", "/registrations/nonce", scope=None, tag="trust", answer=Nonce,
       summary="Get a nonce to register a vid with")  # fmt: skip
async def get_nonce(request: Asked) -> Response[bytes]:
    """Give a nonce that serves one registration within a minute."""
    service = service_of(request)
    return as_json(Nonce(service.registrations.nonce(service.clock())))


@route("POST", "/registrations", scope=None, tag="trust", body=Registration, answer=Registered,
       answers={201: "registered"}, problems=(401, 429),
       summary="Register a vid by its credential")  # fmt: skip
async def post_registration(request: Asked) -> Response[bytes]:
    """Exchange a credential without a name for a token whose subject is the vid."""
    given = read_body(await request.body(), Registration)
    service = service_of(request)
    audience = request.headers.get("host", "")
    credential = service.registrations.check(
        given.credential,
        b64decode(given.nonce),
        b64decode(given.signature),
        audience,
        service.clock(),
    )
    # Casts into the past are sealed to this key: it is on disk before anybody is on the map.
    await service.keep_vid_key(credential.vid, credential.keys.sealing, credential.expires_us)
    token, expires = service.registrations.token(credential, service.clock())
    told = (credential.vid, token, format_instant(expires), _receipt_key(request))
    return as_json(Registered(*told))


@route("GET", "/receipts/key", scope=None, tag="trust", answer=ReceiptKeyAnswer,
       summary="Get the key that receipts are signed with")  # fmt: skip
async def get_receipt_key(request: Asked) -> Response[bytes]:
    """Give the public key of this node: receipts inside mail are signed with it."""
    return as_json(_receipt_key(request))


@route("POST", "/pools", scope="subscribe", tag="trust", body=PoolBody, answer=PoolAnswer,
       answers={201: "issued"}, problems=(404, 429), summary="Draw a pool of vids",
       listed=False)  # fmt: skip
async def post_pool(request: Asked) -> Response[bytes]:
    """Issue a credential for each pair of keys; all pools have the same size.

    Not listed: tools that draw a request by its schema take too long over 64 keys.
    """
    given = read_body(await request.body(), PoolBody)
    keys = [VidKeys(b64decode(one.signing), b64decode(one.sealing)) for one in given.keys]
    return as_json(PoolAnswer(await _trust(request).draw(_person(request), keys)))


@route("GET", "/mailbox", scope="subscribe", tag="trust", answer=MailboxAnswer, problems=(404,),
       summary="Read the mailbox")  # fmt: skip
async def get_mailbox(request: Asked) -> Response[bytes]:
    """Give the sealed mail that waits; `GET /mailbox/stream` and `WS /mailbox` follow it."""
    mails = _trust(request).node.mails_of(_person(request))
    return as_json(MailboxAnswer(tuple(map(as_body, mails))))


class MailStream:
    """The mail that waits for one SSE connection; the machine's window bounds it."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._event = asyncio.Event()
        self._over = False

    def push(self, mail: Mail) -> None:
        """Queue a mail."""
        data = msgspec.json.encode(as_body(mail))
        self._waiting.append(b"event: mail\ndata: " + data + b"\n\n")
        self._event.set()

    def end(self) -> None:
        """End the stream."""
        self._over = True
        self._event.set()

    def cut(self, _: str) -> None:
        """End the stream: its token is no longer valid."""
        self.end()

    async def frames(self) -> AsyncIterator[bytes]:
        """Give the mails as they come."""
        yield b"retry: 2000\n\n"
        while True:
            while self._waiting:
                yield self._waiting.popleft()
            if self._over:
                return
            self._event.clear()
            try:
                await asyncio.wait_for(self._event.wait(), COMMENT_S)
            except TimeoutError:
                yield b": still here\n\n"


@route("GET", "/mailbox/stream", scope="subscribe", answer=bytes, kind="text/event-stream",
       listed=False, endless=True)  # fmt: skip
async def get_mailbox_stream(request: Asked) -> Stream:
    """Push mail as it comes (event `mail`); what is not acknowledged comes again."""
    service, grant, trust = service_of(request), request.auth, _trust(request)
    sink = MailStream()
    service.count_connection(grant.subject, +1)
    try:
        await trust.welcome(_person(request))
        inbox = await trust.connect(grant.subject, sink)
    except BaseException:
        service.count_connection(grant.subject, -1)
        raise

    async def stream() -> AsyncIterator[bytes]:
        try:
            with service.standing.held(grant, sink.cut):
                async for data in sink.frames():
                    yield data
        finally:
            trust.disconnect(inbox)
            service.count_connection(grant.subject, -1)

    return Stream(stream(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


@route("POST", "/mailbox/{cast:str}/ack", scope="subscribe", tag="trust", problems=(404,),
       summary="Acknowledge a mail")  # fmt: skip
async def post_ack(request: Asked, cast: CastId) -> None:
    """Delete a mail that is on your own disk; repeats are harmless."""
    await _trust(request).ack(request.auth.subject, cast)


@route("GET", "/me/keys", scope="subscribe", tag="trust", answer=HeldKeysAnswer, problems=(404,),
       summary="Fetch the keys that the service holds for your phone")  # fmt: skip
async def get_held_keys(request: Asked) -> Response[bytes]:
    """Give the seeds of vids under which apps of yours were on the map; nobody else gets them."""
    held = service_of(request).held_keys
    if held is None:
        raise NotFoundError("this service holds no keys: it runs no trusted node")
    own = await held.held_for(request.auth.subject)
    listed = tuple(HeldKeyBody(one.credential, one.secrets.seed) for one in own)
    return as_json(HeldKeysAnswer(listed))


@route("GET", "/me/reach", scope="subscribe", tag="trust", answer=Reach, problems=(404,),
       summary="Read who may write to you")  # fmt: skip
async def get_reach(request: Asked) -> Response[bytes]:
    """Give your reach rules."""
    return as_json(_trust(request).node.reach_of(_person(request)))


@route("PUT", "/me/reach", scope="subscribe", tag="trust", body=Reach, answer=Reach,
       problems=(404, 429), summary="Say who may write to you")  # fmt: skip
async def put_reach(request: Asked) -> Response[bytes]:
    """Set who may write, which kinds, into how much of the past, and quiet hours."""
    reach = read_body(await request.body(), Reach)
    trust, subject = _trust(request), _person(request)
    await trust.welcome(subject)
    await trust.set_reach(subject, reach)
    return as_json(reach)


@route("GET", "/push/key", scope=None, tag="trust", answer=PushKeyAnswer, problems=(404,),
       summary="Get the key to subscribe to pushes with")  # fmt: skip
async def get_push_key(request: Asked) -> Response[bytes]:
    """Give the key of this trusted node for push services (`applicationServerKey`)."""
    return as_json(PushKeyAnswer(_pushing(request).public_key))


@route("GET", "/me/push", scope="subscribe", tag="trust", answer=DevicesAnswer, problems=(404,),
       summary="Read which devices are woken")  # fmt: skip
async def get_devices(request: Asked) -> Response[bytes]:
    """Give the endpoints of your devices that are woken when mail waits."""
    return as_json(DevicesAnswer(tuple(_trust(request).node.endpoints_of(_person(request)))))


@route("PUT", "/me/push", scope="subscribe", tag="trust", body=DeviceBody, answer=DevicesAnswer,
       problems=(404, 413, 429), summary="Let a device be woken when mail waits")  # fmt: skip
async def put_device(request: Asked) -> Response[bytes]:
    """Take a browser's PushSubscription; a push to it has no body, so its keys are not kept."""
    given = read_body(await request.body(), DeviceBody)
    trust, subject = _trust(request), _person(request)
    _pushing(request).check(given.endpoint)
    await trust.welcome(subject)
    await trust.set_wake_up(subject, given.endpoint)
    return as_json(DevicesAnswer(tuple(trust.node.endpoints_of(subject))))


@route("DELETE", "/me/push", scope="subscribe", tag="trust", problems=(404, 429),
       summary="Let no device be woken any more")  # fmt: skip
async def delete_devices(request: Asked) -> None:
    """Forget the endpoints of all your devices."""
    await _trust(request).remove_wake_up(request.auth.subject)


@route("DELETE", "/me", scope="subscribe", tag="trust", answer=ErasureAnswer, problems=(404, 429),
       summary="Let the trusted node forget you")  # fmt: skip
async def delete_me(request: Asked) -> Response[bytes]:
    """Erase your register entry and mailbox; your vids resolve to nothing from now on."""
    return as_json(ErasureAnswer(await _trust(request).erase(request.auth.subject)))


@route("POST", "/ingests/{ingest:str}", scope="admin", tag="trust", answer=IngestKeyAnswer,
       answers={201: "shared"}, problems=(404, 409),
       summary="Give an ingest an epoch of its own")  # fmt: skip
async def post_ingest(request: Asked, ingest: IngestName) -> Response[bytes]:
    """Give the key that a user agent seals vids with, for people whom it knows by sensors."""
    keys = await _trust(request).share(ingest)
    return as_json(IngestKeyAnswer(keys.node, keys.current, keys.key))


@route("POST", "/people/handles", scope="admin", tag="trust", body=PeopleBody,
       answer=HandlesAnswer, problems=(404, 429),
       summary="Get the handles of people, for a user agent")  # fmt: skip
async def post_handles(request: Asked) -> Response[bytes]:
    """Give the handles behind names; who is not known yet is enrolled."""
    given = read_body(await request.body(), PeopleBody)
    return as_json(HandlesAnswer(tuple(await _trust(request).enrol(given.people))))


@route("POST", "/people/departed", scope="admin", tag="trust", body=VidsBody, answer=VidsBody,
       problems=(404,), summary="Find vids of people who were erased")  # fmt: skip
async def post_departed(request: Asked) -> Response[bytes]:
    """Give those of some vids whose person was erased: archives erase their contexts."""
    given = read_body(await request.body(), VidsBody)
    return as_json(VidsBody(tuple(_trust(request).node.departed(list(given.vids)))))


@route("DELETE", "/people/{subject:str}", scope="admin", tag="trust", answer=ErasureAnswer,
       problems=(404, 429), summary="Let the trusted node forget a person")  # fmt: skip
async def delete_person(request: Asked, subject: SubjectName) -> Response[bytes]:
    """Erase a person on their behalf, as `DELETE /me` does."""
    return as_json(ErasureAnswer(await _trust(request).erase(subject)))


@route("POST", "/deposits", scope="any", tag="trust", body=DepositBody, answer=DepositAnswer,
       problems=(403, 404, 409, 429), summary="Deposit sealed mail for vids")  # fmt: skip
async def post_deposit(request: Asked) -> Response[bytes]:
    """Keep sealed mail for the people behind vids; answered when it is on disk.

    A broker (scope `deposit`) vouches for the sender; who casts deposits under their own name.
    """
    grant = request.auth
    vouches = bool({"deposit", "admin"} & set(grant.scopes))
    if not vouches:
        grant.require("cast")
    given = read_body(await request.body(), DepositBody)
    if not vouches and given.sender != grant.subject:
        raise ForbiddenError(
            "mail has its sender's own name: only a broker (scope deposit) vouches for others"
        )
    if not vouches and not given.cast.startswith(f"{grant.subject}:"):
        # A person gets a cast once: who could name others' casts could make people miss them.
        raise ForbiddenError(f"the id of what you deposit begins with {grant.subject[:100]!r}, ':'")
    parcels = tuple(SealedParcel(one.vid, b64decode(one.sealed)) for one in given.parcels)
    fields = (given.cast, given.sender, given.kind, given.expires_us, given.back_s)
    done = await _trust(request).deposit(Deposit(0, *fields, parcels, given.urgent))
    if not vouches:
        # Whose mailbox is full, or gone, would tell which vids are one person's (decision 0189).
        return as_json(DepositAnswer(len(given.parcels), 0, 0, 0))
    return as_json(DepositAnswer(done.reached, done.unreachable, done.refused, done.full))


def _person(request: Asked) -> str:
    return person_of(service_of(request), request.auth)


def _receipt_key(request: Asked) -> ReceiptKeyAnswer:
    own = service_of(request).receipt_key()
    return ReceiptKeyAnswer(own.node, public_key(own.private))


def _pushing(request: Asked) -> Pushing:
    pushing = _trust(request).pushing
    assert pushing is not None, "a node that listens can push"
    return pushing


def _trust(request: Asked) -> RunningTrust:
    trust = service_of(request).trust
    if trust is None:
        raise NotFoundError("this service runs no trusted node: ask yours")
    return trust


def read_body(body: bytes, kind: type[Body]) -> Body:
    """Read a JSON body; whole numbers may be written with decimals."""
    try:
        return msgspec.convert(_with_whole(json_text.read(body, InputError)), kind)
    except msgspec.ValidationError as error:
        raise InputError(f"the body can not be read: {error}") from None


def _with_whole(value: Any) -> Any:
    """Turn 60.0 into 60: JSON does not tell them apart."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _with_whole(below) for name, below in value.items()}
    return [_with_whole(below) for below in value] if isinstance(value, list) else value
