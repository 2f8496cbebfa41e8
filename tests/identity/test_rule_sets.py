"""Who sets the rules of which vid, by the part alone."""

from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import ConflictError, LimitError, RoamcastError
from roamcast.identity.policy import PUBLIC, RuleBook
from roamcast.identity.rule_sets import RuleSets, SetRules
from roamcast.identity.rules import Hours, Rule
from roamcast.model.events import Failed
from roamcast.model.machine import Entry, Store, Stored, StoreFailed

DAY = 86_400_000_000
EVERYBODY = (Rule(viewers=("*",), precision="exact"),)
SAID = st.tuples(
    st.sampled_from(("ada", "bob", "op")),
    st.sampled_from("uvw"),
    st.sampled_from((None, (), EVERYBODY)),
    st.booleans(),
)


def rule_sets() -> RuleSets:
    return RuleSets(RuleBook(PUBLIC), 9, 5, lambda _vid, _owner: None)


def test_nothing_is_held_at_first() -> None:
    assert rule_sets().occupancy()["sets of one owner"] == (0, 9)


def test_rules_that_are_wrong_are_refused_before_anything_is_stored() -> None:
    made = rule_sets()
    nameless = (Rule(viewers=("",), precision="exact"),)
    backwards = (Rule(viewers=("ada",), precision="exact", hours=Hours(start_min=60, end_min=30)),)
    for wrong in (nameless, backwards):
        (effect,) = made.receive(SetRules(1, "ada", "v", wrong), 0)
        assert isinstance(effect, Failed)
        assert isinstance(effect.error, RoamcastError)
    (effect,) = made.receive(SetRules(2, "ada", "v", ()), 0)
    assert isinstance(effect, Store)


def test_one_owner_sets_the_rules_of_so_many_vids() -> None:
    made = RuleSets(RuleBook(PUBLIC), 1, 5, lambda _vid, _owner: None)
    (first,) = made.receive(SetRules(1, "ada", "u", ()), 0)
    assert isinstance(first, Store)
    made.receive(Stored(first.token), 0)
    (beyond,) = made.receive(SetRules(2, "ada", "v", ()), 0)
    assert isinstance(beyond, Failed)
    assert isinstance(beyond.error, LimitError)
    for owner, vid in (("ada", "u"), ("bob", "v")):
        (stored,) = made.receive(SetRules(3, owner, vid, ()), 0)
        assert isinstance(stored, Store)
        made.receive(Stored(stored.token), 0)
    assert made.occupancy()["owners"] == (2, 2)
    (gone,) = made.receive(SetRules(4, "ada", "u", None), 0)
    assert isinstance(gone, Store)
    made.receive(Stored(gone.token), 0)
    assert made.occupancy()["owners"] == (1, 1)


def test_hours_hold_on_every_day_if_none_is_named() -> None:
    hours = Hours(start_min=0, end_min=1_440)
    assert [hours.span(day * DAY) for day in range(7)] == [
        (day * DAY, (day + 1) * DAY) for day in range(7)
    ]


def test_a_vid_is_its_first_owners_until_no_write_of_its_rules_is_under_way() -> None:
    made = rule_sets()
    everybody = (Rule(viewers=("*",), precision="exact"),)
    tokens = []
    for ticket, rules in ((1, everybody), (2, None)):  # the second before the first is stored
        (store,) = made.receive(SetRules(ticket, "ada", "v", rules), 0)
        assert isinstance(store, Store)
        tokens.append(store.token)
    for token in tokens:
        assert made.owner_of("v") == made.publishers["v"] == "ada"
        (refused,) = made.receive(SetRules(3, "bob", "v", everybody), 0)
        assert isinstance(refused, Failed)
        assert isinstance(refused.error, ConflictError)
        made.receive(Stored(token), 0)
    assert made.owner_of("v") is None
    assert made.publishers == {}
    (store,) = made.receive(SetRules(4, "bob", "v", everybody), 0)
    assert isinstance(store, Store)


def test_rules_that_an_operator_sets_for_a_vid_bind_no_publisher() -> None:
    made = rule_sets()
    (store,) = made.receive(SetRules(1, "op", "v", (), any_owner=True), 0)
    assert isinstance(store, Store)
    assert made.publishers == {}
    made.receive(Stored(store.token), 0)
    assert made.publishers == {}
    assert made.owner_of("v") == "op"


