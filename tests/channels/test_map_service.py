"""The active map service as its paper tells it (AMS 1–5, 8–12)."""

import pytest

from roamcast.channels.client.copy import Appeared, Changed, Left
from roamcast.channels.client.watching import Current, Cut, Refusal
from roamcast.channels.server.contexts import ActiveMap
from roamcast.channels.server.map_server import MapServer
from roamcast.channels.server.messages import (
    Batch,
    Hello,
    Publish,
    Refused,
    Request,
    Subscribe,
    Unpublish,
    parcel_of,
)
from roamcast.channels.server.settings import MapSettings, Mode
from roamcast.model.contexts import Context, body_of
from roamcast.model.events import ClientsMoved
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Multicast, Received, Send
from roamcast.model.records import Record, UpdateMatched
from roamcast.model.templates import STANDARD
from roamcast.sim.network import LinkQuality
from roamcast.sim.network import NetworkCut as Partition
from roamcast.sim.workloads._map_parts import ScanMatcher
from roamcast.sim.workloads._relay_parts import Rights
from tests.strategies_map import MapWorld, updates

PEOPLE = "type = 'person'"


def at(place: str) -> str:
    return STANDARD["at"].fill({"place": place}).text


def test_the_papers_walk_through_u_leaves_l1_and_enters_l2_while_u1_u2_u3_watch() -> None:
    world = MapWorld()
    for name, place in (("U", "l1"), ("U1", "l1"), ("U2", "l2"), ("U3", "l2")):
        world.client(name)
        world.put(name, name, place)
        world.watch(name, at(place), "here")
    world.run(2)
    assert world.sees("U1", "here") == {"U": "l1", "U1": "l1"}
    world.forget()
    world.cancel("U", "U")
    world.unwatch("U", "here")
    world.put("U", "U", "l2")
    world.watch("U", at("l2"), "here")
    world.run(2)
    assert [effect.vid for effect in world.told_to("U1", Left)] == ["U"]
    for watcher in ("U2", "U3"):
        assert [effect.context.vid for effect in world.told_to(watcher, Appeared)] == ["U"]
        assert world.told_to(watcher, Left) == []
    assert world.told_to("U1", Appeared) == []
    assert world.sees("U", "here") == {"U": "l2", "U2": "l2", "U3": "l2"}


@pytest.mark.parametrize("mode", list(Mode))
def test_the_meeting_everyone_sees_everyone_whatever_the_mode(mode: Mode) -> None:
    world = MapWorld(MapSettings(mode=mode), quality=LinkQuality(loss=0.1, jitter_us=3_000))
    people = [f"p{number}" for number in range(12)]
    for name in people:
        world.client(name)
        world.put(name, name, f"office-{name}")
        world.watch(name, at("auditorium"))
        world.run(0.05)
    world.run(1)
    world.forget()
    for name in people:
        world.put(name, name, "auditorium")
        world.run(0.2)
    world.run(5)
    for name in people:
        assert world.sees(name) == dict.fromkeys(sorted(people), "auditorium")
        shown = [effect.context.vid for effect in world.told_to(name, Appeared)]
        assert sorted(shown) == sorted(people)  # nobody twice
    sent = len(world.sent(updates))
    if mode is Mode.UNICAST:
        assert sent >= len(people) ** 2
    else:
        assert sent <= 2 * len(people)


def test_the_legal_department_two_queries_that_always_match_together_share_one_message() -> None:
    world = MapWorld(MapSettings(subscribers_min=2))
    legal = "type = 'person' AND department = 'legal'"
    for name, text in (("a", PEOPLE), ("b", PEOPLE), ("c", legal), ("d", legal)):
        world.client(name)
        world.watch(name, text)
    world.client("mover")
    world.run(2)
    places = ("r1", "r2", "r3", "r4")
    per_update = []
    for place in places:
        world.forget()
        world.put("mover", "m", place, type="person", department="legal")
        world.run(1)
        per_update.append(len(world.sent(updates)))
    # Two queries, each with its channel; the second time the set gets one, announced on theirs.
    assert per_update == [2, 2, 1, 1]
    assert all(world.sees(name) == {"m": "r4"} for name in "abcd")


def test_the_qth_subscriber_earns_a_channel_and_it_is_given_back_with_hysteresis() -> None:
    world = MapWorld(MapSettings(subscribers_min=4, linger_us=500_000))
    names = [f"c{number}" for number in range(4)]
    for name in names:
        world.client(name)
        world.watch(name, PEOPLE)
        world.run(1)
        used = len(world.server.desk.channels)
        assert used == (1 if name == names[-1] else 0)
    for left, name in enumerate(names, 1):
        world.unwatch(name)
        world.run(2)
        assert len(world.server.desk.channels) == (1 if len(names) - left >= 2 else 0)
    assert world.server.subscriptions.records == 0


