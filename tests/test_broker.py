"""A broker's map under people's rules: queries, current sets and changes alike."""

import pytest

from roamcast.broker import Retired, SetRules
from roamcast.channels.client.copy import Changed
from roamcast.channels.client.publications import PublishContext
from roamcast.channels.server.contexts import ClockDue
from roamcast.channels.server.settings import MapSettings
from roamcast.errors import LimitError
from roamcast.identity.policy import VIEW_CLASSES_MAX, RulesPolicy
from roamcast.identity.rules import Hours, Rule, Viewer, visible
from roamcast.model.contexts import Context
from roamcast.model.machine import Store, Stored
from roamcast.model.records import Drop
from tests.strategies_hub import Desk
from tests.strategies_map import SECOND, MapWorld

RULES = {
    "ann": (
        Rule(viewers=("staff",), precision="room"),
        Rule(viewers=("*",), precision="building", attributes=("type",)),
    ),
    "bob": (Rule(viewers=("staff",), precision="room"),),
    "eve": (),
}
GROUPS = {"colleague": frozenset({"staff"})}
QUERY = "within(place, 'campus')"


def policy() -> RulesPolicy:
    return RulesPolicy(
        lambda vid: RULES[vid], lambda client: Viewer(client, GROUPS.get(client, frozenset()))
    )


def world() -> MapWorld:
    made = MapWorld(MapSettings(subscribers_min=1), policy=policy())
    made.client("agent")
    for vid in RULES:
        made.put("agent", vid, "campus/b35/2/2104", type="person", phone=1)
    made.run(1)
    return made


def test_each_sees_in_the_current_set_and_in_changes_what_rules_allow() -> None:
    made = world()
    for name in ("colleague", "visitor"):
        made.client(name)
        made.watch(name, QUERY)
    made.run(1)
    assert made.sees("colleague") == {"ann": "campus/b35/2/2104", "bob": "campus/b35/2/2104"}
    assert made.sees("visitor") == {"ann": "campus/b35"}
    for vid in RULES:
        made.put("agent", vid, "campus/b36/1/1001", type="person", phone=1)
    made.run(1)
    assert made.sees("colleague") == {"ann": "campus/b36/1/1001", "bob": "campus/b36/1/1001"}
    assert made.sees("visitor") == {"ann": "campus/b36"}
    shown = made.machine("visitor").watching.copy.shown("s")["ann"]
    assert shown.attributes == {"type": "person"}


