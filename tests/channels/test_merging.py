"""A server per side of a partition, and one map when the sides meet again (AMS 15)."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.channels.client.copy import Appeared, Left
from roamcast.channels.client.watching import Overtaken
from roamcast.channels.failover import merging
from roamcast.channels.failover.epochs import SteppedDown, epoch_at
from roamcast.channels.failover.messages import (
    HandedContext,
    HandedRemoval,
    HandOver,
    HandOverTaken,
)
from roamcast.channels.server.desk import Policy, Public
from roamcast.channels.server.map_server import MapServer
from roamcast.channels.server.messages import Hello, Request, ServerHere
from roamcast.channels.server.removals import Removal, Removed
from roamcast.channels.server.settings import MapSettings
from roamcast.model.addresses import Client, Replica
from roamcast.model.contexts import Context, body_of
from roamcast.model.machine import Effect, Received, Send
from roamcast.model.records import Drop
from roamcast.sim.workloads._map_parts import ScanMatcher
from tests.strategies_recovery import SECOND, RecoveryWorld

SEATS = ("s0", "s1")
OLD, NEW = epoch_at(1, 0, 0), epoch_at(2, 1, 0)


def parted() -> tuple[RecoveryWorld, object]:
    """Two sides with a server each: s0 with a and b, s1 with c and d."""
    world = RecoveryWorld(seats=2)
    for name in "abcd":
        world.client(name)
        world.watch(name)
    world.put("a", "x", "l/1")
    world.put("a", "gone", "l/1")
    world.run(6)
    assert list(world.servers) == ["s0"]
    cut = world.cut("s1", "c", "d")
    world.run(10)
    assert set(world.servers) == {"s0", "s1"}
    return world, cut


def test_each_side_has_a_server_that_serves_its_own_clients() -> None:
    world, _ = parted()
    world.put("b", "b", "l/b")
    world.put("c", "c", "l/c")
    world.run(2)
    assert world.sees("a") == world.sees("b") == {"b": "l/b", "gone": "l/1", "x": "l/1"}
    assert world.sees("c") == world.sees("d") == {"c": "l/c"}


def test_when_the_sides_meet_the_newer_server_stays_and_the_newest_of_each_object() -> None:
    world, cut = parted()
    newer = world.servers["s1"]
    assert newer > world.servers["s0"]
    world.put("c", "x", "l/new")  # a's is older and on the other side
    world.put("c", "y", "l/old")
    world.run(1)
    world.put("b", "y", "l/new")  # on the side of the older server
    world.run(1)
    world.world.network.mend(cut)  # type: ignore[arg-type]
    world.run(6)
    assert world.servers == {"s1": newer}
    for name in "abcd":
        assert world.sees(name) == {"gone": "l/1", "x": "l/new", "y": "l/new"}
    assert sorted(world.machine("a").published) == ["gone"]
    assert sorted(world.machine("b").published) == ["y"]
    assert sorted(world.machine("c").published) == ["x"]
    assert [effect.vid for effect in world.told_to("a", Overtaken)] == ["x"]


@pytest.mark.parametrize("canceller", ["a", "c"])
def test_what_one_side_cancelled_does_not_come_back_from_the_other(canceller: str) -> None:
    world, cut = parted()
    other = "c" if canceller == "a" else "a"
    world.put(other, "z", "l/1")
    world.run(1)
    world.put(canceller, "z", "l/2")
    world.run(1)
    world.cancel(canceller, "z")
    world.run(1)
    world.told.clear()
    world.world.network.mend(cut)  # type: ignore[arg-type]
    world.run(6)
    for name in "abcd":
        assert "z" not in world.sees(name)
    assert "z" not in world.machine(other).published
    watchers = "cd" if canceller == "c" else "ab"
    for name in watchers:
        assert "z" not in [one.context.vid for one in world.told_to(name, Appeared)]


def test_views_do_not_flicker_when_the_sides_meet() -> None:
    world, cut = parted()
    world.put("b", "b", "l/b")
    world.put("c", "c", "l/c")
    world.run(2)
    world.told.clear()
    world.world.network.mend(cut)  # type: ignore[arg-type]
    world.run(6)
    for name in "abcd":
        assert world.told_to(name, Left) == []
        appeared = [one.context.vid for one in world.told_to(name, Appeared)]
        assert sorted(appeared) == (["c"] if name in "ab" else ["b", "gone", "x"])


def test_an_older_server_that_slept_steps_down_and_brings_nothing_back() -> None:
    world = RecoveryWorld(seats=2)
    for name in "ab":
        world.client(name)
        world.watch(name)
    world.put("a", "x", "l/1")
    world.run(6)
    host = world.world.hosts["s0"]
    world.world.pause(host)
    world.run(8)
    world.cancel("a", "x")
    world.run(2)
    assert list(world.servers) == ["s0", "s1"]
    world.world.resume(host)
    world.run(0.1)
    assert list(world.servers) == ["s1"]
    world.run(3)
    assert world.sees("a") == world.sees("b") == {}


def make(
    name: str, epoch: int, limits: MapSettings | None = None, policy: Policy | None = None
) -> MapServer:
    made = MapServer(
        name,
        epoch=epoch,
        now=0,
        settings=limits or MapSettings(),
        policy=policy,
        make_matcher=ScanMatcher,
        replicas=SEATS,
    )
    made.advance(0)
    return made


def context(vid: str, note: str = "") -> Context:
    return Context(vid, "l/1", None, {"note": note}, 0)


def say(server: MapServer, sender: str, message: object, now: int) -> list[Effect]:
    return list(server.receive(Received(sender, message), now))  # type: ignore[arg-type]


def pages(effects: Sequence[Effect]) -> list[HandOver]:
    messages = [effect.message for effect in effects if isinstance(effect, Send)]
    return [message for message in messages if isinstance(message, HandOver)]


def hand_over(old: MapServer, new: MapServer, now: int) -> int:
    """Let the old one hear the new one, carry the pages to and fro; give how many there were."""
    effects = say(old, "s1", ServerHere(NEW, 0), now)
    count = 0
    while page := pages(effects):
        count += 1
        (taken,) = [one for one in say(new, "s0", page[0], now) if isinstance(one, Send)]
        effects = say(old, "s1", taken.message, now)
    assert SteppedDown(OLD) in effects
    return count


Write = tuple[int, str, int, str, bool]
"""side, vid, stamp, publisher, whether it publishes or cancels."""

writes = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(["x", "y", "z"]),
        st.integers(1, 6),
        st.sampled_from(["a", "b"]),
        st.booleans(),
    ),
    max_size=14,
)


def write(server: MapServer, one: Write) -> None:
    _, vid, stamp, owner, puts = one
    if puts:
        body = context(vid, f"{stamp} by {owner}")
        server.contexts.put_for(owner, body, body_of(body), stamp)
    else:
        server.contexts.erase(vid, Removal(stamp, owner, 0))


def unique(said: list[Write]) -> list[Write]:
    """A publisher's stamps tell its states apart, as a client's do."""
    return list({(one[1], one[2], one[3]): one for one in said}.values())


def order(one: Write) -> tuple[int, bool, bytes]:
    """What stays is the latest; of one stamp a cancelling, then the state with the later bytes."""
    _, vid, stamp, owner, puts = one
    return stamp, not puts, body_of(context(vid, f"{stamp} by {owner}"))


@given(writes)
@settings(deadline=None)
def test_merged_maps_hold_the_newest_version_of_everything_said_on_either_side(
    said: list[Write],
) -> None:
    said = unique(said)
    sides = (make("s0", OLD), make("s1", NEW))
    for one in said:
        write(sides[one[0]], one)
    hand_over(*sides, now=1)
    newest = {one[1]: one for one in sorted(said, key=order)}
    right = {vid: f"{one[2]} by {one[3]}" for vid, one in newest.items() if one[4]}
    merged = sides[1].map.contexts
    assert {vid: one.context.attributes["note"] for vid, one in merged.items()} == right


@given(writes, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_a_map_does_not_depend_on_the_order_in_which_it_was_told(
    said: list[Write], shuffler: object
) -> None:
    said = unique(said)
    one, other = make("s0", OLD), make("s0", OLD)
    for write_ in said:
        write(one, write_)
    shuffler.shuffle(said)  # type: ignore[attr-defined]
    for write_ in said:
        write(other, write_)
    assert {vid: (o.stamp, o.owner) for vid, o in one.map.contexts.items()} == {
        vid: (o.stamp, o.owner) for vid, o in other.map.contexts.items()
    }


def test_of_two_states_with_one_stamp_the_later_bytes_stay_on_either_side() -> None:
    for first, second in (("a", "b"), ("b", "a")):
        old, new = make("s0", OLD), make("s1", NEW)
        write(old, (0, "x", 5, first, True))
        write(new, (1, "x", 5, second, True))
        hand_over(old, new, now=1)
        assert new.map.contexts["x"].context.attributes["note"] == "5 by b"


def test_the_same_state_said_by_another_belongs_to_who_said_it_last() -> None:
    server = make("s0", OLD)
    for owner in ("b", "a"):
        server.contexts.put_for(owner, context("x"), body_of(context("x")), 5)
        assert server.map.contexts["x"].owner == owner
    server.contexts.withdraw("b", "x")
    assert list(server.map.contexts) == ["x"]
    server.contexts.withdraw("a", "x")
    assert list(server.map.contexts) == []
    assert server.contexts.put_for("b", context("x"), body_of(context("x")), 5)


def test_a_large_map_goes_over_in_pages_within_the_bound_and_a_lost_page_is_repeated() -> None:
    limits = MapSettings(page_bytes_max=500)
    old, new = make("s0", OLD, limits), make("s1", NEW, limits)
    for number in range(100):
        write(old, (0, f"vid-{number}", 1, "a", True))
    effects = say(old, "s1", ServerHere(NEW, 0), 1)
    (page,) = pages(effects)
    assert len(page.items) > 1
    again = pages(old.advance(1 + limits.repeat_us))
    assert again == [page]
    count = 0
    while page_now := pages(effects):
        count += 1
        say(new, "s0", page_now[0], 1)
        say(new, "s0", page_now[0], 1)  # doubled on the way
        effects = say(old, "s1", HandOverTaken(OLD, page_now[0].number), 1)
    assert len(new.map) == 100
    assert 100 / len(page.items) <= count <= 100


def test_a_page_of_a_map_has_as_many_items_as_a_message_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merging, "ITEMS_MAX", 3)
    old = make("s0", OLD)
    for number in range(7):
        write(old, (0, f"vid-{number}", 1, "a", True))
    found = pages(say(old, "s1", ServerHere(NEW, 0), 1))
    sizes = []
    while found:
        sizes.append(len(found[0].items))
        found = pages(say(old, "s1", HandOverTaken(OLD, found[0].number), 1))
    assert sizes == [3, 3, 1]


def test_a_server_that_steps_down_gives_up_when_nobody_takes_its_map() -> None:
    old = make("s0", OLD)
    write(old, (0, "x", 1, "a", True))
    say(old, "s1", ServerHere(NEW, 0), 1)
    ended = []
    while (due := old.deadline()) is not None:
        assert due <= 1 + old.settings.handover_us
        ended += [one for one in old.advance(due) if isinstance(one, SteppedDown)]
    assert ended == [SteppedDown(OLD)]


def test_an_object_whose_publisher_does_not_come_over_leaves_when_it_could_have() -> None:
    old, new = make("s0", OLD), make("s1", NEW)
    write(old, (0, "x", 1, "a", True))
    hand_over(old, new, now=1)
    stays = new.settings.client_timeout_us + new.settings.restart_spread_us
    new.advance(stays)
    assert list(new.map.contexts) == ["x"]
    new.advance(1 + stays)
    assert list(new.map.contexts) == []
    assert new.merging.guests == {}


def test_only_hosts_that_may_serve_hand_over_and_only_their_own_epochs_end_a_server() -> None:
    new = make("s1", NEW)
    body = body_of(context("x"))
    page = HandOver(OLD, 1, (HandedContext(body, 1, "a"),))
    assert say(new, "stranger", page, 1) == []
    assert say(new, "stranger", ServerHere(epoch_at(9, 0, 0), 0), 1) == []
    assert say(new, "s0", ServerHere(epoch_at(9, 1, 0), 0), 1) == []
    assert new.merging.leaving is None
    assert len(new.map) == 0


def test_a_full_map_says_what_it_could_not_take() -> None:
    new = make("s1", NEW, MapSettings(contexts_max=1))
    items = tuple(HandedContext(body_of(context(vid)), 1, "a") for vid in "xy")
    effects = say(new, "s0", HandOver(OLD, 1, items), 1)
    assert list(new.map.contexts) == ["x"]
    assert [one.message for one in effects if isinstance(one, Drop)] == ["map.handover"]
    assert Send(Replica("s0"), HandOverTaken(OLD, 1)) in effects


def test_what_is_no_context_is_not_taken_and_the_reason_is_not_long() -> None:
    new = make("s1", NEW)
    wrong = Context("x", "l//" + "\u200b" * 300, None, {}, 0)
    (drop,) = [
        one
        for one in say(new, "s0", HandOver(OLD, 1, (HandedContext(body_of(wrong), 1, "a"),)), 1)
        if isinstance(one, Drop)
    ]
    assert len(drop.reason) == 200
    assert len(new.map) == 0


def test_a_map_that_comes_over_tells_only_who_publishes_the_object_here() -> None:
    new = make("s1", NEW)
    say(new, "a", Request(NEW, 1, 1, (Hello(),)), 1)
    write(new, (1, "x", 1, "b", True))
    effects = say(new, "s0", HandOver(OLD, 1, (HandedContext(body_of(context("x")), 2, "a"),)), 2)
    assert new.map.contexts["x"].owner == "a"
    assert [one for one in effects if isinstance(one, Send) and one.to == Client("a")] == []


def test_cancelled_objects_are_remembered_for_their_time_and_up_to_the_bound() -> None:
    removed = Removed(10 * SECOND, 3)
    for number, vid in enumerate("abcd"):
        removed.note(vid, Removal(1 + number, "p", number), number)
    assert [vid for vid, _ in removed.items(4)] == ["b", "c", "d"]
    removed.note("b", Removal(9, "p", 5), 5)
    assert [vid for vid, _ in removed.items(5)] == ["c", "d", "b"]
    removed.note("b", Removal(8, "p", 6), 6)  # older than what is known
    assert removed.get("b") == Removal(9, "p", 5)
    assert [vid for vid, _ in removed.items(10 * SECOND + 3)] == ["b"]
    removed.prune(10 * SECOND + 3)
    assert len(removed) == 1
    removed.forget("b")
    assert len(removed) == 0


class Private(Public):
    """Nobody may touch what another publishes."""

    def may_take(self, client: str, owner: str) -> bool:
        return client == owner


def test_nobody_cancels_what_is_anothers_on_either_side() -> None:
    old, new = make("s0", OLD, policy=Private()), make("s1", NEW, policy=Private())
    write(old, (0, "x", 9, "thief", False))
    write(new, (1, "x", 5, "a", True))
    write(old, (0, "y", 9, "thief", False))
    write(old, (0, "y", 5, "a", True))
    hand_over(old, new, now=1)
    assert sorted(new.map.contexts) == ["x", "y"]
    write(new, (1, "x", 9, "a", False))
    assert not new.contexts.put_for("a", context("x"), body_of(context("x")), 5)
    assert sorted(new.map.contexts) == ["y"]


def test_how_long_an_object_is_gone_is_handed_over_with_it() -> None:
    new = make("s1", NEW)
    lasts = new.settings.removed_us
    items = (HandedRemoval("y", 5, "a", 0), HandedRemoval("x", 5, "a", lasts - SECOND))
    say(new, "s0", HandOver(OLD, 1, items), lasts)
    assert [vid for vid, _ in new.map.removed.items(lasts)] == ["y", "x"]
    assert [vid for vid, _ in new.map.removed.items(lasts + 2 * SECOND)] == ["y"]
    new.map.removed.prune(2 * lasts)
    assert len(new.map.removed) == 0
