"""Whole brokers on hosts that fall, part and take over, with everybody who uses them.

Each host runs a post: a watchdog, the copy of the store while it stands by, and a whole broker
while it serves. Publishers write by tickets, programs hold sessions, clients hold links; rules
change, disks fail. All the time: nobody is shown what rules hide, or told of a change in it;
nothing is shown that was refused or is not on disk, what is acknowledged is on the disks of the
serving host and of all its current followers, no limit is exceeded. Once everything is healed there
is one broker, it has everything that was acknowledged, and every view is right. Beside that, twin
worlds that differ in hidden things alone are compared in all that reaches a stranger (`_twins.py`).
"""

import random
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import ClassVar, Final

from msgspec import structs

from roamcast.broker import (
    Acknowledged,
    AdmitClient,
    Admitted,
    Broker,
    CutOff,
    DropReplica,
    Failed,
    Frame,
    LimitSession,
    OpenSession,
    PublishFor,
    Retired,
    SessionDrained,
    SessionSlow,
    SetRules,
    SubscribedMany,
    SubscribeSession,
    SubscribeSessionMany,
    TokenRevoked,
    UnpublishFor,
)
from roamcast.channels.client.copy import Appeared, Changed, Left
from roamcast.channels.client.map_client import MapClient, SubscribeFilter
from roamcast.channels.client.publications import PublishContext, UnpublishContext
from roamcast.channels.client.watching import Current, Cut, Overtaken, Pending, Refusal
from roamcast.channels.failover.epochs import seat_of
from roamcast.channels.failover.following import Following, FollowingSettings
from roamcast.channels.failover.messages import FAILOVER_MESSAGES
from roamcast.channels.failover.post import Post
from roamcast.channels.failover.replica_messages import REPLICA_MESSAGES
from roamcast.channels.failover.replication import ReplicationSettings
from roamcast.channels.failover.watchdog import WatchdogSettings
from roamcast.channels.past.leaving import ended
from roamcast.channels.past.messages import BatchLanded, FeedArchive, LookForEnded
from roamcast.channels.reliable.messages import MESSAGES
from roamcast.channels.reliable.receiver import Stale
from roamcast.channels.server.messages import MAP_MESSAGES
from roamcast.channels.sessions.publications import PREFIX
from roamcast.channels.sessions.settings import HubSettings
from roamcast.identity.policy import subject_of
from roamcast.identity.rule_sets import PREFIX as RULES
from roamcast.identity.rules import Viewer
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Input
from roamcast.model.records import ChannelStep, Record
from roamcast.model.wire import Registry
from roamcast.sim.checkers import BandwidthLimit, Violation, check_bounds
from roamcast.sim.clocks import Clock
from roamcast.sim.host import Boot, Host, HostState
from roamcast.sim.network import NetworkCut
from roamcast.sim.workload import Sizes, Workload
from roamcast.sim.workloads._broker_parts import (
    HIDDEN,
    HOURS,
    PUBLIC,
    STAFF,
    WITHOUT,
    AskedChange,
    Attempt,
    BrokerTruth,
    Fate,
    Program,
    PublishingUser,
    brokers_of,
    clients_of,
    expected,
    fall,
    holds,
    made_context,
    map_settings,
    number_of,
    rules_of,
    stored_context,
    stored_rules,
)
from roamcast.sim.workloads._map_parts import Overheard, ScanMatcher
from roamcast.sim.workloads._past_parts import (
    ANYBODY,
    PAST,
    PastRecord,
    feed,
    steps_of,
)
from roamcast.sim.workloads._twins import check_twins
from roamcast.sim.workloads._users import Given, Users
from roamcast.sim.world import World

WORK_US: Final = 30_000
"""How long a worker takes for a part of its work on the past."""

TICK_US: Final = 50_000
"""How often users look whether their broker is still there, and act."""

