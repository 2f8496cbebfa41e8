"""What does a session read of an update? One CloudEvent with GeoJSON data, encoded once for all."""

import enum
from typing import Final, Literal

import msgspec

from roamcast.channels.server.messages import State, context_of
from roamcast.model import time
from roamcast.model.contexts import to_feature

Format = Literal["json", "sse"]

EVENT_TYPE: Final = "org.roamcast.context."
SOURCE: Final = "/collections/contexts"
_encode = msgspec.json.Encoder().encode


class Kind(enum.StrEnum):
    """What an update means for a watch."""

    APPEARED = "appeared"
    CHANGED = "changed"
    LEFT = "left"


_MERGED: Final[dict[tuple[Kind, Kind], Kind | None]] = {
    (Kind.APPEARED, Kind.CHANGED): Kind.APPEARED,
    (Kind.APPEARED, Kind.LEFT): None,  # it came and went unseen
    (Kind.CHANGED, Kind.CHANGED): Kind.CHANGED,
    (Kind.CHANGED, Kind.LEFT): Kind.LEFT,
    (Kind.LEFT, Kind.APPEARED): Kind.CHANGED,
}


class ContextEvent(msgspec.Struct, frozen=True, gc=False):
    """What happened to an object, and its state afterwards."""

    kind: Kind
    state: State
    at_us: int


def merged(earlier: ContextEvent | None, later: ContextEvent) -> ContextEvent | None:
    """Give the one event that says what two said; None: together they say nothing."""
    if earlier is None:
        return later
    kind = _MERGED.get((earlier.kind, later.kind), later.kind)
    return None if kind is None else ContextEvent(kind, later.state, later.at_us)


class Writer:
    """Encodes objects and events; what many sessions read is encoded once."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._features: dict[bytes, bytes] = {}
        self._events: dict[tuple[Kind, int, bytes], bytes] = {}

    def feature(self, state: State) -> bytes:
        """Give an object as a GeoJSON Feature."""
        known = self._features.get(state.body)
        if known is None:
            if len(self._features) >= 65_536:
                self._features.clear()
            known = self._features[state.body] = _encode(to_feature(context_of(state.body)))
        return known

    def event(self, event: ContextEvent) -> bytes:
        """Give an event as a CloudEvent in JSON."""
        state = event.state
        key = (event.kind, state.number, state.body)
        known = self._events.get(key)
        if known is None:
            if len(self._events) >= 4_096:
                self._events.clear()
            data = b"null" if event.kind is Kind.LEFT else self.feature(state)
            head = {
                "specversion": "1.0",
                "id": f"{self._epoch}-{state.number}",
                "source": SOURCE,
                "type": EVENT_TYPE + event.kind,
                "subject": state.vid,
                "time": time.format_instant(event.at_us),
                "datacontenttype": "application/geo+json",
            }
            known = _encode(head)[:-1] + b',"data":' + data + b"}"
            self._events[key] = known
        return known

    def changes(self, form: Format, query: int, events: list[bytes], pending: int = 0) -> bytes:
        """Give the frame of several events of one query."""
        if form == "sse":
            return b"".join(b"event: change\ndata: " + event + b"\n\n" for event in events)
        tail = b',"pending":%d}' % pending if pending else b"}"
        return b'{"type":"changes","query":%d,"events":[' % query + b",".join(events) + b"]" + tail

    def current(
        self, form: Format, *, about: str, query: int, count: int, states: list[State]
    ) -> bytes:
        """Give the reply to a subscription: how many objects match, and the first of them."""
        features = b",".join(map(self.feature, states))
        head = _encode({"type": "subscribed", "re": about, "query": query, "count": count})
        frame = head[:-1] + b',"features":[' + features + b"]}"
        return b"event: current\ndata: " + frame + b"\n\n" if form == "sse" else frame

    def complete(self, form: Format, query: int) -> bytes:
        """Say that the whole current set has been told."""
        frame = b'{"type":"current","query":%d}' % query
        return b"event: complete\ndata: " + frame + b"\n\n" if form == "sse" else frame
