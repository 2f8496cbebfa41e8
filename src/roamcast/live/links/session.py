"""What does a WebSocket session of a program do? JSON in, answers and changes out.

The endpoint translates: it holds no view and no queue of its own. What a session is told, and when
a slow one is coalesced or cut off, the hub decides.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from time import thread_time
from typing import Any

import msgspec

from roamcast.broker import LimitSession, SubscribeSessionMany
from roamcast.channels.sessions import messages as say
from roamcast.errors import InputError, LimitError, RoamcastError
from roamcast.identity.rules import Viewer
from roamcast.live.auth.admission import Bucket, Grant
from roamcast.live.casts.office import Preview
from roamcast.live.casts.wishes import CastWish, wish_of
from roamcast.live.http.problems import MISTAKE, SEE_LOG, position_in, url_in
from roamcast.live.links.sockets import TRY_AGAIN, WebSocket, text_frame
from roamcast.live.observe.logs import Log
from roamcast.live.service.answering import answered
from roamcast.live.service.reading import AT_ONCE_MAX
from roamcast.live.service.service import Service
from roamcast.matching.live.slices import Question
from roamcast.model import time
from roamcast.model.contexts import check_place, to_context
from roamcast.model.filters import Filter, recent
from roamcast.model.filters.here import depends_on_place
from roamcast.overlay.casts.messages import CastView
from roamcast.overlay.consumers.events import SubscribeSessionEvents
from roamcast.overlay.flows.vector import Position, pairs
from roamcast.overlay.handoff.messages import Attachment
from roamcast.overlay.homes.relocation import Relocation
from roamcast.overlay.modulators.specs import read_specs

IN_FLIGHT_MAX = 256
"""Publications of one session that may wait for the disk; then its socket is not read."""

TURN_S = 0.002
"""After so much work others have their turn: `PASSES` turns of the loop, or time if it was more."""

PASSES = 8
"""A request takes about as many turns of the loop; where nobody wants them they take no time."""

LONG_S = 0.005
"""After a message that took longer others have twice its time: they may wait for the disk, too."""

MANY_AT_ONCE = 32
"""Subscriptions of one message that are placed together: a few milliseconds."""

STEPS_TOGETHER_MAX = 128
"""Steps of a current set up to which a subscription is placed together with others."""

LOOK_AGAIN_S = 0.01
"""So often it is looked whether a session that was too fast may go on, if nothing else says so."""

_LOG = Log("session")


class Many(msgspec.Struct, frozen=True):
    """Subscriptions of one message that wait for their turn."""

    filters: list[tuple[str, str]]
    scope: say.Scope


class SessionSocket:
    """One WebSocket session."""

    def __init__(self, service: Service, socket: WebSocket, grant: Grant, name: str) -> None:
        self.name = name
        self.write: Callable[[bytes], None] = socket.write
        self._service = service
        self._socket = socket
        self._grant = grant
        self._viewer = Viewer(grant.subject, frozenset(grant.groups))
        limits = service.settings.limits
        self._bucket = Bucket(limits.frames_per_s, limits.frames_burst, service.clock())
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: deque[bytes | str | Many] = deque()
        self._again: asyncio.Handle | None = None
        self._over = False
        self._parts: list[str] = []
        self._parts_bytes = 0
        self._reading = False
        """Whether a long filter is being read: what came after it waits."""
        self._spent_s = 0.0
        """What was done since others had their turn took so long."""
        self._resting = False
        """Whether others have their turn."""

    async def run(self) -> None:
        """Talk until the connection is over."""
        service, limits = self._service, self._service.settings.limits
        service.open_session(self.name, self._viewer, self)
        now = time.format_instant(service.clock())
        hosts = tuple(service.settings.cluster.replicas.values())
        node = service.broker.node
        self._say(say.SessionWelcome(self.name, now, limits.ping_s, hosts, node))
        try:
            with service.standing.held(self._grant, self.cut):
                await self._socket.serve(
                    self, high_bytes=limits.socket_high_bytes, low_bytes=limits.socket_low_bytes
                )
        finally:
            self._over = True
            if self._again is not None:
                self._again.cancel()
            service.close_session(self.name, self)
            for task in self._tasks:
                task.cancel()

    def cut(self, reason: str) -> None:
        """End the session, and say why."""
        self._say(say.SessionProblem("", 503, "the session was ended", reason))
        self._over = True
        self._socket.close(TRY_AGAIN, reason)

    def paused(self) -> None:
        """The connection takes no more for now."""
        self._service.slow(self.name)

    def resumed(self) -> None:
        """The connection takes more again."""
        self._service.drained(self.name)
        self._go_on()

    def _say(self, message: msgspec.Struct) -> None:
        self._socket.write(text_frame(say.encode(message)))

    def received(self, data: bytes | str) -> None:
        """Take one message, now or when those before it are done."""
        self._service.metrics.frames_received.inc()
        if not self._over and self._counted_in():
            self._waiting.append(data)
            self._go_on()

    def _counted_in(self, messages: int = 1) -> bool:
        """Hold a program to its rate: read it more slowly, and end what goes on regardless."""
        limits = self._service.settings.limits
        wait_us = self._bucket.owe(self._service.clock(), messages)
        if self._bucket.owed > limits.frames_burst:
            self._service.metrics.cut_off.labels("too many messages").inc()
            self.cut(f"too many messages: at most {limits.frames_per_s:g} a second")
            return False
        if wait_us:
            self._socket.hold(wait_us / time.MICROSECONDS)
        return True

    def _go_on(self) -> None:
        """Take what waits while there is room for the answers, and only then read more.

        What waits here came in one piece with what filled the room: that bounds it.
        """
        while self._waiting and not (self._over or self._reading or self._resting):
            if self._full():
                self._rest(LOOK_AGAIN_S)
                return
            began = thread_time()
            first = self._waiting.popleft()
            if isinstance(first, Many):
                self._take_many(first)
            else:
                self._take(first)
            self._let_others(thread_time() - began)
        if not self._resting:
            self._socket.halt(False)

    def _let_others(self, spent: float) -> None:
        """Rest if what was done took long: of a long message, two thirds of the time is theirs."""
        self._spent_s += spent
        if self._spent_s < TURN_S:
            return
        self._spent_s = 0.0
        self._resting = True
        if spent > LONG_S:
            self._rest(2 * spent)
        else:
            self._socket.halt(True)
            self._stand_back(PASSES)

    def _stand_back(self, passes: int) -> None:
        """Go on after so many turns of the loop."""
        if passes:
            self._again = asyncio.get_running_loop().call_soon(self._stand_back, passes - 1)
        else:
            self._look_again()

    def _rest(self, seconds: float) -> None:
        """Take and read nothing for a while."""
        self._socket.halt(True)
        if self._again is None:
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(seconds, self._look_again)

    def _full(self) -> bool:
        """Whether too much waits for the disk, or for the program to read it."""
        high = self._service.settings.limits.socket_high_bytes
        return len(self._tasks) >= IN_FLIGHT_MAX or self._socket.waiting_bytes > high

    def _look_again(self) -> None:
        self._again = None
        self._resting = False
        self._go_on()

    def _take(self, data: bytes | str) -> None:
        """Do what a message says; a wrong one is answered and changes nothing."""
        try:
            message = say.read(data)
        except msgspec.DecodeError as error:
            self._problem(_re_of(data), 400, "the message can not be read", str(error))
        else:
            self._attempt(message)

    def _attempt(self, message: say.Anything) -> None:
        try:
            self._do(message)
        except RoamcastError as error:
            self._refuse(message.re, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody shall wait for ever
            self._mistake(message.re, error)

    def _do(self, message: say.Anything) -> None:
        service = self._service
        match message:
            case say.HeartbeatRequest(re):
                self._say(say.HeartbeatAnswer(re, time.format_instant(service.clock())))
            case say.RegisterRequest(re, limit_bytes):
                service.ask_now(lambda ticket: LimitSession(ticket, self.name, limit_bytes))
                self._say(say.Done(re))
            case say.SubscribeRequest(re, text, scope):
                self._grant.require("subscribe")
                prepared = service.broker.prepared(self._viewer, service.clock())
                self._with_filter(
                    re, text, lambda wanted: self._subscribe(re, wanted, scope), prepared
                )
            case say.SubscribeManyRequest(filters, scope):
                self._grant.require("subscribe")
                if self._counted_in(len(filters) - 1):
                    self._waiting.appendleft(Many([*filters.items()], scope))
            case say.CountRequest(re, text):
                self._grant.require("read")
                self._with_filter(re, text, lambda wanted: self._count(re, wanted))
            case say.UnsubscribeRequest(re):
                service.unsubscribe(self.name, re)
                self._say(say.Done(re))
            case say.NumbersRequest(re):
                self._grant.require("admin")
                self._say(service.numbers(re))
            case say.PublishRequest(feature, re) | say.ChangeRequest(feature, re):
                self._grant.require("publish")
                ahead_us = int(service.settings.limits.clock_skew_s_max * time.MICROSECONDS)
                context = to_context(feature, service.clock(), ahead_us_max=ahead_us)
                self._grant.check_within(context)
                owner = self._grant.subject
                vid = context.vid
                self._later(
                    service.publish(owner, context, session=self.name),
                    re,
                    lambda _: say.Done(re, vid),
                )
            case say.UnpublishRequest(vid, re):
                self._grant.require("publish")
                service.check_own(self._grant, vid)
                doing = service.unpublish(self._grant.subject, vid)
                self._later(doing, re, lambda _: say.Done(re, vid))
            case _:
                self._do_event(message)

    def _do_event(self, message: say.Anything) -> None:
        """Do what a message about events says."""
        service = self._service
        match message:
            case say.PublishEventRequest():
                self._publish_event(message)
            case say.PartRequest(text, last):
                self._take_part(text, last)
            case say.SubscribeEventsRequest(re=re, filter=text):
                self._grant.require("subscribe")
                if depends_on_place(text):
                    self._subscribe_events(message, self._read_here(text))
                else:
                    self._with_filter(re, text, partial(self._subscribe_events, message))
            case say.ConfirmEventsRequest(re, vector):
                had = pairs({name: Position(*at) for name, at in vector.items()})
                service.events.confirm(self.name, re, had)
            case say.UnsubscribeEventsRequest(re):
                service.events.unsubscribe(self.name, re)
                self._say(say.Done(re))
            case say.BrokersRequest(here, found):
                service.events.report_brokers(self.name, here, found)
            case say.PlaceRequest(place, re, point):
                service.broker.check_place(check_place(place))
                service.events.report(self.name, place, point)
                self._say(say.Done(re))
            case _:
                self._do_cast(message)

    def _do_cast(self, message: say.Anything) -> None:
        """Do what a message about casts says, as their routes do."""
        office, grant = self._service.casts, self._grant
        grant.require("cast")
        match message:
            case say.CastOrder(re=re):
                wish = wish_of(message, self._service.clock())
                self._later(office.send(grant, wish), re, partial(_as_cast, re))
            case say.PreviewOrder(text, re):
                wish = CastWish(filter=text, payload=b"?")
                self._later(office.preview(grant, wish), re, partial(_as_preview, re))
            case say.ProgressOrder(cast, re):
                self._say(_as_cast(re, office.view(grant, cast)))
            case say.CancelOrder(cast, re):
                self._later(office.cancel(grant, cast), re, lambda _: say.Done(re))

    def _take_part(self, text: str, last: bool) -> None:
        """Put the text of a long message together; only events are longer than a frame."""
        self._parts.append(text)
        self._parts_bytes += len(text)
        if self._parts_bytes > say.PARTS_BYTES_MAX:
            self._parts, self._parts_bytes = [], 0
            raise LimitError(f"a message in parts has at most {say.PARTS_BYTES_MAX} characters")
        if last:
            whole, self._parts, self._parts_bytes = "".join(self._parts), [], 0
            message = say.read(whole)
            if not isinstance(message, say.PublishEventRequest):
                raise InputError("only `publish_event` comes in parts")
            self._publish_event(message)

    def _publish_event(self, message: say.PublishEventRequest) -> None:
        self._grant.require("publish")
        self._later(
            self._service.events.publish(self._grant, message),
            message.re,
            lambda done: say.EventStored(message.re, done.origin, done.at),
        )

    def _read_here(self, text: str) -> str:
        """Charge for a filter that says here(), and hold it to what the token may read."""
        if len(text) > AT_ONCE_MAX:
            raise LimitError(f"a filter with here() has at most {AT_ONCE_MAX} characters")
        self._service.reader.charge(self._grant.subject, text)
        return f"({text}) AND ({self._grant.filter})" if self._grant.filter else text

    def _subscribe_events(self, message: say.SubscribeEventsRequest, wanted: Filter | str) -> None:
        vector = {name: Position(*at) for name, at in message.vector.items()}
        attachment = None if message.attachment is None else Attachment(*message.attachment)
        specs = read_specs(msgspec.json.encode(message.modulators)) if message.modulators else ()
        self._service.events.subscribe(
            lambda ticket: SubscribeSessionEvents(
                ticket,
                self.name,
                message.re,
                wanted,
                pairs(vector),
                check_place(message.place) if message.place else "",
                message.previous,
                attachment,
                int(message.expires_s * time.MICROSECONDS),
                specs,
                Relocation(message.keeps_events, message.keeps_state),
                Attachment(*message.served) if message.served is not None else Attachment(0, 0),
                tuple(filter(None, message.trail)),
                message.why,
            )
        )

    def _take_many(self, many: Many) -> None:
        """Place the next of many subscriptions, together where that is soon done."""
        some, rest = many.filters[:MANY_AT_ONCE], many.filters[MANY_AT_ONCE:]
        if self._paid(some):
            others = self._place(some, many.scope)
            self._waiting.extendleft(Many([one], many.scope) for one in others)
        else:
            for at, (name, text) in enumerate(some, 1):
                self._attempt(say.SubscribeRequest(name, text, many.scope))
                if self._reading:
                    rest = some[at:] + rest
                    break
        if rest:
            self._waiting.appendleft(Many(rest, many.scope))

    def _paid(self, some: list[tuple[str, str]]) -> bool:
        """Charge for reading some filters together; whether that was possible."""
        service, texts = self._service, [text for _, text in some]
        short = len(some) > 1 and max(map(len, texts)) <= AT_ONCE_MAX
        if not short or service.broker.prepared(self._viewer, service.clock()) is not None:
            return False
        try:
            service.reader.charge(self._grant.subject, *texts)
        except LimitError:  # not for all of them: each is charged by itself
            return False
        return True

    def _place(self, some: list[tuple[str, str]], scope: say.Scope) -> list[tuple[str, str]]:
        """Place subscriptions with small current sets together; give the others."""
        service, viewer, now = self._service, self._viewer, self._service.clock()
        read: list[tuple[str, str, Filter]] = []
        for name, text in some:
            try:
                read.append((name, text, self._grant.bound(recent.read(text))))
            except RoamcastError as error:
                self._refuse(name, error)
        placed: list[tuple[str, Filter]] = []
        others: list[tuple[str, str]] = []
        total, each = 0, service.broker.steps(viewer, [wanted for _, _, wanted in read], now)
        for (name, text, wanted), steps in zip(read, each, strict=True):
            if steps > STEPS_TOGETHER_MAX:
                others.append((name, text))
            else:
                placed.append((name, wanted))
                total += steps
        try:
            service.reader.work.take(viewer.name, now, total)
        except LimitError:  # not for all of them: each is charged by itself
            return [(name, text) for name, text, _ in read]
        everywhere = scope == "everywhere"
        done: Any = service.ask_now(
            lambda ticket: SubscribeSessionMany(ticket, self.name, tuple(placed), everywhere)
        )
        if done.frames:
            self._socket.write(b"".join([text_frame(frame) for frame in done.frames]))
        for name, why in done.refused:
            self._refuse(name, why)
        return others

    def _subscribe(self, re: str, wanted: Filter, scope: str) -> None:
        """Charge for the current set, with which a subscription begins, and place it."""
        self._service.charge(self._viewer, wanted)
        self._service.subscribe(self.name, re, wanted, everywhere=scope == "everywhere")

    def _count(self, re: str, wanted: Filter) -> None:
        service = self._service
        service.charge(self._viewer, wanted)
        asked = service.broker.count(self._viewer, wanted, service.clock())
        self._later(answered(asked), re, lambda count: say.SessionCount(re, count))

    def _with_filter(
        self,
        re: str,
        text: str,
        then: Callable[[Filter], None],
        prepared: Question[None] | None = None,
    ) -> None:
        """Read a filter at its price and go on with it, at once unless something takes long."""
        reader = self._service.reader
        reader.charge(self._grant.subject, text)
        wanted = reader.known(text)
        if wanted is not None and prepared is None:
            then(self._grant.bound(wanted))
            return
        self._reading = True
        task = asyncio.get_running_loop().create_task(self._read(re, text, then, prepared))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(
        self, re: str, text: str, then: Callable[[Filter], None], prepared: Question[None] | None
    ) -> None:
        try:
            wanted = await self._service.reader.read(text)
            if prepared is not None:
                await answered(prepared)
            began = thread_time()
            then(self._grant.bound(wanted))
            self._let_others(thread_time() - began)
        except RoamcastError as error:
            self._refuse(re, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody shall wait for ever
            self._mistake(re, error)
        finally:
            self._reading = False
        self._go_on()

    def _later(self, doing: Any, re: str, make_answer: Callable[[Any], say.Answer]) -> None:
        """Answer when the disk has it, or the question has gone through the map."""
        task = asyncio.get_running_loop().create_task(self._answer(doing, re, make_answer))
        self._tasks.add(task)
        task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._waiting:
            self._go_on()

    async def _answer(self, doing: Any, re: str, make_answer: Callable[[Any], say.Answer]) -> None:
        try:
            found = await doing
        except RoamcastError as error:
            self._refuse(re, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody shall wait for ever
            self._mistake(re, error)
        else:
            self._say(make_answer(found))

    def _mistake(self, re: str, error: Exception) -> None:
        """Answer for a mistake of our own; the log has the rest."""
        _LOG.error(MISTAKE, error)
        self._problem(re, 500, MISTAKE, SEE_LOG)

    def _refuse(self, re: str, error: RoamcastError) -> None:
        """Answer for what the program did wrong."""
        self._problem(re, error.status, error.title, str(error), position_in(error), url_in(error))

    def _problem(
        self,
        re: str,
        status: int,
        title: str,
        detail: str,
        position: int | msgspec.UnsetType = msgspec.UNSET,
        url: str | msgspec.UnsetType = msgspec.UNSET,
    ) -> None:
        self._service.metrics.refused.labels(title).inc()
        self._say(say.SessionProblem(re, status, title, detail[:1_000], position, url))


def _re_of(data: bytes | str) -> str:
    """Find which message an answer is about, even if the rest of it is wrong."""
    try:
        loose = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    re = loose.get("re", "") if isinstance(loose, dict) else ""
    return re[:128] if isinstance(re, str) else ""


def _as_cast(re: str, view: CastView) -> say.SessionCast:
    fields = msgspec.structs.asdict(view)
    expires = time.format_instant(fields.pop("expires_us"))
    del fields["given_up"]
    return say.SessionCast(re=re, id=fields.pop("cast"), expires=expires, **fields)


def _as_preview(re: str, preview: Preview) -> say.SessionPreview:
    return say.SessionPreview(re=re, **msgspec.structs.asdict(preview))
