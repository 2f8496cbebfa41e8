"""How events look in frames: JSON for WebSockets, in parts where they are large, and SSE."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from roamcast.channels.sessions.events import Format
from roamcast.channels.sessions.messages import (
    ConsumerElsewhere,
    EventsGap,
    EventsStand,
    FramePart,
    ModulatorNews,
    SessionEvent,
)
from roamcast.errors import InputError
from roamcast.model.caching import ByBytes
from roamcast.model.contexts import encode
from roamcast.overlay.flows.events import EventsDelivered, EventsLost
from roamcast.overlay.flows.messages import Event
from roamcast.overlay.flows.vector import ORIGINS_MAX, Pairs, Position, Vector, pairs
from roamcast.overlay.handoff.messages import Attachment

PART_BYTES: Final = 64_000
"""A longer frame goes in parts of this size."""

PART_HEAD_BYTES: Final = 64
"""What a part has around its text."""

CACHE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Encoded events that are remembered: many consumers want the same."""

_ORIGIN: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_encode = msgspec.json.Encoder().encode


def vector_text(vector: Vector) -> str:
    """Write a vector for `Last-Event-ID`: `origin:epoch:number`, with commas between."""
    return ",".join(f"{name}:{at.epoch}:{at.number}" for name, at in sorted(vector.items()))


def read_vector(text: str) -> Pairs:
    """Read what `vector_text` wrote."""
    found: dict[str, Position] = {}
    for part in text.split(",") if text else ():
        origin, _, position = part.strip().partition(":")
        epoch, _, number = position.partition(":")
        digits = epoch.isdecimal() and number.isdecimal() and position.isascii()
        if _ORIGIN.fullmatch(origin) is None or not digits or len(position) > 40:
            raise InputError("a position is origin:epoch:number, with commas between")
        found[origin] = Position(int(epoch), int(number))
    if len(found) > ORIGINS_MAX:
        raise InputError(f"a vector has at most {ORIGINS_MAX} origins")
    return pairs(found)


class EventFrames:
    """Encodes what consumers are told; what many of them read is encoded once."""

    def __init__(self) -> None:
        self._known: ByBytes[tuple[str, int, int], bytes] = ByBytes(CACHE_BYTES_MAX)

    def _event(self, origin: str, epoch: int, number: int, event: Event) -> bytes:
        key = (origin, epoch, number)
        found = self._known.get(key)
        if found is None:
            feature: Any = msgspec.Raw(encode(event.context))
            needs: Any = dict(event.needs) or msgspec.UNSET
            made = SessionEvent(
                number, event.producer, event.life, event.number, feature, event.data, needs
            )
            found = _encode(made)
            self._known.put(key, found, len(found))
        return found

    def delivered(
        self, form: Format, about: str, given: EventsDelivered, vector: Vector
    ) -> list[bytes]:
        """Give the frames of an interval; `vector`: how far the consumer comes by it."""
        origin, epoch = given.origin, given.upto.epoch
        texts = [(at, self._event(origin, epoch, at, event)) for at, event in given.events]
        if form == "sse":
            return [_sse(origin, texts, vector, epoch)]
        frames: list[bytes] = []
        after = given.after
        for at, batch in _batches(texts, given.upto):
            head = _encode({"type": "events", "re": about, "origin": origin,
                            "after": after, "upto": at})  # fmt: skip
            frames.append(head[:-1] + b',"events":[' + b",".join(batch) + b"]}")
            after = at
        return frames

    def standing(
        self, form: Format, about: str, vector: Vector, served: Attachment | None = None
    ) -> bytes:
        """Say from where on everything comes; `served`: of a consumer with modulators."""
        if form == "sse":
            return f"id: {vector_text(vector)}\n\n".encode()
        made = EventsStand(about, dict(vector.items()), served)  # type: ignore[arg-type]
        return _encode(made)

    def lost(self, form: Format, about: str, given: EventsLost) -> bytes:
        """Say what a log no longer had."""
        made = _encode(EventsGap(about, given.origin, given.after, given.upto, given.reason))  # type: ignore[arg-type]
        return b"event: lost\ndata: " + made + b"\n\n" if form == "sse" else made

    def modulators(self, form: Format, about: str, reason: str, *, stopped: bool) -> bytes:
        """Say that modulators do not go on as they were."""
        made = _encode(ModulatorNews(about, stopped, reason))
        return b"event: modulators\ndata: " + made + b"\n\n" if form == "sse" else made

    def elsewhere(self, form: Format, about: str, to: str, url: str) -> bytes:
        """Say that another node serves a consumer now, or is to."""
        made = _encode(ConsumerElsewhere(about, to, url))
        return b"event: moved\ndata: " + made + b"\n\n" if form == "sse" else made


def parts_of(frame: bytes, part_bytes: int) -> Iterator[bytes]:
    """Cut a frame that is too long into parts; what is not is its own only part."""
    if len(frame) <= part_bytes:
        yield frame
        return
    text, at = frame.decode(), 0
    while at < len(text):
        step = part_bytes - PART_HEAD_BYTES
        while True:  # some characters take more room within a text
            last = at + step >= len(text)
            made = _encode(FramePart(text[at : at + step], last))
            if len(made) <= part_bytes:
                break
            step //= 2
        yield made
        at += step


def _batches(
    texts: list[tuple[int, bytes]], upto: Position
) -> Iterable[tuple[Position, list[bytes]]]:
    """Divide an interval so that a frame has little more than one part."""
    batch: list[bytes] = []
    size = 0
    for index, (number, text) in enumerate(texts):
        batch.append(text)
        size += len(text)
        if size > PART_BYTES and index + 1 < len(texts):
            yield Position(upto.epoch, number), batch
            batch, size = [], 0
    yield upto, batch


def _sse(origin: str, texts: list[tuple[int, bytes]], vector: Vector, epoch: int) -> bytes:
    """Each event has the vector behind it: a reader that stops there misses nothing."""
    out = []
    for number, text in texts:
        behind = vector_text({**vector, origin: Position(epoch, number)})
        head = f"id: {behind}\nevent: event\ndata: ".encode()
        out.append(head + b'{"origin":' + _encode(origin) + b"," + text[1:] + b"\n\n")
    out.append(f"id: {vector_text(vector)}\n\n".encode())
    return b"".join(out)
