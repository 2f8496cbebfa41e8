"""A replayed broker sends what the real one sent: same steps, other thresholds."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.channels.reliable.messages import Data
from roamcast.channels.server.map_server import MapServer
from roamcast.channels.server.messages import (
    Announce,
    Hello,
    Operation,
    Publish,
    Request,
    State,
    Subscribe,
    Unpublish,
    Unsubscribe,
    parcel_of,
)
from roamcast.channels.server.settings import MapSettings
from roamcast.model.contexts import Context, body_of
from roamcast.model.machine import Effect, Multicast, Received
from roamcast.model.records import QueryStep, UpdateMatched
from roamcast.pipeline.journals.plan_files import chosen
from roamcast.pipeline.journals.replay import Replay
from roamcast.sim.workloads._map_parts import Coarse, ScanMatcher

FILTERS = [
    *(f"place = 'lab/{room}'" for room in "abc"),
    "within(place, 'lab')",
    "type = 'person'",
    "place = 'lab/a' OR type = 'printer'",
]
CLIENTS = 8


class Watched:
    """A map server, with what it told one by one and by channels counted as it happens."""

    def __init__(self, settings: MapSettings) -> None:
        self.server = MapServer(
            "server",
            epoch=1,
            now=1,
            settings=settings,
            policy=Coarse(),
            make_matcher=ScanMatcher,
        )
        self.transmissions = self.announcements = 0
        self.records: list[QueryStep | UpdateMatched] = []
        self._numbers: dict[str, int] = {}
        self._deliver = self.server.desk.deliver
        self.server.desk.deliver = self._told  # type: ignore[method-assign]

    def _told(self, client: object, item: object, *, listing: str = "") -> None:
        self.transmissions += isinstance(item, State) and not listing
        self.announcements += isinstance(item, Announce)
        self._deliver(client, item, listing=listing)  # type: ignore[arg-type]

    def request(self, client: str, operation: Operation) -> None:
        number = self._numbers.get(client, 0)
        said: Sequence[Operation] = (operation,)
        if not number:
            said = (Hello(0, client == "client-7"), operation)
        self._numbers[client] = number + len(said)
        given = Received(client, Request(1, 1, number + 1, tuple(said)))
        self._take(self.server.receive(given, self.server.desk.now + 1))

    def _take(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, QueryStep | UpdateMatched):
                self.records.append(effect)
            elif isinstance(effect, Multicast) and isinstance(effect.message, Data):
                items = parcel_of(effect.message.payload).items
                self.transmissions += any(isinstance(item, State) for item in items)


def replayed(records: list[QueryStep | UpdateMatched], q: int, m: int) -> Replay:
    broker = Replay(q, m)
    for record in records:
        if isinstance(record, UpdateMatched):
            broker.update(map(int, record.matched.split()))
        elif record.step == "placed":
            broker.placed(record.query, record.view_class, record.receiver, remote=record.remote)
        else:
            broker.withdrawn(record.query, record.receiver)
    return broker


def run(seed: int, q: int, m: int, operations: int) -> Watched:
    draw = random.Random(seed)
    watched = Watched(MapSettings(subscribers_min=q, history_max=m))
    for _ in range(operations):
        client = f"client-{draw.randrange(CLIENTS)}"
        vid = f"{client}/{draw.randrange(2)}"
        kind = draw.choice(("put", "put", "put", "cancel", "ask", "ask", "end"))
        if kind == "put":
            attributes = {"type": draw.choice(("person", "printer"))}
            at = watched.server.desk.now
            context = Context(vid, f"lab/{draw.choice('abc')}", None, attributes, at)
            watched.request(client, Publish(body_of(context), at))
        elif kind == "cancel":
            watched.request(client, Unpublish(vid))
        elif kind == "ask":
            watched.request(client, Subscribe(f"s{draw.randrange(2)}", draw.choice(FILTERS)))
        else:
            watched.request(client, Unsubscribe(f"s{draw.randrange(2)}"))
    return watched


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 12), st.integers(1, 150))
def test_the_replay_of_a_journal_sends_what_the_broker_sent(
    seed: int, q: int, m: int, operations: int
) -> None:
    watched = run(seed, q, m, operations)
    broker = replayed(watched.records, q, m)
    assert broker.transmissions == watched.transmissions
    assert broker.announcements == watched.announcements


def test_other_thresholds_are_told_without_running_the_broker_again() -> None:
    """Subscriptions and updates do not depend on q and m, so one journal tells of all of them."""
    journal = run(5, 2, 12, 400).records
    costs = {}
    for q, m in ((1, 1), (3, 4), (4, 64)):
        real = run(5, q, m, 400)
        costs[q, m] = replayed(journal, q, m).cost
        assert costs[q, m] == real.transmissions + real.announcements
    assert len(set(costs.values())) == 3


def test_a_restart_forgets_who_asked() -> None:
    broker = Replay(1, 4)
    broker.placed(1, "", "ann", remote=False)
    broker.update([1])
    broker.restart()
    broker.update([1])
    broker.withdrawn(1, "ann")
    assert broker.transmissions == 1


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ([(1, 8, 30, 9), (2, 8, 20, 9), (3, 8, 25, 9)], (2, 8)),
        ([(1, 8, 20, 9), (2, 8, 20, 4)], (2, 8)),  # as much sent with fewer channels
        ([(2, 32, 20, 4), (2, 8, 20, 4), (3, 8, 20, 4)], (3, 8)),  # a shorter history, a higher q
    ],
)
def test_the_thresholds_that_send_least_are_chosen(
    rows: list[tuple[int, int, int, int]], best: tuple[int, int]
) -> None:
    names = ("subscribers_min", "history_max", "transmissions", "channels_max")
    same = {"run": "r", "host": "b", "announcements": 0}
    found = chosen([same | dict(zip(names, row, strict=True)) for row in rows])
    assert [(row["subscribers_min"], row["history_max"]) for row in found] == [best]
