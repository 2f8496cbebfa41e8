"""The basic components of OO 3.3: what a broker knows of itself, of other brokers, of its clients.

They hold tables and answer questions; adaptors decide. The broker topology table and the routing
table are the topology's (`TopologyTable`, its trees); here are path lengths computed from them.
"""

import enum
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from roamcast.errors import LimitError
from roamcast.model.machine import step
from roamcast.overlay.homes.choice import (
    HomeCandidate,
    HomePolicy,
    HomeReason,
    LoadGauge,
    LoadState,
)
from roamcast.overlay.homes.messages import BrokerInformation, HomeRequest
from roamcast.overlay.topology.items import Graph

FOUND_MAX: Final = 32
"""Brokers of one client's report that are remembered, the nearest."""


class HomeSettings(msgspec.Struct, frozen=True):
    """Thresholds are shares of capacity, intervals microseconds."""

    high: float = 0.7
    """From this load on a broker takes nobody, and hands clients over."""
    low: float = 0.5
    """It takes clients again from here on down."""
    policy: HomePolicy = HomePolicy()
    hop_us: int = 10_000
    """What a client needs to a broker and back counts as a hop for each of these."""
    gain: float = 0.5
    """A new home is cheaper by more than this, in hops."""
    dwell_us: int = 10_000_000
    """A client stays at least so long, unless its home is overloaded or out of reach.

    A broker that had no room for it is not asked again for so long, but the next best one.
    """
    delay_us: int = 2_000_000
    """Moves wait for a draw of up to this, then look again: no herd moves at once."""
    ask_us: int = 2_000_000
    """An answer that takes longer is no."""
    move_us: int = 10_000_000
    """A client that has not gone after so long stays."""
    reserve_us: int = 10_000_000
    """Room is reserved so long for a client that was accepted."""
    report_us: int = 1_000_000
    """Load is told to others at most this often, …"""
    report_step: float = 0.05
    """… and only if it changed by so much, or crossed a threshold."""
    claim_us: int = 1_000_000
    """A former home that does not answer is asked again after so long."""
    patience_us: int = 10_000_000
    """If its events do not move either, a consumer waits so long for its modulators' state."""
    lease_us: int = 600_000_000
    """What is kept of a consumer that does not come back is forgotten after so long."""
    renew_steps: int = 128
    """After so many steps modulators take a new checkpoint, …"""
    steps_max: int = 512
    """… and beyond so many they wait until the consumer's end confirms what it had."""
    barred_us: int = 10_000_000
    """A module that was stopped may not begin again for its owner for so long."""
    clients_max: int = 100_000
    brokers_max: int = 10_000
    reservations_max: int = 10_000


class ResourceMonitor:
    """This broker's load and battery, and the room that it has promised."""

    def __init__(self, settings: HomeSettings) -> None:
        self.gauge = LoadGauge(settings.high, settings.low)
        self.battery = 1.0
        self.reserved: dict[tuple[str, int, int], tuple[HomeRequest, int]] = {}
        """(home that asked, its epoch, number) → what it asked, and until when."""
        self.arrived = 0.0
        """Weight of clients that came since the load was measured."""
        self._settings = settings

    def measure(self, load: float, battery: float) -> bool:
        """Take a reading; say whether this broker became loaded, or open again."""
        self.battery = battery
        self.arrived = 0.0
        return self.gauge.measure(load)

    @property
    def loaded(self) -> bool:
        """Whether it takes nobody."""
        return self.gauge.state is LoadState.LOADED

    def admits(self, asked: HomeRequest, now: int) -> bool:
        """Reserve room for a client if there is any; a repeated request gets the same answer."""
        key = (asked.origin, asked.epoch, asked.number)
        if key in self.reserved:
            return True
        promised = sum(one.weight for one, _ in self.reserved.values())
        load = self.gauge.load + self.arrived + promised
        full = len(self.reserved) >= self._settings.reservations_max
        # Below the threshold, not at it: whoever is let in must not make this broker hand over.
        if full or self.loaded or load + asked.weight >= self._settings.high - 1e-9:
            return False
        self.reserved[key] = asked, now + self._settings.reserve_us
        return True

    def came(self, client: str, weight: float) -> HomeRequest | None:
        """A client came: give the request that its room was reserved by, which is used up."""
        asked = [key for key, (one, _) in self.reserved.items() if one.client == client]
        found = None
        for key in asked:
            found, _ = self.reserved.pop(key)
        self.arrived += weight if found is None else max(weight, found.weight)
        return found

    def expire(self, now: int) -> None:
        """Forget reservations that nobody used."""
        over = [key for key, (_, until) in self.reserved.items() if until <= now]
        for key in over:
            del self.reserved[key]

    def deadline(self) -> int | None:
        """When the first reservation expires."""
        return min((until for _, until in self.reserved.values()), default=None)


