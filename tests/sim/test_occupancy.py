"""`occupancy()` tells everything that is held: whatever grows in a machine must show in it.

The test knows nothing of a machine. It walks the attributes of machines in the middle of runs, lets
each container that it finds grow, and asks whether `occupancy()` has changed. A container that may
grow unseen is a place for a leak, so it is listed here with what bounds it, or told.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pytest

from roamcast.sim.checkers import Bounded
from roamcast.sim.scenario import Narrowing, draw_scenario, narrow
from roamcast.sim.workload import find_workload
from roamcast.sim.world import World

GROWTH: Final = 2_000
"""Entries added: more than any bound of a simulated machine, of which the fullest is told."""

ROOMS: Final = ("roamcast.channels", "roamcast.identity", "roamcast.broker", "roamcast.overlay")
TRIES_MAX: Final = 4
"""Containers of one name that are tried until one is told."""

Name = tuple[str, str]
"""(class, attribute)."""

UNTOLD: Final[dict[str, tuple[str, ...]]] = {
    "tables that are made once": (
        "Broker._asked", "Broker._by_carried", "Broker._by_input", "Broker._by_message",
        "Broker._clocks", "Broker._special",
        "Broker._timed", "Broker.parts", "MapServer._handlers", "RelayServer._handlers",
        "TimerTable._handlers", "MapContexts.publishers", "Past.followers",
        "EventDesk._by_type", "Exchange._busy", "Exchange.tables", "NodeLinks._by_message",
        "NodeLinks._by_type",
    ),
    "an entry per link of a node, and links are told": (
        "Custody._assemblies", "Custody._sessions", "Custody._under_way", "Custody._waiting",
        "Discovery._links", "Exchange._incoming", "Exchange._up", "Exchange.links",
        "NodeLinks._by_address", "NodeTopology._changed", "NodeTopology.links", "Spreading._began",
        "Spreading._summaries", "States._going", "Waves._links",
    ),
    "follows from the items of the topology, which are told": (
        "NodeTopology._hops", "NodeTopology._stale", "NodeTopology.tree",
        "TopologyTable._graph", "Spreading._epochs", "Spreading._nodes",
    ),
    "an entry per origin of events: a vector has `ORIGINS_MAX` at most, as a node knows": (
        "Attended.vector", "Buffer.start", "LogReader.streams", "RelayLink.chain",
        "RelayLink.passed", "RelayLink.untold", "_Consumer.asked", "_Consumer.vector",
    ),
    "told by its bytes, not by its entries": (
        "Buffer._held", "EventDesk._waiting", "OriginLog._entries", "OriginLog._numbers",
        "WaitingFrames.frames",
    ),
    "an entry per view class of each context: counting them would walk the map": (
        "MapContext.views",
    ),
    "a second index of what is told": (
        "Admission._clients_of", "Admission._session_viewers", "Admission._sessions_of",
        "Admission.viewers", "QueryTable._numbers", "QueryTable.records",
        "RelayedSubscriptions._asked", "RelayedSubscriptions._by_name", "Upward.users",
        "RuleBook._apart", "RuleBook._named", "RuleBook._rules", "RulesPolicy._retired",
        "RuleBook._names", "RuleBook._naming", "RulesPolicy._alone", "RulesPolicy._contexts",
        "NamedViewers.known", "NamedViewers._by_name", "NamedViewers._names",
        "NamedViewer.queries", "NamedViewer.vids",
        "RulesPolicy._viewers", "StoredPublications._open", "Carried.channels", "Carried.queries",
        "QueryRecord.members", "QueryRecord.remote", "QueryRecord.riders",
        "QueryRecord.set_streams", "SharedQuery.alone", "SharedQuery.shared", "HubSession.uses",
        "Areas._holders", "Areas._values", "Directory._holders", "Directory._values",
        "Hearing._sizes", "Home._readers", "Home._texts", "Home._untold", "Placing._everywhere",
        "Sending._leaving", "Sending.changed", "Sending.shown", "StatePlane._matching",
        "StatePlane._nodes", "StatePlane._placed", "StatePlane._vids", "StatePlane._watchers",
        "TableFeeding._days", "Wants._asked", "Wants._asked_changes", "Wants._askers",
        "Wants._hearers", "Wants._holders",
    ),
    "heaps with stale entries, which grow and shrink with the timers that are told": (
        "TimerTable._heap", "Timers._heap", "Timers._times",
    ),
    "bounded where it is filled: a limit's bytes, a band's number, a page, a frame, a queue": (
        "Ledger._entries", "Stream.bands", "EventWriter._events", "EventWriter._features",
        "HubSession.queue", "ChannelReceiver._missing", "Carousel.riders", "Carousel._vids",
        "Days.ranges", "Held.states", "Home._matched", "Waves._resets",
    ),
    "what the user asked for, and what it is shown of the contexts known": (
        "MapClient.wanted", "CopyView.shown", "_Followed.doubtful", "Listing.listed",
        "Listing.carousels", "Untold.vids",
    ),
    "requests on their way to the disk, bounded by `Replication`": (
        "Broker._tokens", "Custody._stores", "Post._tokens", "RuleSets._claims",
        "RuleSets._pending",
    ),
}  # fmt: skip
"""What bounds a container whose growth `occupancy()` does not show → its class and attribute."""


def attributes(owner: object) -> Iterator[tuple[str, Any]]:
    if isinstance(owner, msgspec.Struct):
        for field in owner.__struct_fields__:
            yield field, getattr(owner, field)
        return
    yield from vars(owner).items() if hasattr(owner, "__dict__") else ()
    for kind in type(owner).__mro__:
        for slot in getattr(kind, "__slots__", ()):
            if slot != "__dict__" and hasattr(owner, slot):
                yield slot, getattr(owner, slot)


def is_state(value: object) -> bool:
    """Whether a value is a mutable part of a machine: not a setting, a message or a function."""
    module = type(value).__module__
    if not module.startswith(ROOMS) or isinstance(value, type):
        return False
    return not (isinstance(value, msgspec.Struct) and type(value).__struct_config__.frozen)


def containers(machine: object) -> Iterator[tuple[Name, Any]]:
    """Find the containers that a machine holds, its parts' and theirs, each once."""
    seen: set[int] = set()
    waiting: list[tuple[Name, Any]] = [(("", ""), machine)]
    while waiting:
        name, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict | list | set | deque):
            if value:
                yield name, value
            items = [*value.values()] if isinstance(value, dict) else [*value]
            waiting += [(name, item) for item in items if is_state(item) or _holds(item)]
        elif isinstance(value, tuple):
            waiting += [(name, item) for item in value if is_state(item)]
        elif is_state(value) or value is machine:
            ours = is_state(value)  # else the simulator's own, around parts of a broker
            for attribute, held in attributes(value):
                owner = (type(value).__name__, attribute)
                if is_state(held) or (ours and _holds(held)):
                    waiting.append((owner, held))


