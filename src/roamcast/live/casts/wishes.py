"""Casts as senders ask for them, by HTTP or in a session."""

from base64 import b64decode

import msgspec

from roamcast.channels.sessions.messages import CastOrder
from roamcast.errors import InputError
from roamcast.model.time import MICROSECONDS, parse_instant


class CastWish(msgspec.Struct, frozen=True, kw_only=True):
    """A cast as its sender asks for it."""

    filter: str
    payload: bytes
    media_type: str = "text/plain; charset=utf-8"
    kind: str = "text"
    priority: str = "routine"
    expires_us: int | None = None
    id: str = ""
    policy: str = "NH"


def wish_of(given: CastOrder, now: int) -> CastWish:
    """Read what somebody wants to send; InputError says what is wrong with it."""
    if given.expires is not None and given.lifetime_s is not None:
        raise InputError("give expires or lifetime_s, not both")
    expires = None if given.expires is None else parse_instant(given.expires)
    if given.lifetime_s is not None:
        expires = now + round(given.lifetime_s * MICROSECONDS)
    return CastWish(
        filter=given.filter,
        payload=payload_of(given.text, given.payload),
        media_type=given.media_type,
        kind=given.kind,
        priority=given.priority,
        expires_us=expires,
        id=given.id or "",
        policy=given.policy,
    )


def payload_of(text: str, payload: str) -> bytes:
    """Give what is said, as bytes: a text, or bytes in base64."""
    if bool(text) == bool(payload):
        raise InputError("a cast says something: give text or payload, one of the two")
    try:
        return text.encode() if text else b64decode(payload, validate=True)
    except ValueError:
        raise InputError("the payload is not base64") from None
