"""An inbox coalesces, tells nothing twice, and ends where the map is."""

from hypothesis import given
from hypothesis import strategies as st

from roamcast.client.views import Change, Inbox
from roamcast.model.contexts import Context


def at(vid: str, place: str, **attributes: int) -> Context:
    return Context(vid, place, None, dict(attributes))


def drain(inbox: Inbox) -> list[Change]:
    return list(iter(inbox.take, None))


def kinds(changes: list[Change]) -> list[tuple[str, str]]:
    return [(change.kind, change.vid) for change in changes]


def test_a_reader_in_time_is_told_of_every_step() -> None:
    inbox = Inbox()
    told = []
    inbox.show(at("a", "l1"))
    told += drain(inbox)
    inbox.current(1, complete=True)
    told += drain(inbox)
    inbox.show(at("a", "l2"))
    told += drain(inbox)
    inbox.hide("a")
    told += drain(inbox)
    assert kinds(told) == [("appeared", "a"), ("current", ""), ("changed", "a"), ("left", "a")]
    assert told[-1].context == at("a", "l2")


def test_a_slow_reader_gets_the_latest_state_of_each_object() -> None:
    inbox = Inbox()
    for step in range(100):
        inbox.show(at("a", f"l{step}"))
        inbox.show(at("b", f"l{step}"))
    assert len(inbox) == 2
    assert drain(inbox) == [Change("appeared", at("a", "l99")), Change("appeared", at("b", "l99"))]


def test_what_came_and_went_unread_is_no_news() -> None:
    inbox = Inbox()
    inbox.show(at("a", "l1"))
    inbox.hide("a")
    assert len(inbox) == 0
    assert drain(inbox) == []


def test_a_second_listing_tells_nothing_again() -> None:
    inbox = Inbox()
    inbox.show(at("a", "l1"))
    inbox.current(1, complete=True)
    drain(inbox)
    inbox.hide("a")
    inbox.show(Context("a", "l1", None, {}, t_r=99))  # registered again after a restart
    inbox.current(1, complete=True)
    assert drain(inbox) == []


def test_the_current_mark_comes_after_the_set_even_if_its_objects_move() -> None:
    inbox = Inbox()
    inbox.show(at("a", "l1"))
    inbox.show(at("b", "l1"))
    inbox.current(2, complete=True)
    inbox.show(at("a", "l2"))
    inbox.show(at("c", "l1"))
    assert kinds(drain(inbox)) == [
        ("appeared", "a"),
        ("appeared", "b"),
        ("current", ""),
        ("appeared", "c"),
    ]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("show"), st.sampled_from("abcd"), st.sampled_from(["l1", "l2", "l3"])),
        st.tuples(st.just("hide"), st.sampled_from("abcd"), st.just("")),
        st.tuples(st.just("take"), st.just(""), st.just("")),
        st.tuples(st.just("current"), st.just(""), st.just("")),
    )
)


@given(STEPS)
def test_whoever_applies_the_changes_has_what_is_there(steps: list[tuple[str, str, str]]) -> None:
    inbox = Inbox()
    mirror: dict[str, Context] = {}
    marks = 0
    for what, vid, place in [*steps, *[("take", "", "")] * len(steps)]:
        if what == "show":
            inbox.show(at(vid, place))
        elif what == "hide":
            inbox.hide(vid)
        elif what == "current":
            inbox.current(len(inbox.shown), complete=True)
        change = inbox.take() if what == "take" else None
        if change is None:
            continue
        if change.kind == "current":
            marks += 1
            continue
        assert change.context is not None
        known = mirror.get(change.vid)
        match change.kind:
            case "appeared":
                assert known is None
            case "changed":
                assert known is not None
                assert known != change.context
            case "left":
                assert known == change.context
        if change.kind == "left":
            del mirror[change.vid]
        else:
            mirror[change.vid] = change.context
        assert len(inbox) <= len({*mirror, *inbox.shown}) + 1
    assert mirror == inbox.shown
    assert marks == min(1, sum(step[0] == "current" for step in steps))
    assert len(inbox) == 0
