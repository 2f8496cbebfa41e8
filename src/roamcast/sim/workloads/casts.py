"""Casts to those who were, are or will be there, through brokers and trusted nodes that fail.

Nodes on trees and cyclic graphs, trusted nodes, people with many vids who roam between nodes and
change while they stay; casts of every tense and policy, some cancelled or updated. In some runs
people hide from senders, or tell them less; in some a node is taken over by its replica, which has
what was on the disk of the other; in some casts wait until a second person consents, and are never
sent if that one refuses.

All the time nobody gets a cast twice, no trusted node is told a place or a filter, no broker a
person, and no bound is exceeded. Once everything is healed, everybody whose contexts match has the
cast, by a record that no machine has touched, nobody else has it, and nothing of it is left.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Final

import msgspec

from roamcast.broker import Acknowledged, Broker, Failed, PublishFor, SetRules, UnpublishFor
from roamcast.channels.failover.epochs import epoch_at
from roamcast.channels.failover.messages import FAILOVER_MESSAGES
from roamcast.channels.past.settings import PastSettings
from roamcast.channels.reliable.messages import MESSAGES
from roamcast.channels.server.messages import MAP_MESSAGES
from roamcast.identity.rules import Viewer
from roamcast.identity.trusted.inbox import MailTaken
from roamcast.identity.trusted.mailboxes import Deposit
from roamcast.identity.trusted.reach import Reach
from roamcast.identity.trusted.settings import TrustSettings
from roamcast.model.casts import Cast
from roamcast.model.contexts import Context
from roamcast.model.machine import Effect
from roamcast.model.wire import Registry
from roamcast.overlay.casts.held import LATE, PAYLOADS, name_of
from roamcast.overlay.casts.messages import CancelCast, DepositMail, SendCast, UpdateCast
from roamcast.overlay.casts.settings import CastSettings
from roamcast.overlay.links.messages import LINK_MESSAGES, NONCE_BYTES
from roamcast.overlay.links.settings import NeighbourSettings
from roamcast.overlay.overlay import OverlayNode
from roamcast.overlay.tables.areas import Areas
from roamcast.overlay.tables.crowd import Crowd
from roamcast.sim.checkers import AtMostOncePerUser, Violation, check_bounds
from roamcast.sim.host import Boot, Host, HostState
from roamcast.sim.workload import Sizes, Workload
from roamcast.sim.workloads._cast_parts import (
    CERTAIN_US,
    HIDDEN,
    KINDS_OF_RULES,
    LEFT_OVER,
    REPLICA,
    SENDERS,
    CastNode,
    CastTruth,
    RecordedCast,
    Standby,
    Visit,
    VisitState,
    check_blind,
    drawn_filter,
    drawn_present,
    moderate,
    rules_to,
)
from roamcast.sim.workloads._consent_parts import SecondPerson
from roamcast.sim.workloads._map_parts import ScanMatcher, quick_settings
from roamcast.sim.workloads._overlay_parts import key_pair
from roamcast.sim.workloads._trust_parts import (
    Answered,
    Drew,
    PersonHost,
    TrustAnswer,
    TrustCall,
    TrustHost,
    TrustMail,
)
from roamcast.sim.workloads.overlay import LINGER_US, SETTINGS
from roamcast.sim.world import World

WATCH_US: Final = 250_000
ROLES: Final = ("red", "blue")
POLICIES: Final = ("NH", "NH", "FBTH", "BTH1", "BTH2", "BTH3")

CASTS: Final = CastSettings(
    cache_max=3,
    casts_max=5,
    plan_chars=100,
    endings_max=200,
    batch_us=20_000,
    batch_casts=4,
    batch_max=8,
    events_max=40,
    pairs_max=40,
    union_max=6,
    page_pairs=3,
    page_bytes=600,
    deposits_max=3,
    posts_max=8,
    retry_us=60_000,
    retry_us_max=500_000,
    life_us=4_000_000,
    late_us=400_000_000,
    lateness_us=4_000_000,
    return_us=1_000_000,
    margin_us=3_000_000,
    unknown_us=200_000,
    patience_us=1_500_000,
    hop_us=250_000,
    again_us=3_000_000,
    report_us=200_000,
    scan_casts=5,
    scan_us=10_000,
)
PAST: Final = PastSettings(look_us=100_000_000_000, alive_us=100_000_000_000)
TRUST: Final = TrustSettings(round_to=1, mails_max=4, pool_size=4, pools_max=1_000)


class CastsWorkload(Workload):
    """Senders, brokers, trusted nodes and people."""

    name: ClassVar[str] = "casts"
    registry = Registry(
        (
            *LINK_MESSAGES,
            *MESSAGES,
            *MAP_MESSAGES,
            *FAILOVER_MESSAGES,
            TrustCall,
            TrustAnswer,
            TrustMail,
        )
    )
    settle_us_max: ClassVar[int] = 120_000_000
    sizes: ClassVar = {
        "nodes": (1, 9),
        "more_edges": (0, 4),
        "trusted": (1, 3),
        "people": (1, 5),
        "moves": (1, 50),
        "casts": (1, 14),
        "endings": (0, 4),
        "rules": (0, 1),
        "take_overs": (0, 1),
        "consents": (0, 1),
    }
    drawn_last: ClassVar = frozenset({"rules", "take_overs", "consents"})

    def __init__(self) -> None:
        self.truth = CastTruth()
        self._sizes: Sizes = {}
        self._draw = self._draw_ends = self._draw_rules = random.Random()
        self._second = SecondPerson(self._ask_anew, self._is_up)
        self._replica_of = ""
        """The node that is taken over in this run, if one is."""
        self._serving: dict[str, str] = {}
        """Nodes that were taken over → the host that serves them now."""
        self._epochs: dict[str, int] = {}
        self._beside: dict[str, list[str]] = {}
        self._nodes: list[str] = []
        self._trusted: list[str] = []
        self._people: list[str] = []
        self._pools: dict[str, list[str]] = {}
        self._current: dict[str, Visit] = {}
        self._asked: dict[int, Callable[[bool, int], None]] = {}
        self._ticket = 0
        self._clocks: dict[str, int] = {}
        self._taken = AtMostOncePerUser()
        self._counts = dict.fromkeys(
            (
                *("casts", "visits", "delivered", "owed", "endings"),
                *("rules", "hidden from", "take-overs"),
            ),
            0,
        )

    def setup(self, world: World, sizes: Sizes) -> None:
        """Make a graph of nodes, trusted nodes and people."""
        self._sizes = sizes
        draw = self._draw = world.kernel.generator("workload/casts")
        self._draw_ends = world.kernel.generator("workload/casts/ends")
        self._draw_rules = world.kernel.generator("workload/casts/rules")
        self._second.draw = world.kernel.generator("workload/casts/consents")
        fair = world.clock_of
        # A replica's clock is off as the other's was: what is told apart here is what it holds.
        world.clock_of = lambda name: moderate(fair(name.removesuffix(REPLICA)))
        self._nodes = [f"n{number}" for number in range(sizes["nodes"])]
        self._trusted = [f"trust-{number}" for number in range(sizes["trusted"])]
        self._people = [f"person-{number}" for number in range(sizes["people"])]
        if sizes["take_overs"]:
            self._replica_of = self._draw_rules.choice(self._nodes)
        for number, node in enumerate(self._nodes):
            if number:
                self._join(node, self._nodes[draw.randrange(number)])
        for _ in range(sizes["more_edges"] if len(self._nodes) > 2 else 0):
            self._join(*draw.sample(self._nodes, 2))
        world.observe(self._observe)
        for node in self._nodes:
            world.add_host(node, self._boot)
        for node in self._trusted:
            world.add_host(node, lambda boot: TrustHost(boot, TRUST))
        for person in self._people:
            self._pools[person] = []
            self.truth.got[person] = set()
            world.add_host(
                person, lambda boot: PersonHost(boot, self._trusted, Reach(), TRUST.pool_size)
            )

    def _join(self, first: str, other: str) -> None:
        if other not in self._beside.setdefault(first, []):
            self._beside[first].append(other)
            self._beside.setdefault(other, []).append(first)

    def _addresses(self, node: str) -> tuple[str, ...]:
        return (node, node + REPLICA) if node == self._replica_of else (node,)

    def _host(self, world: World, node: str) -> Host:
        """Give the host that serves a node."""
        return world.hosts[self._serving.get(node, node)]

    def _take_over(self, world: World, now: int) -> None:
        """Let a node's host fall for good, and its replica serve from what it has followed."""
        del now
        node = self._replica_of
        world.crash(world.hosts[node])
        self._serving[node] = node + REPLICA
        self._counts["take-overs"] += 1
        copied = tuple(world.hosts[node].disk.durable().values())

        def boot(given: Boot) -> CastNode | Standby:
            if given.number == 1:
                given.disk.merge(copied)
            return self._boot(given)

        world.add_host(node + REPLICA, boot)

    def _boot(self, boot: Boot) -> CastNode | Standby:
        node = boot.host.removesuffix(REPLICA)
        if self._serving.get(node, node) != boot.host:
            return Standby()
        epoch = self._epochs[node] = max(epoch_at(boot.now, 0, 0), self._epochs.get(node, 0) + 1)
        made = OverlayNode(
            node,
            key_pair(node)[0],
            {
                far: NeighbourSettings(key_pair(far)[1], self._addresses(far))
                for far in self._beside.get(node, ())
            },
            boot.generator.random,
            lambda: boot.generator.randbytes(NONCE_BYTES),
            SETTINGS,
            (Areas(linger_us=LINGER_US), Crowd(linger_us=LINGER_US, watermark_us=250_000)),
            places=(f"campus/{node}",),
        )
        broker = Broker(
            node,
            epoch=epoch,
            now=boot.now,
            load=boot.disk.open().load,
            stamp=boot.disk.stamp,
            map_settings=quick_settings(receivers=1, buffer=16, sync_us_max=1_000_000),
            past_settings=PAST,
            cast_settings=CASTS,
            make_matcher=ScanMatcher,
            trusted_nodes=self._trusted,
            overlay=made if len(self._nodes) > 1 else None,
            key_of=lambda vid: vid.encode()[:32],
        )
        return CastNode(boot, broker)

    def start(self, world: World, duration_us: int) -> None:
        """Let people roam, and senders send."""
        draw, call = self._draw, world.kernel.call
        for _ in range(self._sizes["moves"]):
            call(draw.randrange(duration_us), partial(self._move, world))
        for number in range(self._sizes["casts"]):
            call(draw.randrange(duration_us), partial(self._send, world, number, duration_us))
        for _ in range(self._sizes["endings"]):
            call(self._draw_ends.randrange(duration_us), partial(self._end, world))
        if self._replica_of:
            at = self._draw_rules.randrange(duration_us)
            call(at, partial(self._take_over, world))
        self._watch_again(world)

    # --- people

    def _clock(self, world: World, node: str) -> int:
        """Read a node's clock as one that never runs backwards."""
        local = self._host(world, node).local(world.now)
        self._clocks[node] = max(local, self._clocks.get(node, 0) + 1)
        return self._clocks[node]

    def _is_set_back(self, world: World, node: str) -> bool:
        return self._host(world, node).local(world.now) + WATCH_US < self._clocks.get(node, 0)

    def _ask(
        self, world: World, node: str, given: object, then: Callable[[bool, int], None]
    ) -> None:
        self._asked[self._ticket] = then
        world.give(self._host(world, node), given)  # type: ignore[arg-type]

    def _ask_anew(
        self,
        world: World,
        node: str,
        make: Callable[[int], object],
        then: Callable[[bool, int], None],
    ) -> None:
        self._ticket += 1
        self._ask(world, node, make(self._ticket), then)

    def _is_up(self, world: World, node: str) -> bool:
        return self._host(world, node).state is HostState.UP

    def _move(self, world: World, now: int) -> None:
        """Let somebody arrive somewhere, change, or leave."""
        del now
        draw = self._draw
        person = draw.choice(self._people)
        visit = self._current.get(person)
        if visit is not None and not visit.states:  # their rules were not answered
            visit = None
        if visit is None:
            self._arrive(world, person)
        elif visit.states[0].certain and self._hides(world, visit):
            pass
        elif visit.states[0].certain and self._host(world, visit.node).state is HostState.UP:
            if draw.random() < 0.4:
                self._publish(world, visit)
            else:
                self._leave(world, visit)
                if draw.random() < 0.8:
                    self._arrive(world, person)

    def _arrive(self, world: World, person: str) -> None:
        node = self._draw.choice(self._nodes)
        pool = self._pools[person]
        if self._host(world, node).state is not HostState.UP:
            return
        if not pool:
            host = world.hosts[person]
            if isinstance(host.machine, PersonHost):
                host.machine.draw()
            return
        vid = pool.pop(self._draw.randrange(len(pool)))
        visit = Visit(person, vid, node, [])
        self.truth.visits[vid] = self._current[person] = visit
        self._counts["visits"] += 1
        if self._sizes["rules"] and self._draw_rules.random() < 0.5:
            visit.rules = self._draw_rules.choice(KINDS_OF_RULES)
            self._set_rules(world, visit, visit.rules, lambda: self._publish_soon(world, visit))
        else:
            self._publish(world, visit)

    def _set_rules(self, world: World, visit: Visit, kind: str, then: Callable[[], None]) -> None:
        self._ticket += 1
        given = SetRules(self._ticket, visit.vid, visit.vid, rules_to(kind))
        self._counts["rules"] += 1
        self._ask(world, visit.node, given, lambda done, _: then() if done else None)

    def _publish_soon(self, world: World, visit: Visit) -> None:
        """Come, now that one's rules are known; unless one has gone elsewhere."""
        if self._current.get(visit.person) is visit:
            self._publish(world, visit)

    def _hides(self, world: World, visit: Visit) -> bool:
        """Let somebody who has come hide from everybody, now and then."""
        draw = self._draw_rules
        up = self._host(world, visit.node).state is HostState.UP
        if not self._sizes["rules"] or visit.hiding or not up or draw.random() >= 0.15:
            return False
        visit.hiding = True

        def hidden() -> None:
            visit.hidden_us = world.now

        self._set_rules(world, visit, HIDDEN, hidden)
        return True

    def _publish(self, world: World, visit: Visit) -> None:
        draw = self._draw
        asked = self._clock(world, visit.node)
        visit.vague |= self._is_set_back(world, visit.node)
        place = f"campus/{visit.node}/{draw.randrange(2)}"
        state = VisitState(place, draw.choice(ROLES), asked)
        visit.states.append(state)
        started = world.now

        def then(done: bool, now: int) -> None:
            state.refused = not done
            state.certain = done and now - started <= CERTAIN_US

        self._ticket += 1
        context = Context(visit.vid, place, None, {"role": state.role}, asked)
        self._ask(world, visit.node, PublishFor(self._ticket, visit.vid, context), then)

    def _leave(self, world: World, visit: Visit) -> None:
        asked = self._clock(world, visit.node)
        visit.vague |= self._is_set_back(world, visit.node)
        started = world.now
        visit.left = asked, None
        self._current.pop(visit.person)

        def then(done: bool, now: int) -> None:
            if now - started > CERTAIN_US:
                visit.unclear = True
            elif done:
                visit.left = asked, self._clock(world, visit.node)
            else:
                visit.left = None

        self._ticket += 1
        self._ask(world, visit.node, UnpublishFor(self._ticket, visit.vid, visit.vid), then)

    # --- senders

    def _send(self, world: World, number: int, duration_us: int, now: int) -> None:
        draw = self._draw
        node = draw.choice(self._nodes)
        if self._host(world, node).state is not HostState.UP:
            return
        sent = self._clock(world, node)
        begun = sent - now

        def moment() -> int:
            return begun + draw.randrange(-500_000, duration_us + 2_000_000)

        places = ["campus", *(f"campus/{one}" for one in self._nodes), f"campus/{node}/0"]
        if draw.random() < 0.25:
            text, meaning = drawn_present(draw, sent, places, ROLES)
        else:
            text, meaning = drawn_filter(draw, moment, places, ROLES)
        expires = sent + draw.randrange(200_000, duration_us + 3_000_000)
        self._ticket += 1
        policy = draw.choice(POLICIES)
        cast = RecordedCast(f"cast-{number}", node, self._ticket, expires, meaning, sent, policy)
        cast.sender = self._draw_rules.choice(SENDERS) if self._sizes["rules"] else SENDERS[0]
        cast.sent_us = now
        self.truth.casts[cast.id] = cast
        self._counts["casts"] += 1

        def then(done: bool, now: int) -> None:
            cast.promised = done
            if done and self._sizes["endings"] and self._draw_ends.random() < 0.3:
                # An end that comes at once may overtake its cast.
                soon = now + self._draw_ends.randrange(60_000)
                world.kernel.call(soon, lambda _: self._end_one(world, cast))

        given = SendCast(
            self._ticket,
            Cast(cast.id, text, b"payload of " + cast.id.encode(), sent, expires=expires),
            Viewer(cast.sender),
            policy=policy,
            priority=draw.randrange(3),
        )
        lasting = "INTERVAL(" in text  # what is about the moment of sending is sent at once
        if self._sizes["consents"] and lasting and self._second.draw.random() < 0.6:
            self._second.consider(world, cast, given, then)
        else:
            self._ask(world, node, given, then)

    def _end(self, world: World, now: int) -> None:
        """Cancel or update a cast."""
        del now
        live = [cast for cast in self.truth.casts.values() if cast.promised and not cast.ended]
        if not live:
            return
        self._end_one(world, self._draw_ends.choice(live))

    def _end_one(self, world: World, cast: RecordedCast) -> None:
        if cast.ended or self._host(world, cast.origin).state is not HostState.UP:
            return
        update = "" if self._draw_ends.random() < 0.3 else f"update-of-{cast.id}"
        cast.ended = "?" + (update or "cancelled")

        def then(done: bool, now: int) -> None:
            del now
            cast.ended = cast.ended[1:] if done else ""
            self._counts["endings"] += done

        self._ticket += 1
        viewer = Viewer(cast.sender)
        given = (
            UpdateCast(self._ticket, cast.id, update, b"payload of " + update.encode(), viewer)
            if update
            else CancelCast(self._ticket, cast.id, viewer)
        )
        self._ask(world, cast.origin, given, then)

    # --- what is seen

    def _observe(self, host: Host, effect: Effect, now: int) -> None:
        match effect:
            case Drew(_, vids):
                self._pools[host.name] += vids
            case MailTaken(mail):
                self._counts["delivered"] += 1
                self._taken.deliver(host.name, mail.cast)
                self.truth.got[host.name].add(mail.cast)
                if mail.sealed != f"payload of {mail.cast}:{mail.vid}".encode():
                    raise Violation("mail has its cast's payload", f"{mail}")
            case Acknowledged(ticket) | Failed(ticket):
                then = self._asked.pop(ticket, None)
                if then is not None:
                    then(isinstance(effect, Acknowledged), now)
            case Answered(_, Deposit() as deposit):
                check_blind(deposit)
            case DepositMail():
                check_blind(effect)
                if len(effect.parcels) > CASTS.page_pairs:
                    raise Violation("bounded state", f"{len(effect.parcels)} vids in one deposit")
                if b"person-" in msgspec.msgpack.encode(effect):
                    raise Violation("no broker knows a person", f"{effect}")

    def _watch_again(self, world: World) -> None:
        for node in self._nodes:
            machine = self._host(world, node).machine
            if isinstance(machine, CastNode):
                check_bounds(node, machine.broker)
        world.kernel.call(world.now + WATCH_US, lambda _: self._watch_again(world))

    # --- the end

    def _left_over(self, world: World) -> str:
        for node in self._nodes:
            host = self._host(world, node)
            if not isinstance(host.machine, CastNode):
                return f"{node} is not up"
            casts = host.machine.broker.parts["casts"]
            held = getattr(casts, "casts", {})
            if held:
                first = next(iter(held.values()))
                return (
                    f"{node} holds {sorted(held)}, {casts.explain(first.id, host.local(world.now))}"  # type: ignore[attr-defined]
                )
            overlay = host.machine.overlay
            if overlay is not None and overlay.custody.held:
                return f"{node} has parcels: {list(overlay.custody.held)[:3]}"
            late = self._may_be_late()
            kept = [k for k in host.disk.keys if k.startswith(LEFT_OVER) and k not in late]
            if kept:
                return f"{node} has {kept[0]} on disk"
        for name in self._trusted:
            machine = world.hosts[name].machine
            if not isinstance(machine, TrustHost):
                return f"{name} is not up"
            for person in self._people:
                if machine.node.knows(person) and machine.node.mails_of(person):
                    return f"{name} has mail for {person}"
        return ""

    def _may_be_late(self) -> set[str]:
        """Name what nodes keep until a cast is over, for results may be late (0165)."""
        late = [name_of(one.id) for one in self.truth.casts.values() if one.policy != "NH"]
        return {prefix + name for name in late for prefix in (PAYLOADS, LATE)}

    def settled(self, world: World) -> bool:
        """Everything is over."""
        return not self._left_over(world)

    def check(self, world: World) -> None:
        """Everybody has what they must have, and nobody anything else."""
        self._check_delivered(world)
        left = self._left_over(world)
        if left:
            raise Violation("nothing is left in the end", left)

    def _check_delivered(self, world: World) -> None:
        for person in self._people:
            machine = world.hosts[person].machine
            if isinstance(machine, PersonHost):  # some may be on disk, and not have been told
                self.truth.got[person] |= machine.inbox.mails.keys()
        for cast in self.truth.casts.values():
            must, may = self.truth.receivers(cast)
            has = self.truth.who_has(cast.id)
            self._counts["hidden from"] += self.truth.hidden_from(cast)
            if has - may:
                raise Violation("nobody else gets it", f"{has - may} got {cast}")
            if cast.promised and not cast.ended:
                self._counts["owed"] += len(must)
                if must - has:
                    raise Violation("everybody who matches gets it", f"{must - has} lack {cast}")
            if cast.ended.startswith("update"):
                updated = self.truth.who_has(cast.ended)
                if updated != has:
                    detail = f"{cast.id} reached {has}, its update {updated}"
                    raise Violation("an update reaches whom its cast reached", detail)

    def metrics(self, world: World) -> dict[str, float]:
        """Count what happened."""
        del world
        counts = self._counts | {"consents": self._second.consented}
        return {name: float(count) for name, count in counts.items()}


WORKLOAD = CastsWorkload