class BrokerManager:
    """The broker information table, and paths over the overlay as this node knows it."""

    def __init__(self, node: str, graph: Callable[[], Graph], settings: HomeSettings) -> None:
        self.node = node
        self.information: dict[str, BrokerInformation] = {}
        self.producers: tuple[str, ...] = ()
        self._graph = graph
        self._settings = settings
        self._hops: dict[str, float] = {}
        self._hops_of: tuple[Graph, tuple[str, ...]] | None = None
        """The overlay and the producers that these hops were counted for."""

    def learn(self, found: BrokerInformation) -> BrokerInformation | None:
        """Take what is newer than what is known; give what was known, None if it is old news."""
        known = self.information.get(found.node)
        if known is not None and (found.epoch, found.number) <= (known.epoch, known.number):
            return None
        if known is None and len(self.information) >= self._settings.brokers_max:
            return None
        self.information[found.node] = found
        return known or msgspec.structs.replace(found, load=0.0, loaded=False)

    def before(self, broker: str) -> float:
        """Give the mean overlay hops from the producers' homes to a broker; 0 without producers."""
        if not self.producers:
            return 0.0
        # By the graph itself, not by `TreeChanged`: a link beside the tree changes paths, too, and
        # one that fails and comes back before the tree is computed anew leaves it as it was.
        graph, counted = self._graph(), self._hops_of
        if counted is None or counted[0] is not graph or counted[1] != self.producers:
            self._hops = self._mean_hops(graph)
            self._hops_of = graph, self.producers
        return self._hops.get(broker, float("inf"))

    def _mean_hops(self, graph: Graph) -> dict[str, float]:
        totals: dict[str, tuple[int, int]] = {}
        for producer in self.producers:
            for broker, hops in _distances(graph, producer).items():
                total, count = totals.get(broker, (0, 0))
                totals[broker] = total + hops, count + 1
        return {broker: total / count for broker, (total, count) in totals.items()}

    def candidate(self, broker: str, after: float) -> HomeCandidate:
        """Describe a broker as a home."""
        known = self.information.get(broker)
        if known is None:
            return HomeCandidate(broker, self.before(broker), after)
        return HomeCandidate(broker, self.before(broker), after, known.loaded, known.battery)


def _distances(graph: Graph, source: str) -> dict[str, int]:
    hops = {source: 0}
    waiting = deque([source])
    while waiting:
        node = waiting.popleft()
        for other in graph.get(node, ()):
            if other not in hops:
                hops[other] = hops[node] + 1
                waiting.append(other)
    return hops


class ChangeState(enum.StrEnum):
    """Where a client's home change stands."""

    SETTLED = "settled"
    WAITING = "waiting"
    ASKING = "asking"
    MOVING = "moving"


class ChangeEvent(enum.StrEnum):
    """What moves it on."""

    BETTER = "a better home is known"
    DUE = "its drawn delay is over and the home is still better"
    STALE = "its drawn delay is over and no home is better"
    ACCEPTED = "the candidate reserved room"
    REFUSED = "the candidate is full, or does not answer"
    FAILED = "the move was given up"


_S, _E = ChangeState, ChangeEvent
CHANGE_TABLE: Final = {
    (_S.SETTLED, _E.BETTER): _S.WAITING,
    (_S.WAITING, _E.DUE): _S.ASKING,
    (_S.WAITING, _E.STALE): _S.SETTLED,
    (_S.ASKING, _E.ACCEPTED): _S.MOVING,
    (_S.ASKING, _E.REFUSED): _S.SETTLED,
    (_S.MOVING, _E.FAILED): _S.SETTLED,
}


class HomeMove(msgspec.Struct, frozen=True, gc=False):
    """How a client came to its home."""

    origin: str = ""
    """Where it was served before; empty: nowhere."""
    because: str = ""
    way: str = ""
    """Whether towards the producers."""


NOT_MOVED: Final = HomeMove()


class ClientRecord:
    """One row of the client information table."""

    def __init__(self, name: str, weight: float, passed: float, now: int) -> None:
        self.name = name
        self.weight = weight
        self.passed = passed
        self.since = now
        self.state = ChangeState.SETTLED
        self.found: dict[str, float] = {}
        """Brokers in reach → hops."""
        self.target = ""
        self.reason = HomeReason.FIRST
        """Why it is where it is, or why it is about to move."""
        self.number = 0
        """Of the request under way."""
        self._refused: dict[str, int] = {}
        """Brokers that had no room for it, or did not answer → until when it asks others."""
        self.moved = NOT_MOVED

    def step(self, event: ChangeEvent) -> None:
        """Go to the next state."""
        self.state = step(CHANGE_TABLE, self.state, event)

    def refuse(self, broker: str, now: int, until: int) -> None:
        """Ask a broker no more for a while: it is open, but has no room for so heavy a client."""
        self._refused = {name: at for name, at in self._refused.items() if at > now}
        self._refused[broker] = until

    def is_refused(self, broker: str, now: int) -> bool:
        """Return whether a broker need not be asked yet."""
        return now < self._refused.get(broker, now)


class ClientManager:
    """The client information table of OO: everybody whose home this is."""

    def __init__(self, settings: HomeSettings) -> None:
        self.clients: dict[str, ClientRecord] = {}
        self.away: dict[str, HomeMove] = {}
        """Clients that may come back, and how they had come."""
        self._settings = settings

    def drop(self, name: str, *, away: bool) -> ClientRecord | None:
        """Forget a client; of one that is away, people may still ask how it came here."""
        known = self.clients.pop(name, None)
        if not away:
            self.away.pop(name, None)
        elif known is not None and len(self.away) < self._settings.clients_max:
            self.away[name] = known.moved
        return known

    def add(self, name: str, weight: float, passed: float | None, now: int) -> ClientRecord:
        """Take a client; one that is here already gets what is known by now of its modulators."""
        known = self.clients.get(name)
        if known is not None:
            known.weight = weight or known.weight
            known.passed = known.passed if passed is None else passed
            return known
        if len(self.clients) >= self._settings.clients_max:
            raise LimitError(f"a broker has at most {self._settings.clients_max} clients")
        share = 1.0 if passed is None else passed
        made = self.clients[name] = ClientRecord(name, weight, share, now)
        made.moved = self.away.pop(name, NOT_MOVED)
        return made

    def report(self, name: str, found: Iterable[tuple[str, float]]) -> bool:
        """Note which brokers a client finds; False if it is not ours or already on its way."""
        record = self.clients.get(name)
        if record is None or record.state is ChangeState.MOVING:
            return False
        nearest = sorted(found, key=lambda one: (one[1], one[0]))[:FOUND_MAX]
        record.found = dict(nearest)
        return True
