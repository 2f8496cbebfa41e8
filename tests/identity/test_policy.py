"""View classes: who shares one, and who comes after one has ended."""

from roamcast.identity.policy import RulesPolicy
from roamcast.identity.rules import Viewer


def policy() -> RulesPolicy:
    return RulesPolicy(lambda _vid: (), Viewer)


def test_whoever_is_in_the_same_groups_shares_a_class_until_it_ends() -> None:
    made = policy()
    first = made.class_of(Viewer("ada", frozenset({"staff"})))
    assert made.class_of(Viewer("bob", frozenset({"staff"}))) == first
    assert made.class_of(Viewer("bob")) != first
    assert made.retire(first)
    assert not made.retire(first)
    assert made.class_of(Viewer("bob", frozenset({"staff"}))) != first


def test_no_name_of_a_group_looks_like_a_class_that_took_anothers_place() -> None:
    for group in ("~1", "1", "\x7e1"):
        made = policy()
        made.retire(made.class_of(Viewer("ada")))
        alone, grouped = Viewer("bob"), Viewer("cy", frozenset({group}))
        assert made.class_of(alone) != made.class_of(grouped)
        before = made.class_of(grouped)
        assert made.retire(before)
        assert made.class_of(grouped) != before
