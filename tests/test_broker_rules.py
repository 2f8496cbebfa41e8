"""Rules of others: nobody decides what is seen of somebody else, and nobody disturbs by rules."""

import pytest

from roamcast.broker import Acknowledged, Failed, PublishFor, SetRules
from roamcast.channels.client.publications import PublishContext
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.sessions.publications import PublicationSettings
from roamcast.errors import ConflictError, LimitError
from roamcast.identity import policy
from roamcast.identity.policy import RuleBook
from roamcast.identity.rules import Rule, Viewer
from roamcast.model.contexts import Context
from roamcast.model.machine import Effect, Store, StoreFailed
from tests.strategies_hub import Desk
from tests.strategies_map import MapWorld

EXACT = (Rule(viewers=("*",), precision="exact"),)
SECOND = 1_000_000


def naming(*viewers: str) -> tuple[Rule, ...]:
    return (Rule(viewers=viewers, precision="exact"),)


def refused(answer: Effect) -> type[Exception]:
    assert isinstance(answer, Failed), answer
    return type(answer.error)


def test_who_set_the_rules_of_a_free_vid_does_not_expose_who_publishes_there_later() -> None:
    desk = Desk()
    desk.keep("ada", "hq/2", "ada", lifetime_us=SECOND)
    assert refused(desk.rules("ada", EXACT, "mallory")) is ConflictError
    desk.run(2 * SECOND)
    assert refused(desk.rules("ada", EXACT, "mallory")) is ConflictError  # it stays hers (0090)
    assert isinstance(desk.rules("free", EXACT, "mallory"), Acknowledged)
    for _ in range(2):
        assert refused(desk.keep("free", "hq/2", "ada")) is ConflictError
        desk.boot()  # nor after a restart
    desk.rules("free", None, "mallory")
    assert isinstance(desk.keep("free", "hq/2", "ada"), Acknowledged)


def test_nobody_publishes_under_a_vid_whose_rules_are_ones_own() -> None:
    desk = Desk()
    desk.rules("ada", naming("bob"), "ada")
    assert refused(desk.keep("ada", "hq/2", "mallory")) is ConflictError
    assert isinstance(desk.keep("ada", "hq/2", "ada"), Acknowledged)


def test_rules_that_an_operator_sets_for_others_are_in_nobodys_way() -> None:
    desk = Desk()
    desk.rules("ada", naming("bob"), "operator", any_owner=True)
    for _ in range(2):
        assert isinstance(desk.keep("ada", "hq/2", "ada"), Acknowledged)
        assert refused(desk.rules("ada", EXACT, "ada")) is ConflictError
        assert desk.broker.get(Viewer("mallory"), "ada", desk.now) is None
        desk.boot()
    desk.rules("own", naming("bob"), "ada")
    desk.rules("own", EXACT, "operator", any_owner=True)  # they stay hers
    assert isinstance(desk.rules("own", naming("eve"), "ada"), Acknowledged)
    assert refused(desk.keep("own", "hq/2", "bob")) is ConflictError


@pytest.mark.parametrize("first", ["rules", "object"])
def test_a_vid_is_ones_own_while_the_write_is_still_on_its_way(first: str) -> None:
    desk = Desk()
    receive, now = desk.broker.receive, desk.now
    context = Context("x", "hq/2", None, {}, now)
    asked = [PublishFor(1, "ada", context), SetRules(1, "ada", "x", EXACT)]
    others = [SetRules(2, "mallory", "x", EXACT), PublishFor(2, "mallory", context)]
    (write,) = receive(asked[first == "rules"], now)
    assert isinstance(write, Store)
    for other in others:
        (answer,) = receive(other, now)
        assert refused(answer) is ConflictError
    assert not any(isinstance(one, Failed) for one in receive(asked[first == "object"], now))
    receive(StoreFailed(write.token, "full"), now)
    receive(StoreFailed(write.token + 1, "full"), now)
    (answer,) = receive(others[0], now)
    assert isinstance(answer, Store)


def test_a_client_on_a_link_is_refused_under_a_vid_with_others_rules() -> None:
    made = MapWorld(MapSettings(subscribers_min=1))
    made.client("watcher")
    made.watch("watcher", "within(place, 'hq')")
    made.client("mallory#1")
    made.client("ada#1")
    made.server.contexts.publishers = {"ada": "ada"}
    made.server.contexts._policy.may_take = (  # type: ignore[method-assign]
        lambda client, owner: client.partition("#")[0] == owner.partition("#")[0]
    )
    for name, place in (("mallory#1", "hq/1"), ("ada#1", "hq/2"), ("mallory#1", "hq/3")):
        context = Context("ada", place, None, {}, made.world.now)
        made.world.give(made.world.hosts[name], PublishContext(context))
        made.run(1)
    assert made.sees("watcher", "s") == {"ada": "hq/2"}


