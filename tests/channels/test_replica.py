"""A client's copy of the map never goes back, whichever way and however late a state comes."""

from hypothesis import given
from hypothesis import strategies as st

from roamcast.channels.client.copy import Appeared, Left, MapCopy
from roamcast.channels.server.messages import State
from roamcast.model.contexts import Context, body_of
from roamcast.model.filters import Filter

HERE, THERE = "lab/1", "lab/2"
EPOCH = 7


def state(number: int, place: str, vid: str = "v") -> State:
    return State(number, vid, body_of(Context(vid, place)))


def opened() -> MapCopy:
    copy = MapCopy()
    copy.open("s", Filter.parse(f"place = '{HERE}'"))
    return copy


def test_a_state_older_than_the_last_listing_does_not_bring_back_what_has_left() -> None:
    # The object came at update 5 by one channel and left at update 6 by another. Update 6 was lost
    # for good, so the set was listed as of 8, without it; then the first channel healed update 5.
    copy = opened()
    assert copy.retain("s", set(), (EPOCH, 8)) == []
    assert copy.learn(EPOCH, state(5, HERE), 1) == []
    assert copy.shown("s") == {}
    told = copy.learn(EPOCH, state(9, HERE), 2)
    assert [type(effect) for effect in told] == [Appeared]


def test_what_a_later_listing_names_is_shown_though_its_state_is_older_than_the_last_one() -> None:
    copy = opened()
    copy.retain("s", set(), (EPOCH, 8))
    copy.learn(EPOCH, state(5, HERE), 1)
    assert [type(effect) for effect in copy.show_known("s", ("v",))] == [Appeared]


def test_another_subscription_is_not_held_to_that_listing() -> None:
    copy = opened()
    copy.open("other", Filter.parse(f"place = '{HERE}'"))
    copy.retain("s", set(), (EPOCH, 8))
    told = copy.learn(EPOCH, state(5, HERE), 1)
    assert [effect.subscription for effect in told if isinstance(effect, Appeared)] == ["other"]


def test_what_is_shown_still_leaves_by_a_state_as_old_as_the_listing() -> None:
    copy = opened()
    copy.learn(EPOCH, state(4, HERE), 1)
    copy.retain("s", {"v"}, (EPOCH, 8))  # listed, as somebody saw it before update 6
    told = copy.learn(EPOCH, state(6, THERE), 2)
    assert [type(effect) for effect in told] == [Left]


@given(
    st.lists(st.sampled_from([HERE, THERE]), min_size=1, max_size=12),
    st.data(),
)
def test_after_a_listing_any_part_of_the_past_in_any_order_leaves_the_view_as_it_is(
    places: list[str], data: st.DataObject
) -> None:
    """The oracle is the object's way itself: where it was as of the listing, and where it goes."""
    past = [state(number, place) for number, place in enumerate(places, 1)]
    as_of = data.draw(st.integers(1, len(past)))
    before = data.draw(st.lists(st.sampled_from(past[:as_of]), unique=True))
    copy = opened()
    for one in before:
        copy.learn(EPOCH, one, 1)
    listed = places[as_of - 1] == HERE
    if listed:
        copy.learn(EPOCH, past[as_of - 1], 2)
        copy.show_known("s", ("v",))
    copy.retain("s", {"v"} if listed else set(), (EPOCH, as_of))
    assert ("v" in copy.shown("s")) is listed
    for one in data.draw(st.permutations(past[:as_of])):
        copy.learn(EPOCH, one, 3)
        assert ("v" in copy.shown("s")) is listed
    for one in past[as_of:]:
        copy.learn(EPOCH, one, 4)
        assert ("v" in copy.shown("s")) is (places[one.number - 1] == HERE)


def test_only_what_no_subscription_shows_counts_as_a_tombstone() -> None:
    copy = opened()
    copy.open("other", Filter.parse("type IS NULL"))
    counts = []
    for number, place in enumerate((THERE, HERE, THERE, HERE), 1):
        copy.learn(EPOCH, state(number, place), number)
        counts.append(copy.tombstones)
    copy.close("other")
    counts.append(copy.tombstones)
    copy.learn(EPOCH, state(9, THERE), 9)
    counts.append(copy.tombstones)
    assert counts == [0, 0, 0, 0, 0, 1]
    copy.prune(10, 0)
    assert (copy.tombstones, copy.known) == (0, {})


def test_what_a_listing_of_the_same_update_does_not_name_has_left() -> None:
    copy = opened()
    copy.learn(EPOCH, state(8, HERE), 1)
    assert copy.retain("s", set(), (EPOCH, 7)) == []
    assert copy.retain("s", set(), (EPOCH, 8)) == [Left("s", "v")]


def test_only_of_an_unknown_context_an_old_state_may_be_older_than_a_forgotten_one() -> None:
    copy = opened()
    copy.learn(EPOCH, state(5, THERE), 1)
    copy.prune(2, 0)
    assert copy.forgotten(EPOCH, state(5, HERE))
    assert not copy.forgotten(EPOCH, state(6, HERE))
    copy.learn(EPOCH, state(4, HERE, "w"), 3)
    assert not copy.forgotten(EPOCH, state(4, HERE, "w"))
