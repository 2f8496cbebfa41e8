"""What a broker tells the overlay of itself: nobody is missed, and nothing hidden is told."""

import random
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.broker import Acknowledged, Broker, Failed, OpenSession, PublishFor
from roamcast.channels.past.settings import PastSettings
from roamcast.errors import MovedError
from roamcast.identity.policy import PUBLIC
from roamcast.identity.rules import Rule, Viewer
from roamcast.matching.aggregate import Summary
from roamcast.model.areas import Area, Patch, area_of
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Store, StoreFailed
from roamcast.model.time import format_instant
from roamcast.overlay.overlay import OverlayNode, OverlaySettings
from roamcast.overlay.tables import areas as areas_table
from roamcast.overlay.tables import crowd as crowds
from roamcast.overlay.tables.crowd import CROWD, Crowd
from roamcast.overlay.tables.directory import Directory, NodeEntry
from roamcast.overlay.tables.feeding import (
    PLACES_MAX,
    RETRY_US,
    SERVED,
    TableFeeding,
    TableSettings,
    standard_tables,
)
from roamcast.sim.workloads._overlay_parts import key_pair
from tests.strategies_hub import Desk

DAY_US = 100_000_000
SETTINGS = TableSettings(flush_us=1_000, linger_us=1_000_000, day_us=DAY_US, margin_us=0)
STAFF = (Rule(viewers=("staff",), precision="exact", past=True),)
COARSE = (Rule(viewers=("*",), precision="building", past=True),)
MINE = (Rule(viewers=("ben",), precision="exact"),)
VIEWERS = (Viewer(""), Viewer("ben"), Viewer("eve", frozenset({"staff"})))


class Node(Desk):
    """A broker that is a node, with a neighbour that hears its offers."""

    def __init__(
        self,
        places: tuple[str, ...] = ("campus/b1",),
        rules: Any = PUBLIC,
        *,
        lenient: bool = False,
    ) -> None:
        """`lenient`: it takes what other nodes serve, as one whose places changed has."""
        self.places, self.default, self.lenient = places, rules, lenient
        super().__init__()

    def boot(self) -> None:
        draw = random.Random(1)
        self.broker = Broker(
            "test",
            epoch=self.now,
            now=self.now,
            load=self.load,
            map_settings=self.map_settings,
            past_settings=PastSettings(return_us=2_000_000),
            default_rules=self.default,
            overlay=OverlayNode(
                "a", key_pair("a")[0], {}, draw.random, lambda: draw.randbytes(16),
                OverlaySettings(tables=SETTINGS), standard_tables(SETTINGS), places=self.places,
            ),
        )  # fmt: skip
        if self.lenient:
            self.broker._server.contexts.check_place = lambda *_: None

    @property
    def feeding(self) -> TableFeeding:
        assert self.broker.overlay is not None
        return self.broker.overlay.feeding

    @property
    def crowd(self) -> Crowd:
        return self.feeding.crowd

    def told(self) -> bytes:
        """What a neighbour that links now is offered of the crowd."""
        value = self.crowd._wanted("anybody", CROWD)
        assert value is not None
        return value

    def wait(self, duration_us: int = 60_000_000) -> None:
        self.run(duration_us)


def admits(node: Node, text: str) -> bool:
    return node.crowd.admits(Filter.parse(text))


def test_a_context_is_in_the_summary_when_its_publisher_is_answered() -> None:
    node = Node()
    assert not admits(node, "n = 7")
    node.keep("ann", "campus/b1/2", n=7)
    assert admits(node, "n = 7")
    assert not admits(node, "n = 8")


def test_a_context_that_says_when_it_ends_may_end_before() -> None:
    node = Node()
    node.keep("ann", "campus/b1/2", n=7, lifetime_us=3_600_000_000)
    assert admits(node, f"n = 7 and end_by(time, {_span(node.now, node.now + 1)})")


def test_a_change_of_state_does_not_hide_since_when_somebody_is_there() -> None:
    """Trap 6: times are asked of the run."""
    node = Node()
    node.keep("ann", "campus/b1/2", n=7)
    began = node.now
    node.wait(1_000_000)
    node.keep("ann", "campus/b1/2", n=8)
    node.wait()
    assert admits(node, f"n = 8 and start_by(time, {_span(began, began)})")


def test_a_context_that_ended_leaves_the_summary_after_a_while() -> None:
    node = Node()
    node.crowd.reset("neighbour")
    node.keep("ann", "campus/b1/2", n=7)
    node.told()
    node.release("ann")
    assert admits(node, "n = 7")
    node.wait()
    assert not admits(node, "n = 7")


