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

KEYS: Final = VidKeys(bytes(32), bytes(32))

Request = EnrolPerson | SetReach | DrawPool | Deposit | OpenInbox | AckMail
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


TRUST_PROTOCOL: Final = Registry((TrustCall, TrustAnswer, TrustMail))


class Answered(Effect, frozen=True):
    """For the workload: what a trusted node answered to whom."""

    caller: str
    request: Input
    answer: Effect


class Drew(Effect, frozen=True):
    """For the workload: a person has these vids now, and older ones still."""

    node: str
    vids: tuple[str, ...]


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
        self.deadline = self.node.deadline
        self._asked: dict[int, tuple[str, int, Input]] = {}
        self._ticket = 0

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a call, an operator's request, or the disk's answer."""
        if isinstance(given, Received):
            given = self._called(given)
        return self._out(self.node.receive(given, now))

    def advance(self, now: int) -> Sequence[Effect]:
        """Do what time demands."""
        return self._out(self.node.advance(now))

    def _called(self, received: Received) -> Input:
        call = received.message
        assert isinstance(call, TrustCall)
        self._ticket += 1
        request = _REQUESTS.decode(call.body)
        given: Input = msgspec.structs.replace(request, ticket=self._ticket)
        self._asked[self._ticket] = received.sender, call.number, given
        return given

    def _out(self, effects: Sequence[Effect]) -> list[Effect]:
        out: list[Effect] = []
        for effect in effects:
            match effect:
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
    """A person's device: it draws vids, keeps an inbox, and opens its mailboxes ever again."""

    def __init__(self, boot: Boot, nodes: Sequence[str], reach: Reach, pool: int) -> None:
        self._calls = TrustCaller(boot)
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
        if isinstance(given, Received):
            assert isinstance(given.message, TrustMail)
            given = MailArrived(given.sender, given.message.mail)
        return self._out(self._machine.receive(given, now))

    def advance(self, now: int) -> Sequence[Effect]:
        """Repeat what was not answered, and open the mailboxes again."""
        effects = self._machine.advance(now)
        if self._calls.due(now):
            for node in self._registered:
                self._calls.once(node, OpenInbox(0, self._calls.host, self._calls.host))
        return self._out(effects)

    def deadline(self) -> int | None:
        """When to repeat."""
        own = self._machine.deadline()
        return self._calls.deadline() if own is None else min(own, self._calls.deadline())

    def _enrol(self, node: str, reach: Reach) -> None:
        subject = self._calls.host

        def enrolled(_: TrustAnswer) -> None:
            self._calls.call(node, SetReach(0, subject, reach), ready)

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