def test_one_owner_sets_the_rules_of_so_many_vids_and_of_no_more() -> None:
    desk = Desk(publications=PublicationSettings(publications_per_owner_max=3))
    for number in range(3):
        assert isinstance(desk.rules(f"v{number}", EXACT), Acknowledged)
    for _ in range(2):
        assert refused(desk.rules("v3", EXACT)) is LimitError
        assert isinstance(desk.rules("v2", naming("bob")), Acknowledged)
        assert isinstance(desk.rules("other", EXACT, "bob"), Acknowledged)
        desk.boot()
    desk.rules("v0", None)
    assert isinstance(desk.rules("v3", EXACT), Acknowledged)
    value = desk.disk["rules/v3"]
    desk.adopt(("rules/v3", None), ("rules/v4", value), ("rules/v4", value))
    assert refused(desk.rules("v5", EXACT)) is LimitError


def test_who_is_named_again_and_again_costs_the_others_their_keys_once() -> None:
    desk = Desk()
    shared = desk.admit("eve#1", Viewer("eve"))
    desk.open("eve#ws", Viewer("eve"))
    for _ in range(3):
        desk.rules("x", naming("eve"))
        assert desk.retired == [shared]
        apart = desk.admit("eve#1", Viewer("eve"))
        assert apart != shared
        assert desk.broker._hub.sessions["eve#ws"].view_class == shared  # it has no key
        assert desk.admit("bob#1", Viewer("bob")) not in (shared, apart)
        desk.rules("x", None)
    desk.rules("x", naming("bob", "eve"))
    assert len(desk.retired) == 2


def test_many_who_are_named_at_once_end_a_class_once() -> None:
    desk = Desk()
    names = [f"v{number}" for number in range(20)]
    shared = {desk.admit(f"{name}#1", Viewer(name)) for name in names}
    desk.rules("x", naming(*names))
    assert desk.retired == [*shared]
    assert len({desk.admit(f"{name}#1", Viewer(name)) for name in names}) == 20


def test_how_many_stay_told_apart_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "APART_MAX", 2)
    book = RuleBook()
    for name in "abc":
        book.keep_apart(name)
    assert [book.names(name) for name in "abc"] == [False, True, True]
    assert book.set("x", naming("a", "b", "*")) == ["a"]
    assert book.set("x", naming("a", "b")) == []
    assert book.set("x", None) == []
    assert [book.names(name) for name in "abc"] == [False, True, True]


def test_classes_that_nobody_is_in_any_more_make_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("roamcast.identity.policy.VIEW_CLASSES_MAX", 4)
    desk = Desk()
    desk.keep("ann", "hq/1")
    names = set()
    for number in range(12):
        session = f"s{number}"
        desk.open(session, Viewer("", frozenset({f"g{number % 6}"})))
        desk.watch(session, "within(place, 'hq')")
        desk.keep("ann", f"hq/{number}")
        assert desk.sees(session) == {"ann": f"hq/{number}"}
        view = desk.broker._server.dissemination.classes[f"\ng{number % 6}"]
        names.add(view.pool.take())
        view.pool.give_back()
        desk.close(session)
    assert len(names) == 12  # no channel's name comes again
    assert len(desk.broker._server.dissemination.classes) <= 4
    known = desk.broker._server.map.contexts["ann"]
    assert len(known.views) <= 4
    for number in range(4):
        desk.open(f"t{number}", Viewer("", frozenset({f"h{number}"})))
    with pytest.raises(LimitError, match="view classes"):
        desk.open("t4", Viewer("", frozenset({"h4"})))


def test_sessions_that_rules_name_need_no_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roamcast.identity.policy.VIEW_CLASSES_MAX", 1)
    desk = Desk()
    desk.open("eve#1", Viewer("eve"))
    desk.open("sam#1", Viewer("sam"))
    for name in ("eve#1", "sam#1"):
        desk.watch(name, "within(place, 'hq')")
    hides = (*EXACT, Rule(viewers=("eve",), precision="hidden"))
    assert isinstance(desk.rules("ann", hides), Acknowledged)
    desk.keep("ann", "hq/1")
    assert desk.sees("eve#1") == {}
    assert desk.sees("sam#1") == {"ann": "hq/1"}


def test_a_group_that_is_called_as_a_class_is_counted_is_none_of_it() -> None:
    desk = Desk()
    desk.admit("eve#1", Viewer("eve"))
    desk.rules("x", naming("eve"))
    everyone = desk.admit("bob#1", Viewer("bob"))
    assert desk.admit("sam#1", Viewer("sam", frozenset({"~1"}))) != everyone
