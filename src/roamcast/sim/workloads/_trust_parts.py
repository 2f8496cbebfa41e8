"""Trusted nodes, people and brokers on simulated hosts, and the messages between them.

Live, these calls are HTTP requests. Here a request and its answer are messages that may be lost,
doubled or late, so everything that is asked for must bear being repeated.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from roamcast.identity.credentials import VidKeys, vid_of
from roamcast.identity.trusted.inbox import ConfirmMail, MailArrived, PersonInbox
from roamcast.identity.trusted.issuing import DrawPool, VidPool
from roamcast.identity.trusted.mailboxes import (
    AckMail,
    CloseInbox,
    Deposit,
    Deposited,
    InboxReplaced,
    Mail,
    MailPushed,
    OpenInbox,
    SealedParcel,
)
from roamcast.identity.trusted.node import TrustedNode
from roamcast.identity.trusted.reach import Reach
from roamcast.identity.trusted.register import EnrolPerson, ErasureDone, SetReach
from roamcast.identity.trusted.settings import TrustSettings
from roamcast.identity.trusted.waking import PushAnswered, PushWakeUp, SetWakeUp
from roamcast.model.addresses import Client, Server
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.machine import Effect, Input, Received, Send
from roamcast.model.parts import Router
from roamcast.model.wire import Message, Registry
from roamcast.sim.host import Boot

OPERATOR: Final = 1 << 40
"""Tickets from here on are the operator's, who stands beside the node."""

REPEAT_US: Final = 150_000
LIFE_US: Final = 500_000_000
"""Lifetime of a cast: longer than any run, whatever clocks show."""

AWAKE_US: Final = 1_000_000
"""How long a device that sleeps stays connected after a push, or after it was started."""

PUSH_US: Final = 400_000
"""How long a trusted node waits for a push service's answer."""

PUSH_SERVICE: Final = "https://push.example/"
CREATED: Final = 201

KEYS: Final = VidKeys(bytes(32), bytes(32))

Request = EnrolPerson | SetReach | SetWakeUp | DrawPool | Deposit | OpenInbox | CloseInbox | AckMail
_REQUESTS: Final = msgspec.msgpack.Decoder(Request)


class TrustCall(Message, frozen=True, tag="sim.trust.call", gc=False):
    """A request to a trusted node."""

    number: int
    body: bytes


class TrustAnswer(Message, frozen=True, tag="sim.trust.answer", gc=False):
    """The answer to a request; `done` is false where it was refused."""

    number: int
    done: bool
    credentials: tuple[str, ...] = ()
    full: int = 0


class TrustMail(Message, frozen=True, tag="sim.trust.mail", gc=False):
    """Mail that a trusted node pushes."""

    mail: Mail


class TrustPush(Message, frozen=True, tag="sim.trust.push", gc=False):
    """A push on its way to a device."""

    device: str


class TrustPushed(Message, frozen=True, tag="sim.trust.pushed", gc=False):
    """The push service's answer: it has been delivered."""

    device: str


TRUST_PROTOCOL: Final = Registry((TrustCall, TrustAnswer, TrustMail, TrustPush, TrustPushed))


class Answered(Effect, frozen=True):
    """For the workload: what a trusted node answered to whom."""

    caller: str
    request: Input
    answer: Effect


class Drew(Effect, frozen=True):
    """For the workload: a person has these vids now, and older ones still."""

    node: str
    vids: tuple[str, ...]


class Woke(Effect, frozen=True):
    """For the workload: a trusted node pushes, by its own clock."""

    push: PushWakeUp
    at: int


class PushLost(Effect, frozen=True):
    """For the workload: a push was not answered."""

    device: str


class Pages(msgspec.Struct):
    """One page of a cast at one trusted node, from the broker's custody."""

    node: str
    deposit: Deposit
    done: bool = False
    full: bool = False
    """Somebody's mailbox was full: it is tried again."""


