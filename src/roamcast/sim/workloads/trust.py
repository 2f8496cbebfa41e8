"""Two trusted nodes, people with many vids, brokers with casts, and everything that breaks.

Casts name vids of several people, of several epochs and of both nodes. At all times: nobody gets a
cast twice, from any node or by any vid; no mailbox exceeds its bounds; a destroyed epoch resolves
to nothing; rules that stop a sender stop it. Some devices sleep until a push wakes them: a push
says nothing, comes only where mail waits, and once until the device has come or a while is over. In
the end everybody has every cast that a trusted node took for them, also who slept, and of erased
people nothing is left on disk.
"""

import base64
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

import msgspec

from roamcast.identity.trusted.epochs import DestroyEpoch, RotateKeys, ShareEpoch
from roamcast.identity.trusted.inbox import MailTaken, RemoveMail
from roamcast.identity.trusted.mailboxes import (
    AckMail,
    Deposit,
    Deposited,
    Mail,
    MailPushed,
    OpenInbox,
)
from roamcast.identity.trusted.reach import Reach
from roamcast.identity.trusted.register import GONE_PREFIX, ErasePerson, ErasureDone
from roamcast.identity.trusted.settings import TrustSettings
from roamcast.identity.trusted.waking import PushWakeUp
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.machine import Effect
from roamcast.sim.checkers import AtMostOncePerUser, Violation, check_bounds
from roamcast.sim.host import Factory, Host, HostState
from roamcast.sim.workload import Sizes, Workload
from roamcast.sim.workloads._trust_parts import (
    OPERATOR,
    PUSH_SERVICE,
    TRUST_PROTOCOL,
    Answered,
    BrokerHost,
    Drew,
    Pages,
    PersonHost,
    PushLost,
    TrustHost,
    Woke,
    made_deposit,
)
from roamcast.sim.world import World

NODES: Final = ("trust-0", "trust-1")
LOOK_US: Final = 100_000
WAKE_AGAIN_US: Final = 2_000_000
PUSH_RETRY_US: Final = 500_000
SLEEPERS: Final = 0.4
"""Share of the devices that sleep."""

VIDS_MAX: Final = 12
"""Vids that one cast names."""


class Vid(msgspec.Struct, frozen=True):
    """A vid that was drawn, and whose it is."""

    text: str
    person: str
    node: str
    epoch: int