def test_nothing_is_summarised_while_there_is_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    summarise = crowds.summarise

    def counted(contexts: Iterable[Context], *, budget: int) -> Summary:
        made.append(len(members := list(contexts)))
        return summarise(members, budget=budget)

    monkeypatch.setattr(crowds, "summarise", counted)
    node = Node()
    for number in range(20):
        node.keep(f"v{number % 10}", f"campus/b1/{number % 4}", n=number)
    node.release("v3")
    node.wait()
    assert not made
    node.crowd.reset("neighbour")
    node.told()
    assert made == [9]
    assert admits(node, "n = 15")
    assert not admits(node, "n = 13")
    node.crowd.drop("neighbour")
    node.wait()  # the link lingers and is gone
    made.clear()
    node.keep("v1", "campus/b1/9", n=100)
    node.wait()
    assert not made


def test_whoever_is_hidden_makes_no_difference_to_what_neighbours_are_told() -> None:
    quiet, busy = Node(), Node()
    for node in (quiet, busy):
        node.rules("zoe", STAFF)
        node.keep("ann", "campus/b1/2", n=7)
    busy.keep("zoe", "campus/b1/3", n=1_000)
    assert quiet.told() == busy.told()


def test_what_rules_hide_is_admitted_within_the_nodes_places_alone() -> None:
    node = Node()
    node.rules("zoe", STAFF)
    node.keep("zoe", "campus/b1/3", n=1_000)
    assert admits(node, "n = 1000 and within(place, 'campus/b1/3')")
    assert not admits(node, "n = 1000 and within(place, 'campus/b2')")


def test_rules_that_come_later_take_a_context_out_of_the_summary() -> None:
    node = Node()
    node.keep("ann", "campus/b1/2", n=7)
    node.rules("ann", STAFF)
    node.wait()
    other = Node()
    other.rules("ann", STAFF)
    other.wait()
    assert node.told() == other.told()
    node.rules("ann", None)
    assert admits(node, "n = 7")
    assert not admits(node, "n = 9 and within(place, 'campus/b2')")


def test_what_is_hidden_outside_of_the_nodes_places_is_admitted_anywhere() -> None:
    node = Node(lenient=True)
    node.rules("zoe", STAFF)
    node.keep("zoe", "elsewhere/1", n=1)
    assert admits(node, "within(place, 'elsewhere')")


def test_a_crowd_that_is_full_admits_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "MEMBERS_MAX", 2)
    node = Node()
    for number in range(3):
        node.keep(f"v{number}", "campus/b1/2", n=number)
    assert all(admits(node, f"n = {number}") for number in range(3))


def test_clients_of_an_earlier_life_are_not_missed_while_they_come_back() -> None:
    node = Node()
    node.request(_open, "ann")
    node.keep("ann", "campus/b1/2", session="ann", n=7)
    node.wait(3_000_000)
    node.boot()
    node.run(1_000_000)
    assert admits(node, "n = 7")
    node.wait()
    assert not admits(node, "n = 7")


def test_a_context_outside_the_own_area_is_in_the_areas() -> None:
    node = Node(lenient=True)
    wanted = area_of(Filter.parse("within(place, 'elsewhere')"))
    own = node.feeding.areas
    assert not any(area.meets(wanted) for area in _local(own))
    node.keep("ann", "elsewhere/1")
    assert any(area.meets(wanted) for area in _local(own))


def test_what_another_node_serves_is_refused_with_its_address() -> None:
    node = Node()
    heard = node.feeding.directory
    heard.reset("b")
    entries = [
        NodeEntry("b", "http://b.example", ("campus",)),
        NodeEntry("c", "", ("campus/b3",)),
        NodeEntry("a", "", ("campus/b1",)),  # itself, as while the tree changes
    ]
    told = Directory()
    for entry in entries:
        told.put(entry.node, entry)
    told.reset("a")
    offer = told.offer("a")
    assert offer is not None
    heard.take("b", offer)
    for place, url in (("campus/b2", "http://b.example"), ("campus/b3/1", ""), ("hq", "")):
        answer = node.keep("ann", place)
        assert isinstance(answer, Failed)
        assert isinstance(answer.error, MovedError)
        assert answer.error.url == url
        read = MovedError.read(str(answer.error))
        assert read is not None
        assert read.url == url
    assert isinstance(node.keep("ann", "campus/b1/2"), Acknowledged)
    assert [(one.node, one.url) for one in node.feeding.nodes()] == [
        ("a", ""), ("b", "http://b.example"), ("c", ""),
    ]  # fmt: skip


