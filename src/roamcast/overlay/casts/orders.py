"""What users ask for, checked: a cast as it travels, made from what its sender wrote."""

from typing import Final

import msgspec

from roamcast.errors import LimitError, MessageError
from roamcast.model import casts as model
from roamcast.overlay.casts.held import plan_of
from roamcast.overlay.casts.messages import (
    GROUPS_MAX,
    NAME_LENGTH_MAX,
    CastBody,
    SendCast,
    UpdateCast,
)
from roamcast.overlay.casts.settings import CastSettings

_check: Final = msgspec.msgpack.Decoder(CastBody)


def draft_of(given: SendCast, node: str, now: int) -> CastBody:
    """Make a cast as it travels, but for its expiry; raise if it is not valid."""
    cast, viewer = given.cast, given.viewer
    model.check(cast)
    if max(len(viewer.name), len(given.kind)) > NAME_LENGTH_MAX:
        raise LimitError(f"a sender and a kind have at most {NAME_LENGTH_MAX} characters")
    if len(viewer.groups) > GROUPS_MAX:
        raise LimitError(f"a sender has at most {GROUPS_MAX} groups")
    made = CastBody(
        id=cast.id,
        filter=cast.filter,
        target=cast.target,
        sent=cast.sent,
        split_at=now,
        expires_us=0,
        over_us=0,
        media_type=cast.media_type,
        sender=viewer.name,
        groups=tuple(sorted(viewer.groups)),
        kind=given.kind,
        policy=given.policy,
        priority=given.priority,
        origin=node,
    )
    try:
        _check.decode(msgspec.msgpack.encode(made))
    except msgspec.ValidationError as error:
        raise MessageError(f"this is not a cast: {error}") from None
    return made


def with_expiry(draft: CastBody, expires: int | None, settings: CastSettings) -> CastBody:
    """Say when a cast expires: as its sender does, or when its filter can match nobody."""
    if expires is None:
        latest = draft.sent + model.LIFETIME_MAX
        expires = min(max(plan_of(draft).last or 0, draft.split_at + settings.life_us), latest)
    return msgspec.structs.replace(draft, expires_us=expires, over_us=expires + settings.late_us)


def check_update(given: UpdateCast) -> None:
    """Raise if an update is not valid."""
    model.check(model.Cast(given.id, "TRUE", given.payload, 0))
    if max(len(given.kind), len(given.media_type)) > NAME_LENGTH_MAX:
        raise LimitError(f"a kind has at most {NAME_LENGTH_MAX} characters")
