"""Views over the maps of all nodes: the broker's `GET /changes`, opened again if it ends.

A broker's shared channels carry its own map. What is on other nodes' maps comes to sessions only,
so where a broker has neighbours a view follows its stream of changes instead.
"""

import asyncio
from collections.abc import Callable
from typing import Final
from urllib.parse import urlencode

import msgspec

from roamcast.channels.client.session import CONTEXTS_MAX
from roamcast.client.views import Feed
from roamcast.errors import LimitError, RoamcastError, UnreachableError
from roamcast.model.contexts import decode
from roamcast.model.filters import Filter
from roamcast.model.machine import Draw
from roamcast.transport.http import HttpClient

SILENCE_S: Final = 45.0
"""A stream with nothing to say sends a comment every 15 s."""

AGAIN_S: Final = 0.5
"""A stream that ended is opened again after this long, up to three times as long."""

RETURN_S: Final = 5.0
"""So long other nodes have after that to show again what they showed before."""

_NULL: Final = b"null"


class _Listing(msgspec.Struct):
    """What is read of a `Subscribed`."""

    features: list[msgspec.Raw]


class _Changed(msgspec.Struct):
    """What is read of a `CloudEvent`."""

    subject: str
    data: msgspec.Raw


_listed = msgspec.json.Decoder(_Listing).decode
_changed = msgspec.json.Decoder(_Changed).decode


class EverywhereViews:
    """Follows filters at one broker, each by a stream of its own."""

    def __init__(self, http: HttpClient, draw: Draw) -> None:
        self._http = http
        self._draw = draw
        self._followed: dict[str, tuple[Feed, asyncio.Task[None]]] = {}
        self._numbers = 0

    def follow(self, wanted: Filter) -> Feed:
        """Begin to follow a filter."""
        self._numbers += 1
        feed = Feed(f"everywhere-{self._numbers}", wanted)
        task = asyncio.get_running_loop().create_task(self._run(feed))
        self._followed[feed.name] = (feed, task)
        return feed

    def leave(self, name: str) -> None:
        """Follow it no longer."""
        found = self._followed.pop(name, None)
        if found is not None:
            found[1].cancel()

    async def close(self) -> None:
        """End all streams; whoever reads comes to the end."""
        followed, self._followed = self._followed, {}
        for feed, task in followed.values():
            task.cancel()
            feed.end()
        await asyncio.gather(*(task for _, task in followed.values()), return_exceptions=True)

    async def _run(self, feed: Feed) -> None:
        reading = _Reading(feed)
        path = "/changes?" + urlencode({"filter": feed.filter.source})
        try:
            while True:
                try:
                    async with self._http.lines(path, silence_s=SILENCE_S) as lines:
                        reading.begin()
                        async for line in lines:
                            reading.take(line)
                except UnreachableError:
                    pass
                await asyncio.sleep(AGAIN_S * (1 + 2 * self._draw()))
        except RoamcastError as error:
            feed.end(error)
        finally:
            reading.stop()


class _Reading:
    """One stream after another into one feed: what none of them shows again has left."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._kind = b""
        self._missing: set[str] = set()
        """What was shown by an earlier stream, and not by this one yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._kinds: dict[bytes, Callable[[bytes], None]] = {
            b"current": self._list,
            b"complete": self._complete,
            b"change": self._change,
            b"error": _refused,
        }

    def begin(self) -> None:
        """A new stream shows everything again."""
        self.stop()
        self._missing = set(self._feed.inbox.shown)

    def stop(self) -> None:
        """Let no timer run on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take(self, line: bytes) -> None:
        """Take one line of the stream."""
        if line.startswith(b"event: "):
            self._kind = line[7:].strip()
        elif line.startswith(b"data: ") and self._kind in self._kinds:
            try:
                self._kinds[self._kind](line[6:])
            except msgspec.MsgspecError as error:
                raise UnreachableError(f"this is no stream of changes: {error}") from None
            self._feed.news.set()

    def _show(self, feature: msgspec.Raw) -> None:
        context = decode(bytes(feature))
        inbox = self._feed.inbox
        if context.vid not in inbox.shown and len(inbox.shown) >= CONTEXTS_MAX:
            raise LimitError(
                f"a subscription shows at most {CONTEXTS_MAX} contexts: narrow its filter"
            )
        self._missing.discard(context.vid)
        inbox.show(context)

    def _list(self, data: bytes) -> None:
        for feature in _listed(data).features:
            self._show(feature)

    def _complete(self, data: bytes) -> None:
        del data
        inbox = self._feed.inbox
        inbox.current(len(inbox.shown), complete=True)
        # Other nodes' contexts come behind the current set, once their nodes are asked again.
        self._timer = asyncio.get_running_loop().call_later(RETURN_S, self._forget)

    def _forget(self) -> None:
        for vid in self._missing:
            self._feed.inbox.hide(vid)
        self._missing.clear()
        self._feed.news.set()

    def _change(self, data: bytes) -> None:
        event = _changed(data)
        if bytes(event.data) == _NULL:
            self._missing.discard(event.subject)
            self._feed.inbox.hide(event.subject)
        else:
            self._show(event.data)


def _refused(data: bytes) -> None:
    raise UnreachableError(data.decode(errors="replace").strip())