def test_a_place_is_at_the_node_itself_then_at_who_names_it_then_at_who_serves_all() -> None:
    node = Node()
    heard, told = node.feeding.directory, Directory()
    heard.reset("b")
    for entry in (NodeEntry("all"), NodeEntry("b", places=("campus",))):
        told.put(entry.node, entry)
    told.reset("a")
    offer = told.offer("a")
    assert offer is not None
    assert node.feeding.node_at("hq") is None
    heard.take("b", offer)
    assert node.feeding.node_at("campus/b1/2") == "a"
    assert node.feeding.node_at("campus/b2") == "b"
    assert node.feeding.node_at("hq") == "all"


def test_the_past_stays_where_it_was_when_the_nodes_places_change() -> None:
    """Trap 7."""
    node = Node()
    node.keep("ann", "campus/b1/2")
    node.release("ann")
    node.places = ("campus/b2",)
    for _ in range(3):  # each restart but the first has the same places
        node.run(1_000)
        node.boot()
        wanted = area_of(Filter.parse("within(place, 'campus/b1')"))
        assert any(area.meets(wanted) for area in _local(node.feeding.areas))
        elsewhere = area_of(Filter.parse("within(place, 'campus/b3')"))
        assert not any(area.meets(elsewhere) for area in _local(node.feeding.areas))


def test_a_node_with_more_places_than_it_can_name_has_its_past_anywhere() -> None:
    node = Node()
    for number in range(PLACES_MAX + 2):
        node.places = (f"campus/c{number}",)
        node.boot()
        node.keep("ann", f"campus/c{number}/1")
        node.release("ann")
        node.run(1_000)
        assert node.feeding.occupancy()["former places"][0] <= PLACES_MAX
    for number in range(PLACES_MAX + 2):
        wanted = area_of(Filter.parse(f"within(place, 'campus/c{number}')"))
        assert any(area.meets(wanted) for area in _local(node.feeding.areas))


def test_a_day_on_which_nobody_was_there_is_not_asked_for() -> None:
    node = Node()
    node.keep("ann", "campus/b1/2")
    node.release("ann")
    node.run(3 * DAY_US)
    node.keep("bob", "campus/b1/2")
    node.release("bob")
    node.run(3 * DAY_US)
    for _ in range(2):
        days = [
            any(_on(number).meets(area) for area in _local(node.feeding.areas))
            for number in range(7)
        ]
        assert days == [True, False, False, True, False, True, True]  # yesterday always counts
        node.boot()


def test_who_lasts_over_an_outage_of_days_was_there_all_along() -> None:
    node = Node()
    node.keep("ann", "campus/b1/2")
    node.run(1_000)
    node.now += 3 * DAY_US
    node.boot()
    node.release("ann")
    node.run(3 * DAY_US)
    offered = _local(node.feeding.areas)
    days = [any(_on(number).meets(area) for area in offered) for number in range(5)]
    assert days == [True, True, True, True, False]


def test_days_with_rules_count_whoever_is_there() -> None:
    node = Node()
    node.rules("ann", STAFF)
    node.run(2 * DAY_US)
    node.rules("ann", None)
    node.run(4 * DAY_US)
    days = [
        any(_on(number).meets(area) for area in _local(node.feeding.areas)) for number in range(5)
    ]
    assert days == [True, True, True, False, False]


def _on(day: int) -> Area:
    """Everybody who began and ended at noon of a day."""
    noon = Node().now + day * DAY_US + DAY_US // 2
    return Area((Patch(begins=(noon, noon), ends=(noon, noon)),))


def test_the_places_of_old_are_written_again_when_the_disk_refuses_them() -> None:
    own = NodeEntry("a", places=("campus/b1",))
    feeding = TableFeeding(standard_tables(SETTINGS), own, SETTINGS)
    feeding.under(lambda _: True, dict)
    feeding.restore({}, 0)
    (write,) = feeding.advance(0)
    assert isinstance(write, Store)
    feeding.receive(StoreFailed(write.token, "full"), 0)
    assert not any(isinstance(one, Store) for one in feeding.advance(RETRY_US - 1))
    assert any(isinstance(one, Store) for one in feeding.advance(RETRY_US))


