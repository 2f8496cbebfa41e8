"""What a client makes of parcels: current sets, pages of carousels, and what comes late."""

from roamcast.channels.client.copy import Appeared
from roamcast.channels.client.watching import Pending, Watching
from roamcast.channels.server.messages import Announce, Band, Closing, Opening, Page, Parcel, State
from roamcast.channels.server.settings import MapSettings
from roamcast.model.contexts import Context, body_of
from roamcast.model.filters import Filter


def state(number: int, place: str) -> State:
    return State(number, "m", body_of(Context("m", place, None, {}, 0)))


def listed(as_of: int, *states: State) -> Parcel:
    opening = Opening("s", as_of, len(states), (1,), ())
    return Parcel(1, (opening, *states, Closing("s", as_of)))


def watching() -> Watching:
    made = Watching(MapSettings(), lambda: 0.5, 0)
    made.watch("s", Filter.parse("place = 'a'"))
    return made


def test_a_late_state_of_before_the_current_set_brings_nothing_back() -> None:
    client = watching()
    client.take(listed(5), "", "server", 0)  # by then it had left again
    assert client.take(Parcel(1, (state(4, "a"),)), "another", "server", 0) == []
    assert client.copy.shown("s") == {}
    effects = client.take(Parcel(1, (state(6, "a"),)), "another", "server", 0)
    assert [type(effect) for effect in effects] == [Appeared]


def test_what_the_current_set_lists_is_shown_though_it_was_heard_before() -> None:
    client = watching()
    client.watch("other", Filter.parse("place = 'b'"))
    opening, *rest = listed(5, state(4, "a")).items
    client.take(Parcel(1, (opening,)), "", "server", 0)
    client.take(Parcel(1, (state(4, "a"),)), "another", "server", 0)
    client.take(Parcel(1, tuple(rest)), "", "server", 0)
    assert list(client.copy.shown("s")) == ["m"]


def test_a_shown_object_still_changes_and_leaves_while_its_set_is_listed_again() -> None:
    client = watching()
    client.take(listed(5, state(4, "a")), "", "server", 0)
    opening, *rest = listed(9).items
    client.take(Parcel(1, (opening,)), "", "server", 0)
    client.take(Parcel(1, (state(8, "b"),)), "another", "server", 0)
    assert client.copy.shown("s") == {}
    client.take(Parcel(1, tuple(rest)), "", "server", 0)
    assert client.copy.shown("s") == {}


def test_a_page_of_an_earlier_carousel_completes_no_later_listing() -> None:
    client = watching()
    client.watch("later", Filter.parse("place = 'a'"))
    for name, as_of, channel in (("s", 3, "first"), ("later", 9, "second")):
        opening = Opening(name, as_of, 1, (1,), (), (Band(0, channel, 1, 1),))
        client.take(Parcel(1, (state(4, "a"), opening)), "", "server", 0)
    client.take(Parcel(1, (Page(1, 3, "", "", ()),)), "first", "server", 0)
    assert list(client.listings) == ["later"]
    assert list(client.copy.shown("later")) == ["m"]
    page = Page(1, 9, "", "", (state(4, "a"),))
    client.take(Parcel(1, (page,)), "second", "server", 0)
    assert list(client.listings) == []
    assert list(client.copy.shown("later")) == ["m"]


def test_a_page_from_before_the_answer_lists_but_does_not_complete() -> None:
    client = watching()
    opening = Opening("s", 5, 1, (1,), (), (Band(0, "round", 1, 7),))
    client.take(Parcel(1, (opening,)), "", "server", 0)
    # Its vids were put in order as of update 3: the object that came with 4 is not among them.
    client.take(Parcel(1, (Page(1, 3, "", "", ()),)), "round", "server", 0)
    assert list(client.listings) == ["s"]
    client.take(Parcel(1, (Page(1, 5, "", "", (state(4, "a"),)),)), "round", "server", 0)
    assert list(client.listings) == []
    assert list(client.copy.shown("s")) == ["m"]


def test_what_a_stream_still_owes_is_forgotten_with_the_subscription_that_rode_on_it() -> None:
    client = Watching(MapSettings(), lambda: 0.5, 1_000)
    client.watch("s", Filter.parse("place = 'a'"))
    announce = Announce(1, 7, 1, (Band(1_000, "band", 1, 1),))
    client.take(
        Parcel(1, (Opening("s", 1, 0, (1,), (announce,)), Closing("s", 1))), "", "server", 0
    )
    effects = client.take(Parcel(1, (state(2, "a"),), (3,)), "band", "server", 0)
    assert Pending(3) in effects
    assert client.unwatch("s")[-1] == Pending(0)
