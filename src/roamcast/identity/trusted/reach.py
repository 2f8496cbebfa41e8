"""Reach rules: who may write to a person, what, into how much of the past, and when it may disturb.

They hold at the trusted node, for every vid of the person, and no broker sees them. What they
refuse is not stored. Quiet hours refuse nothing: mail is kept, and pushed when they are over.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from roamcast.errors import InputError, LimitError
from roamcast.identity.rules import EVERYONE, MINUTES_A_DAY, Hours
from roamcast.identity.trusted.settings import NAME_LENGTH_MAX

NAMES_MAX: Final = 1_000
QUIET_MAX: Final = 16
PAST_S_MAX: Final = 2**40

Names = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)], ...],
    Meta(max_length=NAMES_MAX),
]


class Reach(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person allows; the default allows everything at any time."""

    senders: Names = (EVERYONE,)
    """Who may write; `*` is everyone."""
    stopped: Names = ()
    """Who may not, whatever `senders` says."""
    kinds: Names = (EVERYONE,)
    past_s: Annotated[int, Meta(ge=0, le=PAST_S_MAX)] | None = None
    """How old a place in time a cast may address; None for any, 0 for the present and later."""
    quiet: Annotated[tuple[Hours, ...], Meta(max_length=QUIET_MAX)] = ()


ANYTHING: Final = Reach()


def check_reach(reach: Reach) -> Reach:
    """Return the rules if they are valid; the decoder checks the same of what comes as JSON."""
    for names in (reach.senders, reach.stopped, reach.kinds):
        if len(names) > NAMES_MAX:
            raise LimitError(f"reach rules name at most {NAMES_MAX} senders or kinds each")
        if not all(0 < len(name) <= NAME_LENGTH_MAX for name in names):
            raise LimitError(f"a sender or kind has 1 to {NAME_LENGTH_MAX} characters")
    if reach.past_s is not None and not 0 <= reach.past_s <= PAST_S_MAX:
        raise InputError(f"past_s is not negative, and at most {PAST_S_MAX}")
    if len(reach.quiet) > QUIET_MAX:
        raise LimitError(f"there are at most {QUIET_MAX} spans of quiet hours")
    if not all(0 <= one.start_min < one.end_min <= MINUTES_A_DAY for one in reach.quiet):
        raise InputError("quiet hours begin before they end, within one day")
    return reach


def refuses(reach: Reach, sender: str, kind: str, back_s: int) -> str:
    """Say why these rules refuse a cast that reaches so far back, "" if they do not."""
    if sender in reach.stopped:
        return "stopped sender"
    if EVERYONE not in reach.senders and sender not in reach.senders:
        return "sender"
    if EVERYONE not in reach.kinds and kind not in reach.kinds:
        return "kind"
    if reach.past_s is not None and back_s > reach.past_s:
        return "past"
    return ""


def quiet_until(reach: Reach, now: int) -> int | None:
    """Give when the quiet hours around now end, None outside them."""
    until: int | None = None
    # Spans may touch at midnight: follow them until one ends in the open.
    for _ in range(8 * QUIET_MAX):
        found = [one.span(now if until is None else until) for one in reach.quiet]
        ends = [span[1] for span in found if span is not None]
        if not ends:
            break
        until = max(ends)
    return until