def _holds(value: object) -> bool:
    return isinstance(value, dict | list | set | deque | OrderedDict)


def grown_key(like: object, number: int) -> Any:
    if isinstance(like, str):
        return f"{like}~{number}"
    if isinstance(like, int):
        return like + 1_000_000 + number
    if isinstance(like, tuple) and like:
        return (*like[:-1], grown_key(like[-1], number))
    return (like, number)


def grow(container: Any) -> None:
    """Add entries like the last one."""
    if isinstance(container, dict):
        key, value = next(reversed(container.items()))
        container.update({grown_key(key, number): value for number in range(GROWTH)})
    elif isinstance(container, set):
        like = next(iter(container))
        container.update(grown_key(like, number) for number in range(GROWTH))
    else:
        container.extend([container[-1]] * GROWTH)


def shrunk(container: Any, before: Any) -> None:
    container.clear()
    if isinstance(container, list | deque):
        container.extend(before)
    else:
        container.update(before)


def total(machine: Bounded) -> list[int]:
    return [count for count, _ in machine.occupancy().values()]


def worlds(name: str, seeds: range, at_us: int, **settings: int) -> Iterator[World]:
    """Run seeds of a workload to their middle, under their faults."""
    make = find_workload(name)
    for seed in seeds:
        scenario = narrow(draw_scenario(name, make, seed), Narrowing(None, {"calm": 1, **settings}))
        workload = make()
        world = World(seed, workload.registry, user_effects=workload.effects)
        workload.setup(world, scenario.sizes)
        workload.start(world, at_us + 1)
        world.kernel.run(at_us)
        yield world


def untold(name: str, seeds: range, at_us: int, **settings: int) -> tuple[set[Name], set[Name]]:
    """Name the containers that grew unseen, and those whose growth was told."""
    hidden: set[Name] = set()
    told: set[Name] = set()
    tried: dict[Name, int] = {}
    for world in worlds(name, seeds, at_us, **settings):
        for host in world.hosts.values():
            machine: Any = host.machine
            if not hasattr(machine, "occupancy"):
                continue
            for owner, container in [*containers(machine)]:
                if owner in told or tried.get(owner, 0) >= TRIES_MAX:
                    continue
                tried[owner] = tried.get(owner, 0) + 1
                kept = container.copy()
                before = total(machine)
                grow(container)
                (hidden if total(machine) == before else told).add(owner)
                shrunk(container, kept)
    return hidden - told, told


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("map", {"relays": 2, "behind": 3, "clients": 9, "limited": 2, "compiled": 0}),
        ("sessions", {"clients": 5, "operations": 100}),
        ("recovery", {"clients": 5, "operations": 100}),
        ("broker", {"clients": 3, "programs": 4, "publishers": 3, "rules": 3, "seats": 2}),
        ("relay", {"clients": 5, "operations": 100}),
        ("overlay", {"nodes": 8, "parcels": 40, "moves": 8}),
        ("states", {"nodes": 5, "people": 8, "watchers": 4, "changes": 60}),
        ("drains", {"nodes": 4, "clients": 4, "events": 80, "moves": 16, "drains": 2}),
    ],
)
def test_whatever_grows_in_a_machine_shows_in_its_occupancy(
    name: str, settings: dict[str, int]
) -> None:
    hidden, told = untold(name, range(2), 1_500_000, **settings)
    listed = {one for names in UNTOLD.values() for one in names}
    assert {f"{owner}.{attribute}" for owner, attribute in hidden} <= listed
    assert len(told) >= 10