class TrustHost:
    """A trusted node whose callers are other hosts; who calls is known by the transport."""

    def __init__(self, boot: Boot, settings: TrustSettings) -> None:
        self.node = TrustedNode(
            boot.host,
            now=boot.now,
            load=lambda prefix: {
                key: value for key, value in boot.stored.items() if key.startswith(prefix)
            },
            private=boot.host.encode().ljust(32, b"."),
            random_bytes=boot.generator.randbytes,
            settings=settings,
        )
        self._asked: dict[int, tuple[str, int, Input]] = {}
        self._ticket = 0
        self._pushes: dict[str, int] = {}
        """Devices whose push is on its way → until when its answer is awaited."""

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a call, an operator's request, or an answer of the disk or a push service."""
        if isinstance(given, Received) and isinstance(given.message, TrustPushed):
            if self._pushes.pop(given.message.device, None) is None:
                return ()  # it took too long
            given = PushAnswered(given.message.device, CREATED)
        elif isinstance(given, Received):
            given = self._called(given)
        return self._out(self.node.receive(given, now), now)

    def advance(self, now: int) -> Sequence[Effect]:
        """Do what time demands."""
        effects = [*self.node.advance(now)]
        for device in [one for one, until in self._pushes.items() if until <= now]:
            del self._pushes[device]
            effects.append(PushLost(device))
            effects += self.node.receive(PushAnswered(device, 0), now)
        return self._out(effects, now)

    def deadline(self) -> int | None:
        """When the node has something to do, or a push service took too long."""
        own = self.node.deadline()
        return min([*self._pushes.values(), *([] if own is None else [own])], default=None)

    def _called(self, received: Received) -> Input:
        call = received.message
        assert isinstance(call, TrustCall)
        self._ticket += 1
        request = _REQUESTS.decode(call.body)
        if isinstance(request, CloseInbox):
            return request
        given: Input = msgspec.structs.replace(request, ticket=self._ticket)
        self._asked[self._ticket] = received.sender, call.number, given
        return given

    def _out(self, effects: Sequence[Effect], now: int) -> list[Effect]:
        out: list[Effect] = []
        for effect in effects:
            match effect:
                case PushWakeUp(device, endpoint):
                    self._pushes[device] = now + PUSH_US
                    to = Client(endpoint.removeprefix(PUSH_SERVICE))
                    out += [Woke(effect, now), Send(to, TrustPush(device))]
                case MailPushed(inbox, mail):
                    out += [effect, Send(Client(inbox), TrustMail(mail))]
                case Acknowledged() | Failed() | Deposited() | VidPool() | ErasureDone():
                    out += self._answer(effect)
                case InboxReplaced():
                    pass  # the same person opens it again
                case _:
                    out.append(effect)
        return out

    def _answer(self, effect: Any) -> list[Effect]:
        if effect.ticket >= OPERATOR:
            return [effect]
        caller, number, request = self._asked.pop(effect.ticket)
        pool = effect.credentials if isinstance(effect, VidPool) else ()
        full = effect.full if isinstance(effect, Deposited) else 0
        answer = TrustAnswer(number, not isinstance(effect, Failed), pool, full)
        return [Answered(caller, request, effect), Send(Client(caller), answer)]


class TrustCaller:
    """Repeats requests until they are answered."""

    def __init__(self, boot: Boot) -> None:
        self.host = boot.host
        # Numbers of an earlier life may still be answered.
        self._number = boot.number << 32
        self._open: dict[int, tuple[str, Request, Callable[[TrustAnswer], None]]] = {}
        self._at = boot.now
        self._boxed: list[Effect] = []

    def call(self, node: str, given: Request, then: Callable[[TrustAnswer], None]) -> None:
        """Ask now, and again until `then` is told."""
        self._number += 1
        self._open[self._number] = node, given, then
        self._send(self._number)

    def once(self, node: str, given: Request) -> None:
        """Ask, and do not wait for an answer."""
        self._number += 1
        call = TrustCall(self._number, msgspec.msgpack.encode(given))
        self._boxed.append(Send(Server(node), call))

    def answered(self, answer: TrustAnswer) -> None:
        """Take an answer; what was refused is repeated later."""
        if answer.done and answer.number in self._open:
            self._open.pop(answer.number)[2](answer)

    def due(self, now: int) -> bool:
        """Repeat what is open, once an interval."""
        if now < self._at:
            return False
        self._at = now + REPEAT_US
        for number in list(self._open):
            self._send(number)
        return True

    def deadline(self) -> int:
        """When to repeat."""
        return self._at

    def taken(self) -> list[Effect]:
        """Give what is to be sent."""
        out, self._boxed = self._boxed, []
        return out

    def _send(self, number: int) -> None:
        node, given, _ = self._open[number]
        self._boxed.append(Send(Server(node), TrustCall(number, msgspec.msgpack.encode(given))))