def known(made: RuleSets) -> object:
    rules = {vid: (made.owner_of(vid), made._book.own(vid)) for vid in "uvw"}
    return rules, made.publishers, made.occupancy()


@given(st.lists(SAID, max_size=12))
def test_a_restart_and_a_replica_know_what_is_on_disk(said: list[tuple]) -> None:
    made, replica, again = rule_sets(), rule_sets(), rule_sets()
    disk: dict[str, bytes] = {}
    for ticket, (owner, vid, rules, any_owner) in enumerate(said):
        (effect,) = made.receive(SetRules(ticket, owner, vid, rules, any_owner), 0)
        if isinstance(effect, Store):
            ((key, value),) = effect.writes
            disk.pop(key, None)
            disk |= {} if value is None else {key: value}
            made.receive(Stored(effect.token), 0)
            assert made._book.own(vid) == rules
            replica.adopt([Entry(key, value, ticket)], 0)
    again.restore(disk, 0)
    assert known(again) == known(replica) == known(made)


def test_what_is_held_is_told_of_all_owners_and_of_the_one_with_the_most() -> None:
    made = rule_sets()
    for ticket, (owner, vid) in enumerate((("ada", "u"), ("ada", "v"), ("bob", "w"))):
        (store,) = made.receive(SetRules(ticket, owner, vid, naming("eve")), 0)
        assert isinstance(store, Store)
        made.receive(Stored(store.token), 0)
    made.receive(SetRules(9, "cy", "x", naming("eve", "fay")), 0)  # on its way to the disk
    assert made.occupancy() == {
        "sets of one owner": (2, 9),
        "names of one owner": (2, 5),
        "owners": (2, 3),
        "owners with names": (3, 4),
        "sets": (3, 18),
    }


def naming(*viewers: str, attributes: tuple[str, ...] | None = None) -> tuple[Rule, ...]:
    return (Rule(viewers=viewers, precision="exact", attributes=attributes),)


def test_the_rules_of_one_owner_hold_so_many_names_and_no_more() -> None:
    made = rule_sets()
    others = iter(range(1, 100))

    def asks(owner: str, vid: str, rules: tuple[Rule, ...] | None, operator: bool = False) -> int:
        """Give the store's token, or 0 if the rules were refused."""
        (effect,) = made.receive(SetRules(next(others), owner, vid, rules, operator), 0)
        if isinstance(effect, Failed):
            assert "at most 5 names" in str(effect.error)
            return 0
        assert isinstance(effect, Store)
        return effect.token

    first = asks("ada", "u", naming("a", "b", attributes=("floor",)))
    made.receive(Stored(asks("cy", "t", naming("a"))), 0)
    assert made.occupancy()["names of one owner"] == (3, 5), "of the owner with the most"
    assert not asks("ada", "v", naming("a", "b", "c")), "what is on its way to the disk counts"
    made.receive(StoreFailed(first, "full"), 0)
    second = asks("ada", "v", naming("a", "b", "c"))
    made.receive(Stored(second), 0)
    last = asks("ada", "u", naming("a", "b"))
    made.receive(Stored(last), 0)
    assert made.occupancy()["names of one owner"] == (5, 5)
    assert not asks("ada", "w", naming("a"))
    assert not asks("ada", "v", naming("a", "b", "c", "d"))
    made.receive(Stored(asks("ada", "v", naming("d", "e", "f"))), 0)  # as many others instead
    made.receive(Stored(asks("bob", "x", naming("a", "b", "c", "d", "e"))), 0)
    made.receive(Stored(asks("op", "y", naming(*"abcdefg"), operator=True)), 0)
    assert not asks("op", "z", naming("a")), "as an owner, an operator is one like others"
    made.receive(Stored(asks("op", "y", naming(*"hijklmn"))), 0)  # as many as before may always be
    made.receive(Stored(asks("op", "y", naming(*"abcdef"))), 0)  # and fewer
    made.receive(Stored(asks("ada", "v", None)), 0)
    made.receive(Stored(asks("ada", "w", naming("a", "b", "c"))), 0)
    made.receive(Stored(asks("cy", "t", naming("a", "b", "c"))), 0)
    made.receive(Stored(asks("cy", "t", naming("a", "b", "c", "d", "e"))), 0)  # instead of three
    for owner, vid in (("ada", "u"), ("ada", "w"), ("bob", "x"), ("op", "y"), ("cy", "t")):
        made.receive(Stored(asks(owner, vid, None)), 0)
    assert made.occupancy()["names of one owner"] == (0, 5)