def test_a_subscriber_that_comes_later_is_told_of_the_channels_of_its_query_and_its_sets() -> None:
    world = MapWorld(MapSettings(subscribers_min=1))
    for name, text in (("a", PEOPLE), ("b", "within(place, 'lab')")):
        world.client(name)
        world.watch(name, text)
    world.client("mover")
    world.run(1)
    for number in range(3):
        world.put("mover", "m", f"lab/{number}", type="person")
        world.run(1)
    world.client("late")
    world.watch("late", PEOPLE)
    world.run(1)
    world.forget()
    world.put("mover", "m", "lab/9", type="person")
    world.run(1)
    assert len(world.sent(updates)) == 1
    assert world.sees("late") == {"m": "lab/9"}


def test_a_client_that_missed_the_announcement_gets_everything_sent_on_the_new_channel() -> None:
    world = MapWorld(MapSettings(subscribers_min=2))
    for name, text in (("a", PEOPLE), ("b", PEOPLE), ("c", "kind = 1"), ("d", "kind = 1")):
        world.client(name)
        world.watch(name, text)
    world.client("mover")
    world.run(2)
    world.put("mover", "m", "r0", type="person", kind=1)
    world.run(1)
    cut = Partition(frozenset({"a"}))
    world.world.network.cut(cut)  # the announcement and two updates on the new channel pass by
    for number in (1, 2, 3):
        world.put("mover", "m", f"r{number}", type="person", kind=1)
        world.run(0.1)
    world.world.network.mend(cut)
    world.forget()
    world.run(4)
    states = [effect.context.place for effect in world.told_to("a", Changed)]
    assert states == ["r1", "r2", "r3"]
    assert world.sees("a") == {"m": "r3"}


def test_without_a_journal_the_same_is_sent_and_nothing_explained() -> None:
    sent: dict[bool, list[Effect]] = {}
    explained: dict[bool, set[str]] = {}
    for journal in (True, False):
        settings = MapSettings(subscribers_min=1)
        server = MapServer(
            "s", epoch=1, now=0, settings=settings, make_matcher=ScanMatcher, journal=journal
        )
        effects: list[Effect] = []
        said = (Hello(), Subscribe("a", PEOPLE), Subscribe("b", at("l2")))
        effects += server.receive(Received("c", Request(1, 1, 1, said)), 1)
        for number in range(4, 10):
            context = Context("v", f"l{number % 3}", None, {"type": "person"}, number)
            put = Publish(body_of(context), number)
            effects += server.receive(Received("c", Request(1, 1, number, (put,))), number)
        sent[journal] = [one for one in effects if isinstance(one, Send | Multicast)]
        explained[journal] = {type(one).__name__ for one in effects if isinstance(one, Record)}
    assert sent[True] == sent[False]
    assert any(isinstance(one, Multicast) for one in sent[True])
    assert explained[True] - explained[False] >= {"UpdateMatched", "QuerySet", "ContextChanged"}


def test_parts_of_a_disjunction_bring_an_object_once() -> None:
    world = MapWorld(MapSettings(subscribers_min=1))
    world.client("a")
    world.watch("a", f"place = 'l1' OR {PEOPLE} OR place = 'l2'")
    world.client("b")
    world.watch("b", "place = 'l1'")
    world.run(1)
    assert world.server.subscriptions.records == 3
    world.client("mover")
    for place in ("l1", "l2", "l3"):
        world.put("mover", "m", place, type="person")
        world.run(1)
    kinds = [type(effect) for effect in world.told_to("a", Appeared)]
    assert kinds == [Appeared]
    assert len(world.told_to("a", Changed)) == 2


def test_every_query_kind_is_answered_once_and_standing() -> None:
    active = ActiveMap(10)
    active.put(Context("u", "lab/1/a", (8.0, 47.0), {"type": "person"}), b"", 1, "x")
    active.put(Context("v", "lab/1/b", (8.1, 47.0), {"type": "printer"}), b"", 1, "x")
    active.put(Context("w", "lab/2/a", (8.2, 47.0), {"type": "printer"}), b"", 1, "x")
    found = {
        "place = 'lab/1/a'": ["u"],
        "within(place, 'lab/1')": ["u", "v"],
        "vid = 'w'": ["w"],
        "vid = 'u' OR vid >= 'w'": ["u", "w"],
        "type = 'printer'": ["v", "w"],
        "type = 'printer' AND within(place, 'lab/1')": ["v"],
    }
    for text, vids in found.items():
        assert [one.vid for one in active.find(Filter.parse(text))] == vids
    near = active.nearest((8.01, 47.0), Filter.parse("type = 'printer'"))
    assert [one.context.vid for one in near] == ["v"]


