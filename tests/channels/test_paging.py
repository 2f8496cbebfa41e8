"""Large current sets for clients that ride on no carousel: whole in the end, at their own pace."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.channels.client.copy import Appeared
from roamcast.channels.client.map_client import MapClient, SubscribeFilter, UnsubscribeFilter
from roamcast.channels.client.publications import PublishContext, UnpublishContext
from roamcast.channels.client.watching import Current, Cut
from roamcast.channels.server import outbox
from roamcast.channels.server.contexts import ActiveMap
from roamcast.channels.server.map_server import MapServer
from roamcast.channels.server.messages import Hello, Request, State
from roamcast.channels.server.outbox import Pager
from roamcast.channels.server.settings import MapSettings, Mode
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Input, Received, Send
from roamcast.model.records import ChannelStep
from roamcast.sim.network import LinkQuality
from roamcast.sim.workloads._map_parts import ScanMatcher
from tests.strategies_map import SERVER, MapWorld

HALL = "place = 'hall'"
PEOPLE = 120
SMALL = {"page_contexts_max": 10, "batch_bytes_max": 600, "outbox_items_max": 40}
LOSSY = LinkQuality(loss=0.1, jitter_us=3_000)


def remote(world: MapWorld) -> None:
    world.client("watcher", site="far")


def on_a_wide_area_group(world: MapWorld) -> None:
    for name in ("other", "watcher"):
        world.client(name, site="far")
    world.watch("other", HALL)


def behind_a_relay(world: MapWorld) -> None:
    world.relay("relay")
    world.weak("watcher", "relay")


def behind_a_remote_relay(world: MapWorld) -> None:
    world.relay("relay", site="far")
    world.weak("watcher", "relay")


def near(world: MapWorld) -> None:
    world.client("watcher")


SCOPED = {"local_scope": "campus", "wide_subscribers_min": 2}
WAYS = {
    "remote": (remote, SCOPED),
    "on a wide-area group": (on_a_wide_area_group, SCOPED),
    "behind a relay": (behind_a_relay, {}),
    "behind a remote relay": (behind_a_remote_relay, SCOPED),
    "unicast only": (near, {"mode": Mode.UNICAST}),
    "no channel left": (near, {"channels_max": 0}),
}


def hall(way: str, quality: LinkQuality | None = None) -> MapWorld:
    """A hall of twelve pages, and a client that has not asked yet."""
    add, given = WAYS[way]
    world = MapWorld(MapSettings(**{**SMALL, **given}), quality=quality)
    world.client("publisher")
    for number in range(PEOPLE):
        world.put("publisher", f"o{number:03}", "hall", note="x" * 40)
    add(world)
    world.run(6)
    return world


def held_for_watcher(world: MapWorld) -> list[int]:
    """How much waits for the watcher, at whoever serves it."""
    servers = [world.server]
    if "relay" in world.world.hosts:
        servers.append(world.relay_machine("relay").down)
    clients = [server.desk.clients.get("watcher") for server in servers]
    return [len(client.outbox) for client in clients if client is not None]


@pytest.mark.parametrize("way", WAYS)
def test_a_large_set_is_whole_in_the_end_whatever_changes_meanwhile(way: str) -> None:
    world = hall(way, LOSSY)
    world.watch("watcher", HALL)
    expected = {f"o{number:03}" for number in range(PEOPLE)}
    most = 0
    for turn in range(30):
        leaves, moves, comes = f"o{turn * 4:03}", f"o{turn * 4 + 1:03}", f"n{turn:02}"
        world.cancel("publisher", leaves)
        world.put("publisher", moves, "hall" if turn % 2 else "elsewhere")
        world.put("publisher", comes, "hall")
        expected -= {leaves} if turn % 2 else {leaves, moves}
        expected.add(comes)
        world.run(0.1)
        most = max(most, *held_for_watcher(world))
    world.run(15)
    assert set(world.sees("watcher")) == expected
    assert world.told_to("watcher", Current)[-1].complete
    assert world.told_to("watcher", Cut) == []
    assert most < 40  # twelve pages came through a queue of fewer items
    shown = [effect.context.vid for effect in world.told_to("watcher", Appeared)]
    assert len(shown) == len(set(shown))  # nobody left and came back


@pytest.mark.parametrize("way", ["remote", "behind a relay"])
def test_a_client_that_is_gone_in_the_middle_leaves_nothing_behind(way: str) -> None:
    world = hall(way)
    world.watch("watcher", HALL)
    while not world.told_to("watcher", Appeared):
        world.run(0.002)
    assert len(world.told_to("watcher", Appeared)) < PEOPLE
    world.world.crash(world.world.hosts["watcher"])
    world.run(8)
    assert world.server.subscriptions.records == 0
    server = world.server if way == "remote" else world.relay_machine("relay").down
    assert "watcher" not in server.desk.clients
    assert server.subscriptions.records == 0


@pytest.mark.parametrize("way", ["remote", "behind a relay", "unicast only"])
def test_a_query_withdrawn_in_the_middle_ends_its_pages(way: str) -> None:
    world = hall(way)
    world.watch("watcher", HALL)
    while not world.told_to("watcher", Appeared):
        world.run(0.002)
    world.unwatch("watcher")
    world.run(1)
    server = world.relay_machine("relay").down if way == "behind a relay" else world.server
    assert server.desk.clients["watcher"].outbox.idle
    assert world.server.subscriptions.records == 0
    assert world.told_to("watcher", Current) == []
    world.watch("watcher", HALL)  # and the next one begins anew
    world.run(3)
    assert len(world.sees("watcher")) == PEOPLE


def test_many_small_answers_at_once_do_not_make_a_client_too_slow() -> None:
    settings = MapSettings(mode=Mode.UNICAST, page_contexts_max=10, outbox_items_max=40)
    world = MapWorld(settings)
    world.client("publisher")
    for number in range(9):
        world.put("publisher", f"o{number}", "hall", kind=number)
    world.client("watcher")
    for number in range(12):
        world.watch("watcher", f"place = 'hall' AND kind < {number + 20}", f"s{number}")
    world.run(3)
    assert world.told_to("watcher", Cut) == []
    assert all(len(world.sees("watcher", f"s{number}")) == 9 for number in range(12))


def test_a_client_with_a_limit_still_gets_one_page_and_the_count() -> None:
    world = hall("unicast only")
    world.client("limited", limit_bytes=4_000)
    world.watch("limited", HALL)
    world.run(5)
    (current,) = world.told_to("limited", Current)
    assert (current.count, current.complete) == (PEOPLE, False)
    assert len(world.sees("limited")) == 10


def test_the_journal_says_why_a_set_is_listed_in_pages() -> None:
    world = hall("remote")
    world.watch("watcher", HALL)
    world.run(2)
    steps = [record for _, _, record in world.records if isinstance(record, ChannelStep)]
    (step,) = [step for step in steps if step.step == "listed in pages"]
    assert step.reason == f"{PEOPLE} for a client that rides on no carousel"


def test_a_second_hello_is_refused_so_no_limit_comes_while_pages_are_on_their_way() -> None:
    server = MapServer("server", epoch=1, now=0, settings=MapSettings(), make_matcher=ScanMatcher)
    server.receive(Received("c", Request(1, 1, 1, (Hello(), Hello(5_000)))), 1)
    assert server.desk.clients["c"].ledger is None


def test_a_look_at_a_sparse_map_is_bounded_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "SEATS_MAX", 8)
    seats = [f"o{number}" for number in range(20)]
    pager = Pager("s", 1, (7,), True)

    def last_only(vid: str) -> State | None:
        return State(1, vid, b"body") if vid == "o19" else None

    pages = [pager.page(seats, last_only, 1_000, 10) for _ in range(3)]
    assert [(len(states), ends) for states, ends in pages] == [(0, False), (0, False), (1, True)]


def test_a_page_holds_one_state_at_least_and_never_more_than_asked_for() -> None:
    seats = [f"o{number}" for number in range(5)]

    def state_of(vid: str) -> State:
        return State(1, vid, b"x" * 500)

    pager = Pager("s", 1, (7,), True)
    assert [len(pager.page(seats, state_of, 100, 10)[0]) for _ in range(5)] == [1] * 5
    assert pager.page(seats, state_of, 100, 10) == ([], True)
    assert len(Pager("s", 1, (7,), True).page(seats, state_of, 10_000, 3)[0]) == 3


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=60))
def test_an_object_keeps_its_seat_and_seats_are_never_more_than_objects_at_a_time(
    steps: list[tuple[bool, int]],
) -> None:
    here = ActiveMap(100)
    most = 0
    seated: dict[str, int] = {}
    for stamp, (comes, number) in enumerate(steps, 1):
        vid = f"o{number}"
        if comes:
            here.put(Context(vid, "hall", None, {}, 0), b"", stamp, "a")
        else:
            here.remove(vid)
            seated.pop(vid, None)
        for name, known in here.contexts.items():
            assert seated.setdefault(name, known.seat) == known.seat
        assert [vid for vid in here.seats if vid is not None] == sorted(
            here.contexts, key=lambda name: here.contexts[name].seat
        )
        most = max(most, len(here))
        assert len(here.seats) <= most


class ByHand:
    """A server and a watcher whose messages pass only when told to, in order."""

    def __init__(self) -> None:
        settings = MapSettings(mode=Mode.UNICAST, page_contexts_max=2, batch_bytes_max=150)
        self.now = 0
        self.server = MapServer(
            SERVER, epoch=1, now=0, settings=settings, make_matcher=ScanMatcher, journal=False
        )
        self.told: list[Effect] = []
        self.mail: deque[tuple[str, str, Send]] = deque()
        self.clients = {
            name: MapClient(
                name, server=SERVER, epoch=1, now=0, settings=settings, draw=lambda: 0.5
            )
            for name in ("publisher", "watcher")
        }
        for client in self.clients.values():
            self._take(client.name, client.advance(1))
        self.settle()

    def _take(self, name: str, effects: object) -> None:
        for effect in effects:  # type: ignore[attr-defined]
            if isinstance(effect, Send):
                self.mail.append((name, effect.to.name, effect))
            elif name == "watcher":
                self.told.append(effect)

    def say(self, name: str, given: Input) -> None:
        self._take(name, self.clients[name].receive(given, self.now))

    def carry(self) -> bool:
        """One message arrives."""
        if not self.mail:
            return False
        self.now += 1
        source, to, sent = self.mail.popleft()
        machine = self.server if to == SERVER else self.clients[to]
        self._take(to, machine.receive(Received(source, sent.message), self.now))
        return True

    def settle(self) -> None:
        for _ in range(2_000):
            if not self.carry():
                self.now += 10_000
                for name, machine in (*self.clients.items(), (SERVER, self.server)):
                    self._take(name, machine.advance(self.now))
            watcher = self.server.desk.clients.get("watcher")
            if not self.mail and watcher is not None and watcher.outbox.idle:
                return
        raise AssertionError("it does not come to rest")


TWO_PLACES = "place IN ('hall', 'stairs')"
VIDS = [f"o{number}" for number in range(9)]
STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(VIDS), st.sampled_from(["hall", "hall", "stairs"])),
    st.tuples(st.just("cancel"), st.sampled_from(VIDS), st.just("")),
    st.tuples(st.just("carry"), st.just(""), st.just("")),
    st.tuples(st.just("carry"), st.just(""), st.just("")),
    st.tuples(
        st.just("watch"), st.just(""), st.sampled_from([HALL, "place IN ('hall', 'stairs')"])
    ),
    st.tuples(st.just("unwatch"), st.just(""), st.just("")),
)


@given(st.lists(STEPS, max_size=50))
def test_no_gap_and_no_overlap_between_the_pages_and_the_changes_among_them(
    steps: list[tuple[str, str, str]],
) -> None:
    world = ByHand()
    for vid in VIDS:
        world.say("publisher", PublishContext(Context(vid, "hall", None, {}, 0)))
    world.settle()
    world.say("watcher", SubscribeFilter("s", HALL))
    for kind, vid, text in steps:
        if kind == "put":
            world.say("publisher", PublishContext(Context(vid, text, None, {}, world.now)))
        elif kind == "cancel":
            world.say("publisher", UnpublishContext(vid))
        elif kind == "watch":
            world.say("watcher", SubscribeFilter("s", text))
        elif kind == "unwatch":
            world.say("watcher", UnsubscribeFilter("s"))
        else:
            world.carry()
    world.settle()
    watcher = world.clients["watcher"]
    wanted = watcher.wanted.get("s")
    if wanted is None:
        assert world.server.subscriptions.records == 0
        return
    right = {one.vid: one for one in world.server.map.find(Filter.parse(wanted))}
    assert watcher.watching.copy.shown("s") == right
    assert watcher.watching.complete("s")
    last = [effect for effect in world.told if isinstance(effect, Current)][-1]
    assert last.complete
