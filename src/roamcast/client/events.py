"""The SDK's end of the event plane: every event once and in order, at whichever broker serves.

`EventRoamer` holds one WebSocket session, or two while it moves: the new one stands before the old
one ends, and a cursor lets each event through once (docs/flows.md). It goes only to addresses that
the program gave: a token goes to no other.
"""

import asyncio
import contextlib
import secrets
import ssl
import time as clock
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
import websockets.asyncio.client as sockets
from websockets.exceptions import InvalidStatus, WebSocketException

from roamcast.channels.sessions import messages as say
from roamcast.client.event_streams import (
    BrokerChange,
    EventGap,
    EventStream,
    Modulated,
    Modulator,
    ReceivedEvent,
)
from roamcast.client.nearness import BrokerSearch, Near
from roamcast.errors import (
    AuthError,
    ForbiddenError,
    InputError,
    LimitError,
    ModulatorError,
    RoamcastError,
    UnreachableError,
)
from roamcast.model.contexts import from_feature
from roamcast.model.machine import Draw
from roamcast.model.wire import FRAME_BYTES_MAX
from roamcast.overlay.flows.cursor import ProducerCursor
from roamcast.overlay.flows.events import EventsLost, EventsStanding
from roamcast.overlay.flows.vector import Pairs, Position, merge, numbers_between
from roamcast.transport.address import ServiceAddress

UNANSWERED_MAX: Final = 256
"""Publications of which the disk has not been heard of; then publishing waits."""

PART_CHARACTERS: Final = 256_000
MOVES_MAX: Final = 1_000
LET_GO_S: Final = 1.0
"""With a limit, how long an old broker may go on while a new one prepares (trap 23)."""

MOVED: Final = 421
ELSEWHERE: Final = (403, 409)
"""Another program is served under this name: by another credential, or by one that began later."""
_decode = msgspec.json.Decoder(say.Answer).decode
_encode = msgspec.json.Encoder().encode

TokenOf = Callable[[str], Awaitable[str]]
"""Gives the token for a broker's address."""


class _Publication(msgspec.Struct, frozen=True):
    request: dict[str, Any]
    done: "asyncio.Future[Position]"