def test_the_places_of_old_are_on_disk_with_the_first_context() -> None:
    """0131: the disk may refuse them, and take the context."""
    node = Node()
    node.feeding._unwritten = True
    context = Context("ann", "campus/b1/2", None, {}, node.now)
    writes = [
        key
        for effect in node.broker.receive(PublishFor(1, "ann", context), node.now)
        if isinstance(effect, Store)
        for key, _ in effect.writes
    ]
    assert SERVED in writes


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    vids = st.sampled_from(("ann", "ben", "eve"))
    place = st.sampled_from(("campus/b1", "campus/b1/2", "campus/b1/2/7", "campus/b2/1"))
    step = st.one_of(
        st.tuples(st.just("keep"), vids, place, st.integers(0, 3)),
        st.tuples(st.just("rules"), vids, st.sampled_from((None, STAFF, COARSE, MINE, PUBLIC))),
        st.tuples(st.just("release"), vids),
        st.tuples(st.just("wait"), st.integers(1, 20_000_000)),
        st.tuples(st.just("boot")),
    )
    return draw(st.lists(step, max_size=12))


@settings(max_examples=40, deadline=None)
@given(histories(), st.sampled_from((PUBLIC, COARSE, STAFF)))
def test_nobody_whom_a_viewer_may_see_is_ever_refused(steps: Any, default: Any) -> None:
    """The oracle is what each viewer finds on the broker itself."""
    node = Node(rules=default, lenient=True)
    for name, *more in steps:
        if name == "keep":
            vid, place, number = more
            node.keep(vid, place, n=number)
        else:
            getattr(node, name)(*more)
        for viewer in VIEWERS:
            for seen in node.broker.find(viewer, Filter.parse("true"), node.now):
                where = "place IS NULL" if seen.place is None else f"place = '{seen.place}'"
                what = [f"{key} = {value}" for key, value in seen.attributes.items()]
                since = f"start_by(time, {_span(seen.t_r, seen.t_r)})"
                assert admits(node, " AND ".join((where, since, *what)))


def _open(ticket: int, session: str) -> Any:
    return OpenSession(ticket, session, Viewer(session))


def _span(first: int, last: int) -> str:
    return f"INTERVAL('{format_instant(first)}','{format_instant(last)}')"


def _local(areas: Any) -> list[Any]:
    return [areas_table._decode(areas._values[key]) for key in areas._local.values()]


SQUARE = "POLYGON ((11 48, 12 48, 12 49, 11 49, 11 48))"


def _at(point: tuple[float, float]) -> Area:
    return Area((Patch(boxes=((*point, *point),)),))


def test_a_point_outside_of_the_nodes_polygon_is_sent_to_the_node_that_serves_it() -> None:
    node = Node(places=(SQUARE,))
    directory = node.feeding.directory
    directory.reset("b")
    for number, entry in enumerate(
        (
            NodeEntry("wide", "http://wide", (), ("POLYGON ((0 0, 20 0, 20 60, 0 60, 0 0))",)),
            NodeEntry("near", "http://near", (), ("POLYGON ((9 48, 11 48, 11 49, 9 49, 9 48))",)),
            NodeEntry("named", "http://named", ("campus/b2",)),
        )
    ):
        other = Directory()
        other.reset("a")
        other.put("own", entry)
        offer = other.offer("a")
        assert offer is not None
        full = msgspec.structs.replace(offer, version=number + 1, full=number == 0)
        directory.take("b", full)
    check = node.feeding.check_place
    check(None, (11.5, 48.5))
    check("campus/b2", (11.5, 48.5))
    check("campus/b2", None)  # nobody can tell
    for place, point, url in (
        (None, (10.0, 48.5), "http://near"),
        (None, (1.0, 1.0), "http://wide"),
        ("campus/b2/1", (10.0, 48.5), "http://named"),
        (None, (100.0, 0.0), ""),
    ):
        with pytest.raises(MovedError) as moved:
            check(place, point)
        assert moved.value.url == url
    assert "POINT (100.0 0.0)" in str(moved.value)


def test_the_past_of_a_polygon_is_told_by_its_box() -> None:
    node = Node(places=("campus/b1", SQUARE))
    node.wait(3 * DAY_US)
    areas = _local(node.feeding.areas)
    assert any(area.meets(_at((11.5, 48.5))) for area in areas)
    only = [area for area in areas if area.patches[0].boxes is not None]
    assert only
    assert not any(area.meets(_at((13.0, 48.5))) for area in only)


def test_what_rules_hide_in_a_polygon_is_admitted_anywhere() -> None:
    node = Node(places=(SQUARE,))
    node.rules("zoe", STAFF)
    assert admits(node, "within(place, 'elsewhere')")