def test_a_slow_client_gets_the_latest_state_of_each_object_and_nobody_else_waits() -> None:
    world = MapWorld(MapSettings(mode=Mode.UNICAST))
    for name in ("slow", "quick"):
        world.client(name)
        world.watch(name, PEOPLE)
    world.client("mover")
    world.run(1)
    cut = Partition(frozenset({"slow"}), outwards=False)  # it is heard, and hears nothing
    world.world.network.cut(cut)
    for number in range(20):
        world.put("mover", "m", f"r{number}", type="person")
        world.run(0.05)
    world.world.network.mend(cut)
    world.forget()
    world.run(5)
    assert world.sees("slow") == world.sees("quick") == {"m": "r19"}
    assert len(world.told_to("slow", Changed)) + len(world.told_to("slow", Appeared)) <= 2


def test_a_client_too_slow_for_its_queue_is_told_and_dropped() -> None:
    world = MapWorld(MapSettings(mode=Mode.UNICAST, outbox_items_max=8))
    world.client("slow")
    world.watch("slow", PEOPLE)
    world.client("mover")
    world.run(1)
    cut = Partition(frozenset({"slow"}), outwards=False)
    world.world.network.cut(cut)
    for number in range(20):
        world.put("mover", f"m{number}", "r", type="person")
        world.run(0.05)
    assert world.server.desk.clients["slow"].subscriptions == {}
    world.world.network.mend(cut)
    world.run(5)
    assert [effect.reason for effect in world.told_to("slow", Cut)]
    world.watch("slow", "vid = 'm3'")  # and may ask again
    world.run(3)
    assert world.sees("slow") == {"m3": "r"}


def test_a_client_that_is_gone_is_collected_with_its_objects_and_subscriptions() -> None:
    world = MapWorld()
    for name in ("stays", "goes"):
        world.client(name)
        world.put(name, name, "l1")
        world.watch(name, at("l1"))
    world.run(1)
    world.world.crash(world.world.hosts["goes"])
    world.run(8)
    assert world.sees("stays") == {"stays": "l1"}
    assert list(world.server.desk.clients) == ["stays"]


def test_a_large_current_set_goes_round_once_for_all_newcomers() -> None:
    settings = MapSettings(page_contexts_max=50, page_bytes_max=2_000)
    world = MapWorld(settings, quality=LinkQuality(loss=0.05))
    world.client("publisher")
    for number in range(400):
        world.put("publisher", f"o{number:03}", "hall", type="person", note="x" * 60)
    world.run(3)
    world.forget()
    newcomers = [f"n{number}" for number in range(10)]
    for name in newcomers:
        world.client(name)
        world.watch(name, at("hall"))
    world.run(0.1)
    world.put("publisher", "o007", "elsewhere")
    world.cancel("publisher", "o123")
    world.run(8)
    expected = {f"o{number:03}": "hall" for number in range(400) if number not in (7, 123)}
    for name in newcomers:
        assert world.sees(name) == expected
        assert world.told_to(name, Current)[-1].complete
        shown = [effect.context.vid for effect in world.told_to(name, Appeared)]
        assert len(shown) == len(set(shown))
    everything = 400 * 110
    sent = sum(record.bytes for record in world.sent())
    assert sent < 6 * everything  # against ten times for ten newcomers, one by one
    assert world.server.subscriptions.carousels == {}


@pytest.mark.parametrize("later", ["z{}", "a{}"])
def test_who_comes_in_the_middle_of_a_cycle_hears_of_what_entered_during_it(later: str) -> None:
    settings = MapSettings(page_contexts_max=10, page_bytes_max=600, carousel_bytes_per_s=4_000)
    world = MapWorld(settings)
    world.client("publisher")
    for number in range(100):
        world.put("publisher", f"o{number:03}", "hall", note="x" * 60)
    world.run(2)
    world.client("first")
    world.watch("first", at("hall"))
    entered = []
    for number in range(12):  # each asks a moment after another object came
        world.put("publisher", later.format(number), "hall")
        entered.append(later.format(number))
        world.run(0.2)
        world.client(f"n{number}")
        world.watch(f"n{number}", at("hall"))
        world.run(0.3)
    world.run(20)
    expected = {f"o{number:03}" for number in range(100)} | set(entered)
    for name in ("first", *(f"n{number}" for number in range(12))):
        assert set(world.sees(name)) == expected
        assert world.told_to(name, Current)[-1].complete
    assert world.server.subscriptions.carousels == {}