class _Broker:
    """One session with one broker."""

    def __init__(self, url: str, socket: sockets.ClientConnection, node: str) -> None:
        self.url = url
        self.node = node
        self.socket = socket
        self.standing: set[str] = set()
        self.refused: RoamcastError | None = None
        self.changed = asyncio.Event()
        self.reader: asyncio.Task[None] | None = None
        self.parts: list[str] = []

    @property
    def reader_over(self) -> bool:
        """Whether nothing comes from it any more."""
        return self.reader is None or self.reader.done()

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message, in parts if it is long."""
        data = _encode(message)
        with contextlib.suppress(WebSocketException):  # the reader notices
            if len(data) <= PART_CHARACTERS:
                await self.socket.send(data, text=True)
                return
            text = data.decode()
            for at in range(0, len(text), PART_CHARACTERS):
                last = at + PART_CHARACTERS >= len(text)
                part = {"type": "part", "text": text[at : at + PART_CHARACTERS], "last": last}
                await self.socket.send(_encode(part).decode())


class EventRoamer:
    """The event plane of one session."""

    def __init__(
        self,
        address: ServiceAddress,
        device: str,
        *,
        near: Near = "",
        draw: Draw,
        limit_bytes: int = 0,
        open_s: float = 10.0,
        tls: ssl.SSLContext | None = None,
        token_of: TokenOf | None = None,
    ) -> None:
        """`token_of`: a token for each broker; without it, the address's own goes to all."""
        self.on_move: Callable[[str, str], None] = lambda *_: None
        """Told of each change of broker: where to, and why."""
        self.moves: deque[BrokerChange] = deque(maxlen=MOVES_MAX)
        self._address = address
        self._urls = [address.url, *address.others]
        self._device = device
        self._near: Near = near
        self._limit_bytes = limit_bytes
        self._token_of = token_of
        self._draw = draw
        self._open_s = open_s
        self._tls = tls
        self._streams: dict[str, EventStream] = {}
        self._broker: _Broker | None = None
        self._counter = 0
        self._start_us = clock.time_ns() // 1_000
        self._name = secrets.token_urlsafe(16)
        self._producer = ProducerCursor(self._start_us)
        self._waiting: dict[int, _Publication] = {}
        self._room = asyncio.Semaphore(UNANSWERED_MAX)
        self._place = ""
        self._lock = asyncio.Lock()
        """Held while the broker changes."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._numbers = 0
        self._followers: dict[str, EventRoamer] = {}
        """Subscriptions whose modulators have a home of their own → their sessions."""

    # --- what programs use

    @property
    def broker(self) -> str:
        """The address of the broker that serves now."""
        return self._urls[0] if self._broker is None else self._broker.url

    @property
    def urls(self) -> Sequence[str]:
        """The brokers that it may go to."""
        return self._urls

    @property
    def begun(self) -> bool:
        """Whether a broker serves it by now."""
        return self._broker is not None

    async def subscribe(
        self,
        where: str,
        *,
        expires_s: float,
        modulators: Sequence[Modulator] = (),
        keeps_state: bool = True,
        keeps_events: bool = True,
    ) -> EventStream:
        """Begin a subscription; returns once all routes to it stand."""
        self._numbers += 1
        name = f"s{self._numbers}"
        modulated = None
        if modulators:
            modulated = Modulated(
                modulators, keeps_state=keeps_state, keeps_events=keeps_events, start=self._start_us
            )
        stream = EventStream(name, where, expires_s, self.unsubscribe, modulated)
        if modulated is None or self._near != "home" or self._limit_bytes:  # it holds for all
            return await self.begin(stream)
        # Each has the home that is best for it, so each has a session that goes there.
        follower = self._followers[name] = self._another(name)
        try:
            return await follower.begin(stream)
        except BaseException:
            del self._followers[name]
            await follower.close()
            raise

    def _another(self, name: str) -> "EventRoamer":
        """Make a session of its own for one subscription."""
        device = f"{self._device[:50]}.{name}"
        made = EventRoamer(
            self._address, device, near=self._near, draw=self._draw,
            open_s=self._open_s, tls=self._tls, token_of=self._token_of,
        )  # fmt: skip
        made.moves, made._place = self.moves, self._place
        return made

    async def begin(self, stream: EventStream) -> EventStream:
        """Let a subscription stand, or raise why it does not."""
        stream.broker_of = lambda: self.broker
        broker = await self._ready()
        self._streams[stream.name] = stream
        await self._ask(broker, stream)
        try:
            async with asyncio.timeout(self._open_s):
                while not stream.standing.is_set() and not (broker.refused or stream.failed):
                    await _first(stream.standing.wait(), broker.changed.wait())
                    broker.changed.clear()
        except TimeoutError:
            self._streams.pop(stream.name, None)
            raise UnreachableError("the subscription does not stand: try again") from None
        if stream.failed is not None:
            raise stream.failed
        if broker.refused is not None:
            error, broker.refused = broker.refused, None
            self._streams.pop(stream.name, None)
            raise error
        return stream

    async def unsubscribe(self, stream: EventStream) -> None:
        """End a subscription."""
        follower = self._followers.pop(stream.name, None)
        if follower is not None:
            await follower.close()
        if self._streams.pop(stream.name, None) is not None:
            stream.end()
            if self._broker is not None:
                await self._broker.send({"type": "unsubscribe_events", "re": stream.name})

    async def publish(self, feature: dict[str, Any], data: bytes, *, causal: bool) -> None:
        """Publish an event; returns once it is on disk. It is sent again until it is."""
        if len(data) > say.EVENT_DATA_BYTES_MAX:
            raise LimitError(f"an event has at most {say.EVENT_DATA_BYTES_MAX} bytes of data")
        await self._room.acquire()
        try:
            seen = [stream.cursor.vector for stream in self._streams.values()] if causal else []
            number = self._producer.following()
            needs = dict(self._producer.needs(merge(*seen)))
            request = {
                "type": "publish_event",
                "re": f"p{number}",
                "feature": feature,
                "producer": self._name,
                "life": self._producer.life,
                "number": number,
                "data": data,
                "needs": needs,
            }
            done: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
            self._waiting[number] = _Publication(request, done)
            try:
                broker = await self._ready()
                await broker.send(request)
                await done
            finally:
                self._waiting.pop(number, None)
        finally:
            self._room.release()

    async def report(self, place: str, point: tuple[float, float] | None = None) -> None:
        """Say where this program is; with near="place" it moves to the broker that serves there."""
        self._place = place
        for follower in self._followers.values():
            await follower.report(place, point)
        if self._broker is not None:
            at = {} if point is None else {"point": point}
            await self._broker.send({"type": "place", "re": "place", "place": place, **at})

    async def move(self, url: str, why: str) -> bool:
        """Go to another broker: it serves before the old one ends. False: it did not work."""
        if url not in self._urls:
            return False
        async with self._lock:
            old = self._broker
            if old is not None and old.url == url:
                return True
            began = asyncio.get_running_loop().time()
            try:
                made = await self._open(url, old, why)
            except RoamcastError:
                return False
            gap_s = 0.0 if old is not None else asyncio.get_running_loop().time() - began
            self._take_over(made, old, why, gap_s)
            if old is not None:
                await self._hang_up(old)
        return True

    async def close(self) -> None:
        """End all subscriptions."""
        self._closed = True
        for follower in self._followers.values():
            await follower.close()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._broker is not None:
            for stream in self._streams.values():  # hold nothing for who will not be back
                await self._broker.send({"type": "unsubscribe_events", "re": stream.name})
            await self._hang_up(self._broker)
            self._broker = None
        for stream in self._streams.values():
            stream.end()

    # --- brokers

    async def _ready(self) -> _Broker:
        """Give the broker that serves; the first time, find one."""
        if self._broker is None:
            async with self._lock:
                if self._broker is None:
                    self._broker = await self._any()
                    search = BrokerSearch(
                        self._near, self._urls,
                        current=lambda: self.broker, move=self.move, tell=self._tell,
                    )  # fmt: skip
                    self._spawn(search.run())
        return self._broker

    async def _any(self) -> _Broker:
        problem: RoamcastError = UnreachableError("no broker answers")
        for url in self._urls:
            try:
                return await self._open(url, None)
            except UnreachableError as error:
                problem = error
        raise problem

    async def _open(self, url: str, old: _Broker | None, why: str = "") -> _Broker:
        """Open a session, and let all subscriptions stand there."""
        scheme, rest = url.split("://", 1)
        query = urlencode({"device": self._device})
        target = f"{'wss' if scheme == 'https' else 'ws'}://{rest}/session?{query}"
        token = self._address.token if self._token_of is None else await self._token_of(url)
        headers = ServiceAddress(url, token).headers
        try:
            socket = await sockets.connect(
                target,
                additional_headers=headers,
                compression=None,
                proxy=None,
                max_size=FRAME_BYTES_MAX,
                open_timeout=self._open_s,
                close_timeout=1.0,
                ssl=(self._tls or True) if scheme == "https" else None,
            )
        except InvalidStatus as error:
            kind = {401: AuthError, 403: ForbiddenError}.get(error.response.status_code)
            raise (kind or UnreachableError)(f"{url} refuses: {error}") from None
        except (OSError, TimeoutError, WebSocketException) as error:
            raise UnreachableError(f"{url} does not answer: {error}") from None
        try:
            async with asyncio.timeout(self._open_s):
                welcome = _decode(await socket.recv())
                if not isinstance(welcome, say.SessionWelcome):
                    raise UnreachableError(f"{url} does not answer as a Roamcast service does")
                broker = _Broker(url, socket, welcome.node)
                if self._streams or old is not None:
                    self._counter += 1
                broker.reader = asyncio.get_running_loop().create_task(self._read(broker))
                if self._limit_bytes:
                    await broker.send({"type": "register", "limit_bytes": self._limit_bytes})
                    if old is not None:
                        self._spawn(self._let_go(old, broker))
                previous = "" if old is None else old.node
                for stream in self._streams.values():
                    await self._ask(broker, stream, previous, why)
                while not self._streams.keys() <= broker.standing:
                    if broker.refused is not None or broker.reader.done():
                        raise broker.refused or UnreachableError(f"{url} hung up")
                    await _first(broker.changed.wait(), asyncio.shield(broker.reader))
                    broker.changed.clear()
                return broker
        except (TimeoutError, WebSocketException):
            await socket.close()
            raise UnreachableError(f"{url} does not serve in time") from None
        except BaseException:
            await socket.close()
            raise

    async def _let_go(self, old: _Broker, made: _Broker) -> None:
        """Leave an old broker that does not stop: two of them together exceed the limit."""
        await asyncio.sleep(LET_GO_S)
        if not self._streams.keys() <= made.standing and not made.reader_over:
            await old.socket.close()

    def _take_over(self, made: _Broker, old: _Broker | None, why: str, gap_s: float) -> None:
        self._broker = made
        before = made.url if old is None else old.url
        self.moves.append(BrokerChange(before, made.url, why, round(gap_s, 6)))
        self.on_move(made.url, why)
        for publication in self._waiting.values():
            self._spawn(made.send(publication.request))
        if self._place:
            self._spawn(made.send({"type": "place", "re": "place", "place": self._place}))

    async def _hang_up(self, broker: _Broker) -> None:
        if broker.reader is not None:
            broker.reader.cancel()
            await asyncio.gather(broker.reader, return_exceptions=True)
        await broker.socket.close()

    async def _ask(
        self, broker: _Broker, stream: EventStream, previous: str = "", why: str = ""
    ) -> None:
        modulated = stream.modulated
        if previous == broker.node:
            previous = ""
        await broker.send(
            {
                "type": "subscribe_events",
                "re": stream.name,
                "filter": stream.where,
                "vector": dict(stream.cursor.vector),
                "place": self._place,
                "previous": previous,
                **({"why": why} if previous else {}),
                "attachment": [self._start_us, self._counter],
                "expires_s": stream.expires_s,
                **({} if modulated is None else modulated.goes_to(broker.node)),
            }
        )

    async def _lost(self, broker: _Broker) -> None:
        """The broker is gone: find one again, the same first, and go on from the vectors."""
        began = asyncio.get_running_loop().time()
        while not self._closed:
            async with self._lock:
                if self._broker is not broker:
                    return
                for url in dict.fromkeys((broker.url, *self._urls)):
                    try:
                        made = await self._open(url, broker if url != broker.url else None, "lost")
                    except UnreachableError:
                        continue
                    except RoamcastError as error:
                        for stream in self._streams.values():
                            stream.end(error)
                        return
                    gap_s = asyncio.get_running_loop().time() - began
                    self._take_over(made, broker, "lost", gap_s)
                    return
            outage_s = asyncio.get_running_loop().time() - began
            wait_s = min(max(outage_s / 4, 0.05), 10.0)
            await asyncio.sleep(wait_s * (0.5 + self._draw() / 2))

    # --- what brokers say

    async def _read(self, broker: _Broker) -> None:
        try:
            while True:
                await self._take(broker, await broker.socket.recv(decode=False))
        except WebSocketException:
            pass
        broker.changed.set()
        if not self._closed and self._broker is broker:
            self._spawn(self._lost(broker))

    async def _take(self, broker: _Broker, data: str | bytes) -> None:
        message = _decode(data)
        if isinstance(message, say.FramePart):
            broker.parts.append(message.text)
            if not message.last:
                return
            whole, broker.parts = "".join(broker.parts), []
            message = _decode(whole)
        match message:
            case say.EventsFrame(re) if re in self._streams:
                await self._events(broker, self._streams[re], message)
            case say.EventsStand(re, vector, served) if re in self._streams:
                stream = self._streams[re]
                if stream.modulated is not None:
                    stream.modulated.stands(broker.node, served)
                stood = tuple((name, Position(*at)) for name, at in vector.items())
                if stream.cursor.standing(EventsStanding(re, stood)):
                    await self._ask(broker, stream)  # it begins later than another one did
                broker.standing.add(re)
                broker.changed.set()
                stream.standing.set()
            case say.EventsGap(re) if re in self._streams:
                self._gap(self._streams[re], message)
            case say.ModulatorNews(re) if re in self._streams:
                self._news(broker, self._streams[re], message)
            case say.EventStored(re, origin, at):
                self._published(int(re[1:]), origin, Position(*at))
            case say.ConsumerElsewhere(_, _, url) if broker is self._broker:
                self._spawn(self._sent_elsewhere(broker, url.rstrip("/")))
            case say.SessionProblem():
                self._problem(broker, message)

    def _news(self, broker: _Broker, stream: EventStream, news: say.ModulatorNews) -> None:
        if news.stopped:
            del self._streams[stream.name]
            stream.end(ModulatorError(f"modulators stopped: {news.reason}"))
            broker.changed.set()
        else:
            stream.begun_anew.append(news.reason)

    async def _tell(self, message: dict[str, Any]) -> None:
        if self._broker is not None:
            await self._broker.send(message)

    async def _sent_elsewhere(self, broker: _Broker, url: str) -> None:
        """Go where a broker says; if that does not work, come back with what it may have given."""
        moved = url in self._urls and await self.move(url, "told")
        if not moved and self._broker is broker:
            for stream in [*self._streams.values()]:
                await self._ask(broker, stream)

    async def _events(self, broker: _Broker, stream: EventStream, frame: say.EventsFrame) -> None:
        after, upto = Position(*frame.after), Position(*frame.upto)
        events = [(one.position, _needs(one), one) for one in frame.events]
        fresh = stream.cursor.fresh(frame.origin, after, upto, events)
        if fresh is None:
            await self._ask(broker, stream)
        for one in fresh or ():
            context = from_feature(msgspec.to_builtins(one.feature))
            await stream.put(
                ReceivedEvent(context, one.data, one.producer, one.number, frame.origin)
            )
        if stream.modulated is not None and stream.modulated.confirms():
            had = dict(stream.cursor.vector)
            await broker.send({"type": "confirm_events", "re": stream.name, "vector": had})

    @staticmethod
    def _gap(stream: EventStream, frame: say.EventsGap) -> None:
        after, upto = Position(*frame.after), Position(*frame.upto)
        if stream.cursor.lost(EventsLost(frame.re, frame.origin, after, upto, frame.reason)):
            stream.resumed = False
            most = numbers_between(after, upto)
            stream.gaps.append(EventGap(frame.origin, most, frame.reason))

    def _published(self, number: int, origin: str, at: Position) -> None:
        self._producer.published(origin, at)
        known = self._waiting.get(number)
        if known is not None and not known.done.done():
            known.done.set_result(at)

    def _problem(self, broker: _Broker, problem: say.SessionProblem) -> None:
        error = InputError(f"{problem.title}: {problem.detail}")
        if problem.re == "place":
            url = problem.url if isinstance(problem.url, str) else ""
            if problem.status == MOVED and self._near == "place" and broker is self._broker:
                self._spawn(self.move(url.rstrip("/"), "place"))
        elif problem.re in self._streams:
            stream = self._streams[problem.re]
            served = broker is self._broker and stream.standing.is_set()
            if served and problem.status in ELSEWHERE:
                del self._streams[problem.re]
                stream.end(error)
            else:
                broker.refused = error
            broker.changed.set()
        elif problem.re[:1] == "p" and problem.re[1:].isdecimal():
            known = self._waiting.get(int(problem.re[1:]))
            if known is not None and not known.done.done() and problem.status != 503:
                known.done.set_exception(error)

    def _spawn(self, work: Awaitable[Any]) -> None:
        async def run() -> None:
            await work

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _needs(event: say.SessionEvent) -> Pairs:
    """Give what comes before an event at other nodes, of those that walk."""
    if event.needs is msgspec.UNSET:
        return ()
    return tuple((origin, Position(*at)) for origin, at in event.needs.items())


async def _first(*waits: Awaitable[Any]) -> None:
    """Wait for the first of several, and let the others go."""
    tasks = [asyncio.ensure_future(one) for one in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
