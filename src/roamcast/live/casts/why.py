"""Why a cast reached whom it did: which node, filter, rule or limit decided, in plain lines."""

import msgspec

from roamcast.model.time import format_instant
from roamcast.overlay.casts.messages import CastView

_TENSES = {
    "historic": "it asks the past alone: nobody who comes later gets it",
    "present": "it names no time: who satisfied it when it was sent gets it, and nobody later",
    "future": "it waits: who satisfies it from now on gets it",
    "hybrid": "it asks the past, and waits for who satisfies it from now on",
}


class Why(msgspec.Struct, frozen=True):
    """What decided, one line for each cause; counts are of pseudonyms, with noise."""

    id: str
    filter: str
    lines: tuple[str, ...]


def why(view: CastView, text: str, now: int) -> Why:
    """Explain a cast to its sender."""
    lines = [_TENSES[view.tense]]
    silent = view.nodes_asked - view.nodes_answered
    lines.append(f"{view.nodes_answered} of {view.nodes_asked} nodes have answered")
    if silent > 0:
        lines.append(f"{silent} nodes are late: they are asked again until the cast is over")
    if view.given_up:
        lines.append("not heard of in time: " + ", ".join(view.given_up[:20]))
    if view.found:
        lines.append(f"about {view.found} pseudonyms satisfy the filter")
    else:
        lines.append("too few pseudonyms to be told satisfy the filter, perhaps none")
    if view.delivered:
        lines.append(f"about {view.delivered} are with their trusted node, a person's only once")
    if view.waiting:
        lines.append(f"about {view.waiting} wait: a mailbox is full, or a node does not answer")
    if view.unreachable:
        lines.append(f"about {view.unreachable} are nobody any more, or have no key here")
    if view.refused:
        lines.append(f"about {view.refused} were refused by people's own reach rules")
    if view.state == "cancelled":
        lines.append("it was cancelled: what had been delivered stays")
    elif view.state == "updated":
        lines.append("an update took its place, for those whom it had reached")
    elif view.expires_us <= now:
        lines.append(f"it expired at {format_instant(view.expires_us)}")
    else:
        lines.append(f"it is live until {format_instant(view.expires_us)}")
    return Why(view.cast, text, tuple(lines))