PLACES: Final = tuple(f"campus/b35/{floor}/{room}" for floor in (1, 2) for room in ("r1", "r2"))
FILTERS: Final = (
    "within(place, 'campus')",
    "within(place, 'campus/b35/1')",
    "place = 'campus/b35/2/r1'",
    "type = 'printer'",
    "type = 'person' AND within(place, 'campus/b35/2')",
)
SUBJECTS: Final = ("ann", "bob", "eve", "sam")
WATCHDOG: Final = WatchdogSettings(
    probe_us=150_000,
    silent_us=600_000,
    stagger_us=300_000,
    rest_us=50_000,
    rest_us_max=1_000_000,
    leave_us=6_000_000,
)
REPLICATION: Final = ReplicationSettings(
    follow_us=500_000,
    copy_us=1_500_000,
    repeat_us=80_000,
    hand_over_us=1_500_000,
    behind_max=60,
)
FOLLOWING: Final = FollowingSettings(beat_us=200_000, repeat_us=80_000)


class BrokerWorkload(Workload):
    """Brokers, their users, and what users were promised."""

    name: ClassVar[str] = "broker"
    registry = Registry((*MESSAGES, *MAP_MESSAGES, *FAILOVER_MESSAGES, *REPLICA_MESSAGES))
    effects: ClassVar = (
        Acknowledged, Admitted, Failed, Frame, SubscribedMany, CutOff, Retired, DropReplica,
        TokenRevoked, FeedArchive, LookForEnded,
        Appeared, Changed, Left, Current, Pending, Refusal, Cut, Overtaken, Stale,
    )  # fmt: skip
    sizes: ClassVar = {
        "seats": (1, 3),
        "publishers": (1, 3),
        "vids": (1, 3),
        "programs": (1, 4),
        "clients": (0, 3),
        "limited": (0, 1),
        "rules": (0, 3),
        "splits": (0, 2),
        "falls": (0, 3),
        "subscribers_min": (1, 2),
        "page": (1, 5),
        "queue": (8, 60),
    }

    def __init__(self) -> None:
        self._truth = BrokerTruth()
        self._users = Users()
        """The users of clients on links."""
        self._programs: dict[str, Program] = {}
        self._publishers: dict[str, PublishingUser] = {}
        self._limits: dict[Hashable, int] = {}
        self._bandwidth: dict[int, BandwidthLimit] = {}
        self._current: dict[int, set[str]] = {}
        """Epochs → the followers that the broker of that epoch counts as current."""
        self._clocks: dict[int, Clock | None] = {}
        """Epochs → the clock by which the broker of that epoch went."""
        self._asked: dict[int, AskedChange] = {}
        self._done: dict[tuple[type, str], AskedChange] = {}
        """The last acknowledged request of each kind about each vid."""
        self._past = PastRecord()
        self._ticket = 0
        self._sizes: Sizes = {}
        self._seats: tuple[str, ...] = ()
        self._draw = random.Random()
        self._ends_us = 0
        self._counts = dict.fromkeys(
            (
                *("acknowledged", "refused", "unsure", "frames", "starts", "handed over"),
                *("followers", "fed"),
            ),
            0,
        )

    def setup(self, world: World, sizes: Sizes) -> None:
        """Posts by seat, then clients on links; programs and publishers have no host."""
        self._sizes = sizes
        self._draw = world.kernel.generator("workload/broker")
        self._seats = tuple(f"seat-{number}" for number in range(sizes["seats"]))
        world.observe(self._observe(world))
        world.journal = Overheard(world.journal, self._hear(world))
        for name in self._seats:
            host = world.add_host(name, self._post)
            self._truth.skewed |= host.clock is not None
        for number in range(sizes["clients"]):
            world.add_host(f"{SUBJECTS[number]}#link", self._client)
        for number in range(sizes["programs"]):
            subject = SUBJECTS[number % len(SUBJECTS)]
            groups = frozenset({"staff"}) if subject in ("bob", "sam") else frozenset[str]()
            limit = 3_000 if number < sizes["limited"] else 0
            name = f"{subject}#ws{number}"
            self._programs[name] = Program(name, Viewer(subject, groups), limit)
            if limit:
                self._limits[name] = limit
        for number in range(sizes["publishers"]):
            self._publishers[f"pub{number}"] = PublishingUser(f"pub{number}")

    def _post(self, boot: Boot) -> Post:
        def server(epoch: int, now: int) -> Broker:
            broker = Broker(
                boot.host,
                epoch=epoch,
                now=now,
                load=boot.disk.open().load,
                stamp=boot.disk.stamp,
                map_settings=map_settings(self._sizes),
                hub_settings=HubSettings(
                    page_features_max=self._sizes["page"],
                    frame_events_max=2,
                    queue_events_max=self._sizes["queue"],
                    slow_us_max=1_500_000,
                ),
                replication_settings=REPLICATION,
                past_settings=PAST,
                replicas=self._seats,
                make_matcher=ScanMatcher,
            )
            for number in range(self._sizes["clients"]):  # they stand at the door already
                name = f"{SUBJECTS[number]}#link"
                broker.receive(AdmitClient(0, name, Viewer(subject_of(name))), now)
            return broker

        following = Following(boot.host, replicas=self._seats, settings=FOLLOWING)
        return Post(
            boot.host,
            seats=self._seats,
            now=boot.now,
            settings=WATCHDOG,
            make_server=server,
            following=following,
        )

    def _client(self, boot: Boot) -> MapClient:
        return MapClient(
            boot.host,
            server=self._seats[0],
            now=boot.now,
            settings=map_settings(self._sizes),
            draw=boot.generator.random,
        )

    def start(self, world: World, duration_us: int) -> None:
        """Let users act, servers fall and sides part at random moments."""
        draw = self._draw
        self._ends_us = duration_us
        for program in self._programs.values():
            for number in range(draw.randrange(1, 3)):
                program.wanted[f"q{number}"] = draw.choice(FILTERS)
        for number in range(self._sizes["clients"]):
            host = world.hosts[f"{SUBJECTS[number]}#link"]
            asked = SubscribeFilter("s", draw.choice(FILTERS))
            world.kernel.call(draw.randrange(200_000), self._give_client(world, host, asked))
        for _ in range(self._sizes["splits"]):
            begins = draw.randrange(1 + duration_us // 2)
            ends = min(duration_us, begins + draw.randrange(500_000, 4_000_000))
            cut = NetworkCut(frozenset(name for name in world.hosts if draw.random() < 0.5))
            self._split(world, cut, begins, ends)
        for _ in range(self._sizes["falls"]):
            world.kernel.call(draw.randrange(duration_us), lambda now: fall(world, now))
        world.kernel.call(TICK_US, self._tick(world))

    def _split(self, world: World, cut: NetworkCut, begins: int, ends: int) -> None:
        world.kernel.call(begins, lambda _: world.network.cut(cut))
        world.kernel.call(ends, lambda _: world.network.mend(cut))

    def _give_client(self, world: World, host: Host, given: Given) -> Callable[[int], None]:
        def act(now: int) -> None:
            del now
            if host.state is HostState.UP:
                self._users.give(world, host, given)

        return act

    def _tick(self, world: World) -> Callable[[int], None]:
        """Every user looks after its connection, and does something now and then."""

        def tick(now: int) -> None:
            self._forget_dead(world)
            for program in self._programs.values():
                self._drive_program(world, program, now)
            if now < self._ends_us:
                for publisher in self._publishers.values():
                    if self._draw.random() < 0.6:
                        self._drive_publisher(world, publisher, now)
                self._drive_clients(world, now)
            self._watch(world)
            self._watch_past(world, now)
            world.kernel.call(now + TICK_US, tick)

        return tick

    def _forget_dead(self, world: World) -> None:
        """Requests and sessions of a broker that is gone are not answered any more."""
        alive = {server.epoch for _, server in brokers_of(world)}
        for ticket, asked in [*self._asked.items()]:
            if asked.epoch not in alive:
                del self._asked[ticket]
                if asked.attempt is not None:
                    asked.attempt.fate = Fate.UNSURE
                    self._counts["unsure"] += 1
        servers = [server for _, server in brokers_of(world)]
        for program in self._programs.values():
            if program.server is not None and program.server not in servers:
                program.disconnect()

    def _drive_program(self, world: World, program: Program, now: int) -> None:
        draw = self._draw
        calm = now >= self._ends_us
        if program.server is None:
            found = brokers_of(world)
            if found and (calm or draw.random() < 0.7):
                self._connect(world, program, *draw.choice(found))
        elif program.slow:
            if calm or draw.random() < 0.2:
                program.slow = False
                world.give(world.hosts[program.host], SessionDrained(program.name))
        elif not calm and draw.random() < 0.03:
            program.slow = True
            world.give(world.hosts[program.host], SessionSlow(program.name))
        elif not calm and draw.random() < 0.05:
            about = draw.choice(list(program.wanted))
            program.wanted[about] = draw.choice(FILTERS)
            self._subscribe(world, program, about)
        elif not calm and draw.random() < 0.03 and isinstance(program.server, Broker):
            # Its link broke, and it is back before the broker has noticed: opened twice.
            self._connect(world, program, world.hosts[program.host], program.server)

    def _connect(self, world: World, program: Program, host: Host, server: Broker) -> None:
        program.connect(host.name, server)
        program.opening = self._request(
            world, host, server, lambda t: OpenSession(t, program.name, program.viewer)
        )
        if program.limit_bytes:
            limit = program.limit_bytes
            self._request(world, host, server, lambda t: LimitSession(t, program.name, limit))
        filters = tuple((about, Filter.parse(text)) for about, text in program.wanted.items())
        self._request(world, host, server, lambda t: SubscribeSessionMany(t, program.name, filters))

    def _subscribe(self, world: World, program: Program, about: str) -> None:
        server = program.server
        assert isinstance(server, Broker)
        wanted = Filter.parse(program.wanted[about])
        program.queries.pop(about, None)
        host = world.hosts[program.host]
        self._request(
            world, host, server, lambda t: SubscribeSession(t, program.name, about, wanted)
        )

    def _drive_publisher(self, world: World, publisher: PublishingUser, now: int) -> None:
        """One request at a time, to the same broker while that is there."""
        draw, truth = self._draw, self._truth
        if publisher.ticket in self._asked:
            return
        found = brokers_of(world)
        servers = [server.epoch for _, server in found]
        if not found:
            return
        if publisher.epoch not in servers:
            publisher.epoch = draw.choice(servers)
        host, server = found[servers.index(publisher.epoch)]
        vid = f"{publisher.name}/{draw.randrange(self._sizes['vids'])}"
        kind = draw.random()
        stirred = self._stirred(host, vid) if kind < 0.2 else None
        if stirred is not None:
            publisher.ticket = self._request(
                world, host, server, lambda t: PublishFor(t, publisher.name, stirred), None, vid
            )
            return
        kind = draw.random()
        if kind < 0.15 * self._sizes["rules"]:
            rule = draw.choice((PUBLIC, HIDDEN, STAFF, HOURS, WITHOUT + draw.choice(SUBJECTS)))
            attempt = truth.rule(vid).ask(now, rule, server.epoch)
            given: Callable[[int], Input] = lambda t: SetRules(  # noqa: E731
                t, publisher.name, vid, rules_of(rule)
            )
        elif kind > 0.9:
            attempt = truth.state(vid).ask(now, None, server.epoch)
            given = lambda t: UnpublishFor(t, publisher.name, vid)  # noqa: E731
        else:
            place = draw.choice(PLACES)
            attempt = truth.state(vid).ask(now, place, server.epoch)
            context = made_context(
                vid, place, attempt.number, draw.choice(("person", "printer")), now
            )
            given = lambda t: PublishFor(t, publisher.name, context)  # noqa: E731
        publisher.ticket = self._request(world, host, server, given, attempt, vid)

    def _stirred(self, host: Host, vid: str) -> Context | None:
        """Give a stored context with another secret: who may not see that must not be told.

        Not where clocks are off: there a write of the same number could outrank a later one.
        """
        possible = self._truth.state(vid).possible()
        if self._truth.skewed or len(possible) > 1 or possible[0].value is None:
            return None
        entry = host.disk.entries.get(PREFIX + vid)
        context = stored_context(None if entry is None else entry.value)
        if context is None or context.attributes["n"] != possible[0].number:
            return None
        secret = f"s{self._draw.randrange(1_000_000)}"
        return structs.replace(context, attributes={**context.attributes, "secret": secret})

    def _drive_clients(self, world: World, now: int) -> None:
        """Clients on links publish contexts of their own, which nobody stores."""
        draw = self._draw
        for number in range(self._sizes["clients"]):
            host = world.hosts[f"{SUBJECTS[number]}#link"]
            if host.state is not HostState.UP or draw.random() > 0.3:
                continue
            vid = f"{host.name}/{host.boots}.{draw.randrange(2)}"
            history = self._truth.state(vid)
            if vid in self._users.life(host).published and draw.random() < 0.2:
                history.ask(now, None, 0).fate = Fate.UNSURE
                self._users.give(world, host, UnpublishContext(vid))
            else:
                attempt = history.ask(now, draw.choice(PLACES), 0)
                attempt.fate = Fate.UNSURE
                assert attempt.value is not None
                context = made_context(vid, attempt.value, attempt.number, "person", now)
                self._users.give(world, host, PublishContext(context))

    def _request(
        self,
        world: World,
        host: Host,
        server: Broker,
        make: Callable[[int], Input],
        attempt: Attempt | None = None,
        vid: str = "",
    ) -> int:
        self._ticket += 1
        given = make(self._ticket)
        self._asked[self._ticket] = AskedChange(host.name, server.epoch, given, attempt, vid)
        world.give(host, given)
        return self._ticket

    # --- what is checked all the time -----------------------------------------------------------

    def _observe(self, world: World) -> Callable[[Host, Effect, int], None]:
        def observe(host: Host, effect: Effect, now: int) -> None:
            match effect:
                case Acknowledged(ticket):
                    self._acknowledged(world, host, ticket)
                case Failed(ticket):
                    self._refused(ticket)
                case Frame():
                    self._frame(host, effect, now)
                case SubscribedMany(ticket, frames):
                    self._subscribed(host, ticket, frames, now)
                case CutOff(session):
                    program = self._programs[session]
                    if program.host == host.name and not program.opening:
                        program.disconnect()
                case Retired():
                    self._admit_again(world, host)
                case LookForEnded() | FeedArchive():
                    self._feed(world, host, effect)
                case _ if isinstance(host.machine, MapClient):
                    self._users.tell(host, effect)
                    if isinstance(effect, Appeared | Changed):
                        self._shown_to_client(world, host, effect)

        return observe

    def _admit_again(self, world: World, host: Host) -> None:
        for name in world.hosts:
            if name.endswith("#link"):
                world.give(host, AdmitClient(0, name, Viewer(subject_of(name))))

    def _acknowledged(self, world: World, host: Host, ticket: int) -> None:
        asked = self._asked.pop(ticket, None)
        if asked is None:
            return
        if isinstance(asked.given, OpenSession):
            program = self._programs[asked.given.session]
            if program.opening == ticket:
                program.opening = 0
        if asked.attempt is None:
            return
        asked.attempt.fate = Fate.DONE
        self._past.acknowledged[asked.vid, asked.attempt.number] = world.now
        self._counts["acknowledged"] += 1
        self._note_rank(host, asked, asked.attempt)
        self._done[SetRules if isinstance(asked.given, SetRules) else PublishFor, asked.vid] = asked
        holders = [host.name, *self._current.get(asked.epoch, ())]
        for name in holders:
            if not holds(world.hosts[name], asked, self._truth):
                raise Violation(
                    "acknowledged means on every current disk",
                    f"{asked.given} was acknowledged by {host.name} and is not on {name}'s disk",
                )

    def _note_rank(self, host: Host, asked: AskedChange, attempt: Attempt) -> None:
        """Note what a write is compared by, as it is on disk, and check that it outranks others."""
        truth, vid = self._truth, asked.vid
        history = truth.rule(vid) if isinstance(asked.given, SetRules) else truth.state(vid)
        entry = host.disk.entries.get(asked.key)
        if entry is None:
            return  # deleted without a trace, or not written: `holds` decides
        attempt.rank = (0, b"")  # another broker's write has replaced it already
        removes = attempt.value is None or (
            isinstance(asked.given, SetRules) and asked.given.rules is None
        )
        gone = entry.value is None
        if not isinstance(asked.given, SetRules):
            gone = stored_context(entry.value) is None
        own = gone is removes
        if own and not removes and not isinstance(asked.given, SetRules):
            own = number_of(entry.value) == attempt.number
        if own:
            attempt.rank = entry.rank
            attempt.holders = (host.name, *self._current.get(asked.epoch, ()))
            truth.check_rank(history, attempt, host.name)

    def _refused(self, ticket: int) -> None:
        asked = self._asked.pop(ticket, None)
        if asked is not None and asked.attempt is not None:
            asked.attempt.fate = Fate.REFUSED
            self._counts["refused"] += 1

    def _subscribed(self, host: Host, ticket: int, frames: Sequence[bytes], now: int) -> None:
        asked = self._asked.pop(ticket, None)
        if asked is not None:
            assert isinstance(asked.given, SubscribeSessionMany)
            for frame in frames:
                self._frame(host, Frame((asked.given.session,), frame, "json"), now)

    def _frame(self, host: Host, effect: Frame, now: int) -> None:
        post = host.machine
        assert isinstance(post, Post)
        server = post.server
        self._counts["frames"] += 1
        for name in effect.sessions:
            program = self._programs[name]
            if program.server is not server or program.opening or not isinstance(server, Broker):
                continue  # written to a connection that is gone
            if program.limit_bytes:
                limits = self._bandwidth.setdefault(server.epoch, BandwidthLimit(self._limits))
                limits.deliver(name, len(effect.data), host.steady(now))
            steps = partial(self._truth.rule_steps, epoch=server.epoch)
            for vid, shown in program.read(effect.data, steps):
                kinds = self._truth.kinds_at(vid, server.epoch)
                times = (host.local(now),)
                attempt = self._truth.check_shown(name, program.viewer, kinds, vid, shown, times)
                if not vid.partition("/")[0].endswith("#link"):
                    self._check_stored(host, vid, attempt)

    def _check_stored(self, host: Host, vid: str, attempt: Attempt) -> None:
        """What a session is shown of a stored publication is on disk, this version or a later."""
        entry = host.disk.entries.get(PREFIX + vid)
        if entry is None:
            raise Violation("nothing is shown before it is stored", f"{vid} on {host.name}")
        durable = host.disk.durable().get(PREFIX + vid)
        number = number_of(durable.value if durable is not None else None)
        replaced = self._truth.skewed and durable is not None
        replaced = replaced and durable.rank > (attempt.rank or (0, b""))  # type: ignore[union-attr]
        if number is not None and number < attempt.number and not replaced:
            raise Violation(
                "nothing is shown before it is stored",
                f"{vid} number {attempt.number}, on {host.name}'s disk is {number}",
            )

    def _shown_to_client(self, world: World, host: Host, effect: Appeared | Changed) -> None:
        """A message may have been on its way: what was allowed since the state was published."""
        context, vid = effect.context, effect.context.vid
        number = context.attributes.get("n")
        attempts = self._truth.state(vid).attempts
        asked = attempts[number].asked_us if isinstance(number, int) else 0
        kinds = self._truth.kinds_at(vid, effect.epoch, since=asked)
        shown = {"place": context.place, **context.attributes}
        viewer = Viewer(subject_of(host.name))
        server = world.hosts[self._seats[seat_of(effect.epoch)]]
        # Its clock may have been set since then, with a reboot.
        clock = self._clocks.get(effect.epoch) or server.clock
        times = (asked, world.now) if clock is None else map(clock.local, (asked, world.now))
        self._truth.check_shown(host.name, viewer, kinds, vid, shown, tuple(times))

    def _hear(self, world: World) -> Callable[[int, str, Record], None]:
        def hear(now: int, host: str, record: Record) -> None:
            del now
            if not isinstance(record, ChannelStep):
                return
            epoch = record.incarnation
            if record.step == "follower current":
                self._current.setdefault(epoch, set()).add(record.reason)
                self._counts["followers"] += 1
            elif record.step == "follower gone":
                self._current.get(epoch, set()).discard(record.reason)
            elif record.step == "store handed over":
                self._counts["handed over"] += 1
                self._handed_over(world.hosts[host], world.hosts[record.reason], epoch)
            if record.step == "server started":
                self._counts["starts"] += 1
                self._clocks[epoch] = world.hosts[host].clock
            if record.step in ("server started", "stepping down", "stepped down"):
                self._past.trouble.append(world.now)

        return hear

    def _handed_over(self, older: Host, newer: Host, epoch: int) -> None:
        """A server that steps down leaves nothing behind that it acknowledged, nor of its past."""
        there = newer.disk.durable()
        for key, _ in steps_of(older):
            if key not in there:
                raise Violation("a hand-over loses nothing", f"{key} is not on {newer.name}")
        for asked in self._done.values():
            if asked.epoch == epoch and not holds(newer, asked, self._truth):
                raise Violation("a hand-over loses nothing", f"{asked.given} is not on {newer}")

    def _watch(self, world: World) -> None:
        for host in world.hosts.values():
            if isinstance(host.machine, Post):
                check_bounds(host.name, host.machine)

    def _feed(self, world: World, host: Host, effect: LookForEnded | FeedArchive) -> None:
        """Do what a worker does for the past, some time later; the host may fall in between."""
        post, boots = host.machine, host.boots
        server = post.server if isinstance(post, Post) else None

        def work(now: int) -> None:
            alive = host.boots == boots and host.state is HostState.UP
            if not alive or not isinstance(server, Broker) or host.machine.server is not server:  # type: ignore[union-attr]
                return
            given: Input
            if isinstance(effect, FeedArchive):
                given = feed(self._past.archive, host, effect.batch)
                self._counts["fed"] += isinstance(given, BatchLanded)
            else:
                memory = server.remembers(ANYBODY, host.local(now))
                given = ended(self._past.log(host), memory.known, effect)
            world.kernel.call(now + WORK_US, lambda _: self._worked(world, host, boots, given))

        world.kernel.call(world.now + WORK_US, work)

    def _worked(self, world: World, host: Host, boots: int, given: Input) -> None:
        post = host.machine
        if host.boots == boots and isinstance(post, Post) and isinstance(post.server, Broker):
            world.give(host, given)

    def _watch_past(self, world: World, now: int) -> None:
        """Look at the past now and then, and note what the record has to know."""
        for number in range(self._sizes["clients"]):
            host = world.hosts[f"{SUBJECTS[number]}#link"]
            if host.state is HostState.UP:
                for vid in self._users.life(host).published:
                    self._past.fell[vid] = now + TICK_US
        if any(world.hosts[name].state is HostState.PAUSED for name in self._seats):
            self._past.trouble.append(now)
        if self._draw.random() < 0.1:
            self._check_past(world)

    def _check_past(self, world: World) -> None:
        # Where sides part, or clocks are off, two brokers may have shown two things at a time.
        skewed = self._truth.skewed
        exact = not skewed and len(self._seats) == 1
        for host, server in brokers_of(world):
            states = self._truth.states
            self._past.check(host, server, states, world.now, exact=exact, skewed=skewed)

    # --- what is checked in the end -------------------------------------------------------------

    def settled(self, world: World) -> bool:
        """One broker that everybody follows, everything answered, and every view right."""
        return self._problem(world) == ""

    def _problem(self, world: World) -> str:
        """Say what is not as it should be in the end, "" if nothing is."""
        found = brokers_of(world)
        if len(found) != 1:
            return f"{len(found)} brokers serve"
        host, server = found[0]
        if server.held()["followers"] != len(self._seats) - 1:
            return f"{server.held()['followers']} hosts follow"
        if any(asked.attempt is not None for asked in self._asked.values()):
            return "a request is not answered"
        truth, problem = self._final(host)
        if problem:
            return problem
        now = host.local(world.now)
        for program in self._programs.values():
            problem = self._wrong_program(program, server, truth, now)
            if problem:
                return f"{program.name}: {problem}"
        for name, client in clients_of(world):
            if not client.idle or client.epoch != server.epoch:
                return f"{name} is not idle"
            problem = self._wrong_client(world.hosts[name], truth, now)
            if problem:
                return f"{name}: {problem}"
        return ""

    def _final(self, host: Host) -> tuple[dict[str, tuple[str, str, str]], str]:
        """Give vid → (place, type, kind of rules) as it must be, from the requests and the disk.

        Where a request was never answered the disk decides between what may be.
        """
        truth: dict[str, tuple[str, str, str]] = {}
        stored = host.disk.load(PREFIX)
        for vid, history in self._truth.states.items():
            if vid.partition("/")[0].endswith("#link"):
                continue
            context = stored_context(stored.get(PREFIX + vid))
            number = None if context is None else context.attributes["n"]
            possible = {one.number if one.value is not None else None for one in history.possible()}
            if number not in possible:
                return {}, f"{vid} is number {number} on disk, and may be {possible}"
            kinds = {str(one.value) for one in self._truth.rule(vid).possible()}
            rules = stored_rules(host.disk.keys.get(RULES + vid))
            fitting = [kind for kind in kinds if rules_of(kind) == rules]
            if not fitting:
                return {}, f"the rules of {vid} are {rules}, and may be {kinds}"
            if context is not None:
                assert context.place is not None
                truth[vid] = (context.place, str(context.attributes["type"]), fitting[0])
        return truth, ""

    def _wrong_program(
        self, program: Program, server: Broker, truth: dict[str, tuple[str, str, str]], now: int
    ) -> str:
        if program.server is not server:
            return "is not connected"
        for about, text in program.wanted.items():
            query = program.queries.get(about)
            if query is None or query not in program.complete:
                return f"{about} is not complete"
            shown = {
                vid: one["place"]
                for vid, one in program.views[query].items()
                if not vid.partition("/")[0].endswith("#link")
            }
            right = expected(truth, program.viewer, Filter.parse(text), now)
            if shown != right:
                return f"{about} ({text}) shows {shown}, not {right}"
        return ""

    def _wrong_client(self, host: Host, truth: dict[str, tuple[str, str, str]], now: int) -> str:
        viewer = Viewer(subject_of(host.name))
        for name, view in self._users.life(host).views.items():
            if view.complete is None:
                return f"{name} is not complete"
            shown = {
                vid: context.place
                for vid, context in view.shown.items()
                if not vid.partition("/")[0].endswith("#link")
            }
            right = expected(truth, viewer, view.filter, now)
            if shown != right:
                return f"{name} ({view.text}) shows {shown}, not {right}"
        return ""

    def check(self, world: World) -> None:
        """One broker, nothing lost, every view right; twin worlds alike to who may not tell."""
        self._watch(world)
        self._check_past(world)
        problem = self._problem(world)
        if problem:
            found = brokers_of(world)
            lost = "is number" in problem or "the rules of" in problem
            promise = "nothing acknowledged is lost" if lost else "every view is right in the end"
            raise Violation(promise if len(found) == 1 else "one broker", problem)
        self._counts["heard by a stranger"] = check_twins(world.kernel.generator("workload/twins"))

    def metrics(self, world: World) -> dict[str, float]:
        """Count what was asked and shown."""
        del world
        return {name: float(count) for name, count in self._counts.items()}


WORKLOAD = BrokerWorkload