def test_refused_filters_are_told_and_change_nothing() -> None:
    world = MapWorld(MapSettings(subscriptions_max=1))
    world.client("a")
    world.watch("a", PEOPLE, "first")
    world.watch("a", "place = 'l1'", "second")
    world.run(1)
    assert [effect.name for effect in world.told_to("a", Refusal)] == ["second"]
    assert world.server.subscriptions.records == 1


@pytest.mark.parametrize(
    ("setting", "reason"),
    [("contexts_max", "contexts"), ("publications_max", "publishes"), ("queries_max", "queries")],
)
def test_at_each_limit_one_more_is_refused_with_a_reason(setting: str, reason: str) -> None:
    world = MapWorld(MapSettings(**{setting: 2}))
    world.client("a")
    for number in range(3):
        world.put("a", f"o{number}", "l1")
        world.watch("a", f"place = 'l{number}'", f"s{number}")
    world.run(2)
    refusals = world.told_to("a", Refusal)
    assert len(refusals) == 1
    assert reason in refusals[0].reason
    assert len(world.server.map) <= 3
    assert world.server.subscriptions.records <= 3


def test_when_no_channel_is_free_queries_are_served_one_by_one() -> None:
    world = MapWorld(MapSettings(subscribers_min=1, channels_max=1))
    for name, text in (("a", "place = 'l1'"), ("b", "place = 'l2'")):
        world.client(name)
        world.watch(name, text)
    world.client("mover")
    world.run(1)
    for place in ("l1", "l2", "l1"):
        world.put("mover", "m", place)
        world.run(1)
    assert world.sees("a") == {"m": "l1"}
    assert world.sees("b") == {}
    assert len(world.server.desk.channels) == 1


@pytest.mark.parametrize("what", ["stamp", "t_r", "cancel"])
def test_what_is_so_since_the_future_is_refused_beyond_the_limit(what: str) -> None:
    server, now, ahead = (
        MapServer("server", epoch=1, now=0, settings=MapSettings()),
        10**9,
        60 * 10**6,
    )
    given = Publish(body_of(Context("m", "hall", None, {}, now)), now)
    server.receive(Received("c", Request(1, 1, 1, (Hello(), given))), now)

    def say(number: int, instant: int) -> list[Refused]:
        operation: Publish | Unpublish = Unpublish("m", instant)
        if what != "cancel":
            stamp, t_r = (instant, now) if what == "stamp" else (now + number, instant)
            operation = Publish(body_of(Context("m", "hall", None, {"n": number}, t_r)), stamp)
        effects = server.receive(Received("c", Request(1, 1, number, (operation,))), now)
        batches = [one.message for one in effects if isinstance(one, Send)]
        items = [parcel_of(one.payload).items for one in batches if isinstance(one, Batch)]
        return [item for one in items for item in one if isinstance(item, Refused)]

    (refused,) = say(3, now + ahead + 1)
    assert refused.reason == "the stamp lies 60 s ahead: set this machine's clock"
    assert server.map.stamp("m") == now
    assert say(4, now + ahead) == []
    assert server.map.stamp("m") > now


@pytest.mark.parametrize("page", [1, 256])
def test_who_is_moved_to_another_class_sees_its_states_of_the_same_updates(page: int) -> None:
    rights = Rights()
    world = MapWorld(MapSettings(page_contexts_max=page, page_bytes_max=300), policy=rights)
    for name in ("a", "publisher"):
        world.client(name)
    world.watch("a", "within(place, 'lab')")
    rights.limited.add("a")
    world.run(1)
    for number in range(5):
        world.put("publisher", f"v{number}", "lab/1", private=False)
    world.run(1)
    for number in range(5):
        world.put("publisher", f"v{number}", "lab/1", private=number < 3)
    world.run(1)
    assert list(world.sees("a")) == ["v3", "v4"]
    for limited in (False, True, False):  # no context changes meanwhile
        (rights.limited.add if limited else rights.limited.discard)("a")
        world.world.kernel.give(world.world.now, world.world.hosts["server"], ClientsMoved(("a",)))
        world.run(5)
        assert len(world.sees("a")) == (2 if limited else 5)


def test_the_journal_says_at_which_place_an_update_was() -> None:
    server = MapServer("s", epoch=1, now=0, settings=MapSettings(), make_matcher=ScanMatcher)
    put = Publish(body_of(Context("v", "l1", None, {}, 1)), 1)
    effects = server.receive(Received("c", Request(1, 1, 1, (Hello(), put))), 1)
    assert [one.place for one in effects if isinstance(one, UpdateMatched)] == ["l1"]