class TrustWorkload(Workload):
    """Mail from brokers through trusted nodes to people."""

    name: ClassVar[str] = "trust"
    registry = TRUST_PROTOCOL
    sizes: ClassVar = {
        "people": (1, 5),
        "brokers": (1, 3),
        "casts": (2, 40),
        "operations": (0, 30),
        "pool": (1, 4),
        "mails": (1, 8),
        "window": (1, 4),
    }
    acts: ClassVar[tuple[str, ...]] = (
        "draw", "draw", "tidy", "tidy", "rotate", "destroy", "erase", "share",
    )  # fmt: skip

    def __init__(self) -> None:
        self._sizes: Sizes = {}
        self._vids: dict[str, Vid] = {}
        self._custody: dict[str, list[Pages]] = {}
        self._stopped: dict[str, str] = {}
        """Person → the broker whose casts they stopped."""
        self._taken = AtMostOncePerUser()
        self._got: dict[str, set[str]] = {}
        self._confirmed: set[tuple[str, str, str]] = set()
        """(node, person, cast) that a node knows to be on the person's disk."""
        self._owed: dict[tuple[str, str, str], None] = {}
        self._ending: set[tuple[str, int]] = set()
        self._destroyed: set[tuple[str, int]] = set()
        self._leaving: dict[tuple[str, str], str] = {}
        """(node, person) that is to be erased → the handle, in hexadecimal."""
        self._erased: set[tuple[str, str]] = set()
        self._former: set[str] = set()
        """Vids of people who are to be erased; they may enrol again, as strangers."""
        self._woken: dict[tuple[str, int, str], tuple[int, str]] = {}
        """(node, its boot, person) that was woken and has not come → when, and which device."""
        self._asked: dict[int, tuple[str, int] | tuple[str, str]] = {}
        self._ticket = OPERATOR
        self._counts = dict.fromkeys(
            ("deposits", "pushed", "taken", "woken", "erased", "destroyed"), 0
        )

    def setup(self, world: World, sizes: Sizes) -> None:
        """Two trusted nodes first, then people and brokers."""
        self._sizes = sizes
        settings = TrustSettings(
            pool_size=sizes["pool"],
            pools_max=10_000,
            mails_max=sizes["mails"],
            window=sizes["window"],
            round_to=1,
            people_max=16,
            deposits_max=256,
            wake_delay_us=300_000,
            wake_again_us=WAKE_AGAIN_US,
            push_retry_us=PUSH_RETRY_US,
            failures_max=10_000,
        )
        world.observe(self._observe)
        for name in NODES:
            world.add_host(name, lambda boot: TrustHost(boot, settings))
        draw = world.kernel.generator("workload/trust/people")
        for number in range(sizes["people"]):
            name = f"person-{number}"
            own = draw.choice((NODES, NODES, NODES[:1], NODES[1:]))
            stopped = f"broker-{draw.randrange(2 * sizes['brokers'])}"
            self._stopped[name], self._got[name] = stopped, set()
            reach = Reach(stopped=(stopped,))
            sleeps = world.kernel.generator(f"workload/trust/sleep/{name}").random() < SLEEPERS
            world.add_host(name, self._person(own, reach, sleeps=sleeps))
        for number in range(sizes["brokers"]):
            name = f"broker-{number}"
            custody = self._custody[name] = []
            world.add_host(name, _broker(custody))

    def _person(self, nodes: Sequence[str], reach: Reach, *, sleeps: bool) -> Factory:
        return lambda boot: PersonHost(boot, nodes, reach, self._sizes["pool"], sleeps=sleeps)

    def start(self, world: World, duration_us: int) -> None:
        """Let brokers cast and everybody act, at random moments."""
        draw = world.kernel.generator("workload/trust/acts")
        for number in range(self._sizes["casts"]):
            seed = draw.random()
            world.kernel.call(draw.randrange(duration_us), self._cast(world, f"c{number}", seed))
        for _ in range(self._sizes["operations"]):
            kind, choice = draw.choice(self.acts), draw.random()
            act = self._operation(world, kind, choice)
            world.kernel.call(draw.randrange(duration_us), act)
        self._look(world)

    def _cast(self, world: World, cast: str, seed: float) -> Callable[[int], None]:
        def act(now: int) -> None:
            if not self._vids:
                return
            draw = world.kernel.generator(f"workload/trust/cast/{cast}/{seed}")
            known = list(self._vids.values())
            chosen = draw.sample(known, min(len(known), draw.randint(1, VIDS_MAX)))
            # Two brokers may find vids of one person for the same cast.
            sender = draw.choice(list(self._custody))
            for broker in draw.sample(list(self._custody), min(2, len(self._custody))):
                part = draw.sample(chosen, draw.randint(1, len(chosen)))
                self._forward(world, broker, cast, sender, now, part)

        return act

    def _forward(
        self, world: World, broker: str, cast: str, sender: str, now: int, part: list[Vid]
    ) -> None:
        for node in NODES:
            vids = [vid.text for vid in part if vid.node == node]
            if not vids:
                continue
            page = Pages(node, made_deposit(cast, sender, now, vids))
            self._custody[broker].append(page)
            machine = world.hosts[broker].machine
            if isinstance(machine, BrokerHost):
                machine.forward(page)  # else at its next boot

    def _operation(self, world: World, kind: str, choice: float) -> Callable[[int], None]:
        def act(_: int) -> None:
            people = [name for name in world.hosts if name.startswith("person-")]
            person = people[int(choice * len(people))]
            node = NODES[int(choice * 1_000) % len(NODES)]
            device, machine = world.hosts[person], world.hosts[person].machine
            trusted = world.hosts[node]
            if kind in ("draw", "tidy"):
                if device.state is HostState.UP and isinstance(machine, PersonHost):
                    self._tidy(world, device, machine) if kind == "tidy" else machine.draw()
            elif trusted.state is HostState.UP and isinstance(trusted.machine, TrustHost):
                self._operate(world, trusted, trusted.machine, kind, person)

        return act

    def _tidy(self, world: World, device: Host, machine: PersonHost) -> None:
        """A person reads the oldest mail and removes it."""
        for cast in list(machine.inbox.mails)[:1]:
            self._got[device.name].add(cast)
            world.give(device, RemoveMail(1, cast))

    def _operate(
        self, world: World, host: Host, machine: TrustHost, kind: str, person: str
    ) -> None:
        """The operator asks, beside the node: no answer is lost but by a crash."""
        self._ticket += 1
        if kind == "rotate":
            world.give(host, RotateKeys(self._ticket))
        elif kind == "share":
            world.give(host, ShareEpoch(self._ticket, f"agent-{self._ticket % 3}"))
        elif kind == "destroy" and len(machine.node.epochs) > 1:
            others = [one for one in machine.node.epochs if one != machine.node.sealing]
            epoch = others[self._ticket % len(others)]
            self._ending.add((host.name, epoch))
            self._asked[self._ticket] = host.name, epoch
            world.give(host, DestroyEpoch(self._ticket, epoch))
        elif kind == "erase" and any(
            vid.person == person and vid.node == host.name for vid in self._vids.values()
        ):
            # The device does not know, and goes on: it is a stranger there from now on.
            if (host.name, person) not in self._leaving:
                if not machine.node.knows(person):
                    return
                self._leaving[host.name, person] = machine.node.handle_of(person).hex()
                own = (vid for vid in self._vids.values() if vid.person == person)
                self._former |= {vid.text for vid in own if vid.node == host.name}
            self._asked[self._ticket] = host.name, person
            world.give(host, ErasePerson(self._ticket, person))

    def _observe(self, host: Host, effect: Effect, now: int) -> None:
        del now
        match effect:
            case Drew(node, vids):
                for text in vids:
                    self._vids[text] = Vid(text, host.name, node, _epoch_of(text))
            case MailPushed(person, mail):
                self._counts["pushed"] += 1
                self._check_pushed(host.name, person, mail)
            case MailTaken(mail):
                self._counts["taken"] += 1
                self._taken.deliver(host.name, mail.cast)
                self._got[host.name].add(mail.cast)
            case Answered(caller, AckMail() | OpenInbox() as asked, Acknowledged()):
                self._woken.pop((host.name, host.boots, caller), None)
                if isinstance(asked, AckMail):
                    self._confirmed.add((host.name, caller, asked.cast))
            case Woke() | PushLost():
                self._observe_push(host, effect)
            case Answered(_, Deposit() as deposit, Deposited(full=0)):
                self._counts["deposits"] += 1
                self._note_owed(host.name, deposit)
            case Acknowledged(ticket) | ErasureDone(ticket):
                self._note_done(ticket)
            case Failed() | Answered():
                pass

    def _check_pushed(self, node: str, person: str, mail: Mail) -> None:
        detail = f"{node} pushed {mail.cast} of {mail.sender} to {person}"
        if (node, person) in self._erased and mail.vid in self._former:
            raise Violation("an erased person gets nothing", detail)
        if (node, person) in self._leaving:
            return  # perhaps enrolled anew, without rules and without a memory
        if (node, person, mail.cast) in self._confirmed:
            raise Violation("at most once per user", f"{detail} again")
        if self._stopped[person] == mail.sender:
            raise Violation("who is stopped reaches nobody", detail)

    def _observe_push(self, host: Host, effect: Woke | PushLost) -> None:
        if isinstance(effect, Woke):
            self._check_woken(host, effect.push, effect.at)
            return
        for person, (_, device) in list(self._woken.items()):
            if device == effect.device:  # it is repeated sooner
                del self._woken[person]

    def _check_woken(self, host: Host, push: PushWakeUp, at: int) -> None:
        """A push says nothing but where it goes, and is not repeated until somebody came."""
        person = push.endpoint.removeprefix(PUSH_SERVICE)
        detail = f"{host.name} woke {person} by {push}"
        if push != PushWakeUp(push.device, PUSH_SERVICE + person) or person not in self._got:
            raise Violation("a push says nothing", detail)
        assert isinstance(host.machine, TrustHost)
        if not host.machine.node.mails_of(person):
            raise Violation("nobody is woken without mail", detail)
        known = host.name, host.boots, person
        before = self._woken.get(known)
        if before is not None and at < before[0] + WAKE_AGAIN_US:
            raise Violation(
                "a person is woken once", f"{detail}, {at - before[0]} µs after the last"
            )
        self._woken[known] = at, push.device
        self._counts["woken"] += 1

    def _note_owed(self, node: str, deposit: Deposit) -> None:
        """A node has taken a cast: whoever can be reached by one of its vids must get it."""
        for parcel in deposit.parcels:
            vid = self._vids[parcel.vid]
            reachable = (node, vid.epoch) not in self._ending
            if reachable and self._stopped[vid.person] != deposit.sender:
                self._owed[node, vid.person, deposit.cast] = None

    def _note_done(self, ticket: int) -> None:
        asked = self._asked.pop(ticket, None)
        if asked is None:
            return
        node, what = asked
        if isinstance(what, int):
            self._counts["destroyed"] += 1
            self._destroyed.add((node, what))
        else:
            self._counts["erased"] += 1
            self._erased.add((node, what))

    def _look(self, world: World) -> None:
        """Check what holds at all times."""
        for name in NODES:
            machine = world.hosts[name].machine
            if isinstance(machine, TrustHost):
                self._check_node(name, machine)
        world.kernel.call(world.now + LOOK_US, lambda _: self._look(world))

    def _check_node(self, name: str, machine: TrustHost) -> None:
        check_bounds(name, machine.node)
        gone = [vid.text for vid in self._vids.values() if (name, vid.epoch) in self._destroyed]
        gone = [text for text in gone if self._vids[text].node == name]
        if any(one is not None for one in machine.node.resolve(gone)):
            raise Violation("a destroyed epoch never resolves", f"{name}: {gone}")

    def _missing(self, world: World) -> list[tuple[str, str, str]]:
        """Give what somebody is owed and has not got; an erased person is owed nothing there."""
        inboxes = {
            name: host.machine.inbox.mails
            for name, host in world.hosts.items()
            if isinstance(host.machine, PersonHost)
        }
        return [
            (node, person, cast)
            for node, person, cast in self._owed
            if (node, person) not in self._leaving
            and cast not in self._got[person]
            and cast not in inboxes[person]
        ]

    def settled(self, world: World) -> bool:
        """Every cast is taken, and everybody has theirs; then the nodes restart once more."""
        pages = [page for custody in self._custody.values() for page in custody]
        if not all(page.done for page in pages) or self._missing(world):
            return False
        mailboxes = [
            len(machine.node.mails_of(person))
            for name in NODES
            if isinstance(machine := world.hosts[name].machine, TrustHost)
            for person in self._got
            if machine.node.knows(person)
        ]
        return not any(mailboxes)

    def check(self, world: World) -> None:
        """Nothing is lost or left, also after a last restart."""
        missing = self._missing(world)
        if missing:
            raise Violation("no loss", f"{len(missing)} lack, e.g. {missing[0]}")
        undone = [page for custody in self._custody.values() for page in custody if not page.done]
        if undone:
            raise Violation("liveness", f"{len(undone)} pages were never taken: {undone[0]}")
        for name in NODES:
            host = world.hosts[name]
            world.crash(host)
            world.restart(host)
            assert isinstance(host.machine, TrustHost)
            self._check_node(name, host.machine)
            for (node, person), handle in self._leaving.items():
                keys = (key for key in host.disk.durable() if handle in key)
                # The bare handle stays a while: archives erase by it (decision 0188).
                left = [key for key in keys if key != GONE_PREFIX + handle]
                if node == name and (node, person) in self._erased and left:
                    raise Violation("nothing is left of erased people", f"{node}: {left}")

    def metrics(self, world: World) -> dict[str, float]:
        """Count what happened."""
        del world
        return {name: float(count) for name, count in self._counts.items()}


def _broker(custody: list[Pages]) -> Factory:
    return lambda boot: BrokerHost(boot, custody)


def _epoch_of(vid: str) -> int:
    return int.from_bytes(base64.urlsafe_b64decode(vid[:24])[:2], "big")


WORKLOAD = TrustWorkload