def test_a_view_changes_when_an_hour_begins_or_ends_though_nobody_moves() -> None:
    office = Hours(start_min=1, end_min=3)
    rules = {
        "ann": (
            Rule(viewers=("staff",), precision="room"),
            Rule(viewers=("*",), precision="building", hours=office),
        ),
        "bob": (
            Rule(viewers=("*",), precision="building"),
            Rule(viewers=("*",), precision="hidden", hours=Hours(start_min=2, end_min=3)),
        ),
    }
    made = MapWorld(
        MapSettings(subscribers_min=1),
        policy=RulesPolicy(
            lambda vid: rules[vid],
            lambda client: Viewer(client, GROUPS.get(client, frozenset())),
        ),
    )
    made.client("agent")
    for vid in rules:
        made.put("agent", vid, "campus/b35/2/2104")
    for name in ("colleague", "visitor"):
        made.client(name)
        made.watch(name, QUERY)
    seen = []
    for seconds in (50, 11, 58, 2, 58, 2):  # 50, 61, 119, 121, 179 and 181 s after midnight
        made.run(seconds)
        seen.append((made.world.now // SECOND, "".join(sorted(made.sees("visitor")))))
    alone, both = "bob", "annbob"
    assert seen == [(50, alone), (61, both), (119, both), (121, "ann"), (179, "ann"), (181, alone)]
    told = [one.context.place for one in made.told_to("colleague", Changed)]
    assert told == []  # for whom nothing changed nothing was said
    for vid in rules:
        made.cancel("agent", vid)
    made.run(2)
    timers = made.server.desk.timers
    assert not any(isinstance(timer, ClockDue) for timer in timers.due(1 << 60))


def test_a_context_that_begins_later_is_shown_when_it_begins() -> None:
    made = world()
    made.client("visitor")
    made.watch("visitor", QUERY)
    made.run(1)
    later = Context("ann", "campus/b36/1/1001", None, {}, made.world.now + 5 * SECOND)
    made.world.give(made.world.hosts["agent"], PublishContext(later))
    made.run(3)
    assert made.sees("visitor") == {}
    made.run(4)
    assert made.sees("visitor") == {"ann": "campus/b36"}


def test_a_filter_on_what_is_hidden_finds_nothing_and_tells_nothing() -> None:
    made = world()
    made.client("visitor")
    made.watch("visitor", "phone = 1", "phone")
    made.watch("visitor", "place = 'campus/b35/2/2104'", "room")
    made.watch("visitor", "vid = 'bob'", "bob")
    made.run(1)
    for name in ("phone", "room", "bob"):
        assert made.sees("visitor", name) == {}


def test_two_who_may_see_the_same_share_a_class_and_one_who_is_named_has_its_own() -> None:
    apart = RulesPolicy(
        lambda _: (),
        lambda client: Viewer(client, frozenset({"staff"})),
        names=lambda name: name == "carl",
    )
    assert apart.view_class("ann") == apart.view_class("bob")
    assert apart.view_class("carl") != apart.view_class("ann")


@pytest.mark.limit("broker.view_classes_max")
def test_at_the_limit_of_view_classes_one_more_is_refused() -> None:
    many = RulesPolicy(lambda _: (), lambda client: Viewer(client, frozenset({client})))
    for number in range(VIEW_CLASSES_MAX):
        many.view_class(f"c{number}")
    with pytest.raises(LimitError):
        many.view_class("one more")


def test_the_policy_is_the_rules_own_answer() -> None:
    context = Context("ann", "campus/b35/2/2104", None, {"type": "person"}, 5)
    asked = policy()
    assert asked.visible(context, asked.view_class("visitor"), 9) == visible(
        context, RULES["ann"], Viewer("visitor"), 9
    )


def test_a_client_beyond_the_view_classes_is_dropped_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("roamcast.identity.policy.VIEW_CLASSES_MAX", 1)
    made = MapWorld(
        policy=RulesPolicy(lambda _: (), lambda client: Viewer(client, frozenset({client})))
    )
    made.client("first")
    made.run(1)
    made.client("second")
    made.run(1)
    assert list(made.server.desk.clients) == ["first"]
    reasons = [record.reason for _, _, record in made.records if isinstance(record, Drop)]
    assert any("view classes" in reason for reason in reasons)


def test_a_viewer_named_for_the_first_time_loses_the_keys_it_had() -> None:
    desk = Desk()
    broker = desk.broker
    shared = desk.admit("eve#1", Viewer("eve"))
    assert desk.admit("bob#1", Viewer("bob")) == shared
    assert not desk.retired
    desk.keep("ann", "hq/2")
    desk.open("eve#ws", Viewer("eve"))
    desk.watch("eve#ws", "within(place, 'hq')")
    assert desk.sees("eve#ws") == {"ann": "hq/2"}
    hidden = (
        Rule(viewers=("*",), precision="exact"),
        Rule(viewers=("eve",), precision="hidden"),
    )
    effects = list(broker.receive(SetRules(1, "ann", "ann", hidden), desk.now))
    assert isinstance(effects[0], Store)
    effects = list(broker.receive(Stored(effects[0].token), desk.now))
    assert Retired(shared) in effects
    desk.carry(effects)
    assert desk.sees("eve#ws") == {}
    apart = desk.admit("eve#1", Viewer("eve"))
    others = desk.admit("bob#1", Viewer("bob"))
    assert len({shared, apart, others}) == 3
    assert broker.get(Viewer("eve"), "ann", desk.now) is None
    assert broker.get(Viewer("bob"), "ann", desk.now) is not None


def test_whose_keys_are_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roamcast.broker.KEYED_MAX", 2)
    desk = Desk()
    broker = desk.broker
    first = desk.admit("a#1", Viewer("a"))
    assert desk.admit("b#1", Viewer("b")) == first
    later = desk.admit("c#1", Viewer("c"))
    assert desk.retired == [first]
    assert later != first
    for client in ("a#1", "b#1", "c#1"):
        desk.dismiss(client)
    assert not broker._admission.viewers