class PersonHost:
    """A person's device: it draws vids, keeps an inbox, and opens its mailboxes ever again.

    One that `sleeps` does so for a moment only: when it starts, and when it is woken by a push.
    """

    def __init__(
        self, boot: Boot, nodes: Sequence[str], reach: Reach, pool: int, *, sleeps: bool = False
    ) -> None:
        self._calls = TrustCaller(boot)
        self._sleeps = sleeps
        self._awake_until = boot.now + AWAKE_US
        self._nodes = nodes
        self._pool = pool
        self._drew: list[Effect] = []
        self._registered: list[str] = []
        self.inbox = PersonInbox()
        self._machine = Router((self.inbox,))
        self._machine.restore(
            lambda prefix: {
                key: value for key, value in boot.stored.items() if key.startswith(prefix)
            },
            boot.now,
        )
        for node in nodes:
            self._enrol(node, reach)

    def draw(self) -> None:
        """Draw another pool from everybody whom we are registered with."""
        for node in self._registered:
            given = DrawPool(0, self._calls.host, (KEYS,) * self._pool)
            self._calls.call(node, given, lambda answer, node=node: self._take(node, answer))  # type: ignore[misc]

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take mail, an answer, a wish of the person, or the disk's answer."""
        if isinstance(given, Received) and isinstance(given.message, TrustAnswer):
            self._calls.answered(given.message)
            return self._out([])
        if isinstance(given, Received) and isinstance(given.message, TrustPush):
            self._awake_until = now + AWAKE_US
            pushed = Send(Server(given.sender), TrustPushed(given.message.device))
            return [pushed, *self._out([])]
        if isinstance(given, Received):
            assert isinstance(given.message, TrustMail)
            given = MailArrived(given.sender, given.message.mail)
        return self._out(self._machine.receive(given, now))

    def advance(self, now: int) -> Sequence[Effect]:
        """Repeat what was not answered, and open the mailboxes again."""
        effects = self._machine.advance(now)
        if self._calls.due(now):
            asleep = self._sleeps and now >= self._awake_until
            own = self._calls.host
            for node in self._registered:
                self._calls.once(node, CloseInbox(own) if asleep else OpenInbox(0, own, own))
        return self._out(effects)

    def deadline(self) -> int | None:
        """When to repeat."""
        own = self._machine.deadline()
        return self._calls.deadline() if own is None else min(own, self._calls.deadline())

    def _enrol(self, node: str, reach: Reach) -> None:
        subject = self._calls.host

        def enrolled(_: TrustAnswer) -> None:
            self._calls.call(node, SetReach(0, subject, reach), known if self._sleeps else ready)

        def known(_: TrustAnswer) -> None:
            self._calls.call(node, SetWakeUp(0, subject, PUSH_SERVICE + subject), ready)

        def ready(_: TrustAnswer) -> None:
            self._registered.append(node)
            self.draw()

        self._calls.call(node, EnrolPerson(0, subject), enrolled)

    def _take(self, node: str, answer: TrustAnswer) -> None:
        self._drew.append(Drew(node, tuple(map(vid_of, answer.credentials))))

    def _out(self, effects: Sequence[Effect]) -> list[Effect]:
        out: list[Effect] = []
        for effect in effects:
            if isinstance(effect, ConfirmMail):
                self._calls.once(effect.node, AckMail(0, self._calls.host, effect.cast))
            else:
                out.append(effect)
        drew, self._drew = self._drew, []
        return [*out, *drew, *self._calls.taken()]


class BrokerHost:
    """A broker that has casts in custody; its store of them is the workload's."""

    def __init__(self, boot: Boot, custody: Sequence[Pages]) -> None:
        self._calls = TrustCaller(boot)
        for page in custody:
            if not page.done:
                self.forward(page)

    def forward(self, page: Pages) -> None:
        """Deposit a page until nobody's mailbox is full."""

        def then(answer: TrustAnswer) -> None:
            page.full = answer.full > 0
            page.done = not page.full
            if page.full:
                self.forward(page)

        self._calls.call(page.node, page.deposit, then)

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take an answer."""
        del now
        assert isinstance(given, Received)
        assert isinstance(given.message, TrustAnswer)
        self._calls.answered(given.message)
        return self._calls.taken()

    def advance(self, now: int) -> Sequence[Effect]:
        """Repeat what was not answered."""
        self._calls.due(now)
        return self._calls.taken()

    def deadline(self) -> int | None:
        """When to repeat."""
        return self._calls.deadline()


def made_deposit(cast: str, sender: str, now: int, vids: Sequence[str]) -> Deposit:
    """Make the deposit of a cast; the payload says which vid it was sealed to."""
    parcels = tuple(SealedParcel(vid, f"{cast}:{vid}".encode()) for vid in vids)
    return Deposit(0, cast, sender, "text", now + LIFE_US, 0, parcels)
