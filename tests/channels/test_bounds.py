"""Every bound of the map service holds at its value, and one more is refused or forgotten."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from roamcast.channels.client.map_client import REQUEST_BYTES_MAX
from roamcast.channels.server.map_server import MapServer
from roamcast.channels.server.messages import (
    BANDS_MAX,
    CONTEXT_BYTES_MAX,
    MAP_PROTOCOL,
    OPERATIONS_MAX,
    Hello,
    Publish,
    Request,
    Subscribe,
    Unsubscribe,
)
from roamcast.channels.server.removals import Removal, Removed
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.sessions.publications import PublicationSettings
from roamcast.channels.sessions.settings import HubSettings
from roamcast.errors import LimitError
from roamcast.model.contexts import Context, body_of
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Input, Received
from roamcast.model.records import Drop
from roamcast.model.wire import Unreadable
from tests.strategies_hub import Desk
from tests.strategies_map import MapWorld

SECOND = 1_000_000
LAB = "within(place, 'lab')"


def context_of_bytes(size: int, t_r: int) -> Context:
    """A context whose encoded body has this size."""
    empty = Context("v", "lab", None, {"note": "n" * 1_000}, t_r)
    padding = 1_000 + size - len(body_of(empty))
    made = Context("v", "lab", None, {"note": "n" * padding}, t_r)
    assert len(body_of(made)) == size
    return made


@pytest.mark.limit("session.sessions_max")
def test_ledgers_of_closed_sessions_are_forgotten_at_the_bound_and_open_ones_are_not() -> None:
    desk = Desk(HubSettings(sessions_max=3))
    hub = desk.broker._hub
    for name in ("open", "a", "b"):
        desk.open(name)
        desk.limit(name, 2_000)
    desk.close("a")
    desk.close("b")
    assert hub.occupancy()["ledgers"] == (3, 3)  # a session that comes back is still limited
    first = hub.sessions["open"].ledger
    desk.open("c")
    desk.limit("c", 2_000)
    assert hub.occupancy()["ledgers"] == (2, 3)
    assert hub._alone.ledgers["open"] is first
    desk.open("d")
    desk.limit("d", 2_000)
    assert hub.occupancy()["ledgers"] == (3, 3)
    with pytest.raises(LimitError, match="at most 3 sessions"):
        desk.open("e")


def test_between_inputs_nothing_waits_at_the_map_server() -> None:
    desk = Desk()
    desk.open("s")
    for step in (
        lambda: desk.keep("p", "lab"),
        lambda: desk.watch("s", LAB),
        lambda: desk.unwatch("s"),
    ):
        step()
        held = desk.broker._server.occupancy()
        waiting = [held[what] for what in ("effects", "dirty clients", "slow clients")]
        assert waiting == [(0, 0)] * 3


def test_a_session_that_comes_back_counts_on_where_it_ended() -> None:
    desk = Desk(HubSettings(sessions_max=2))
    desk.open("a")
    desk.limit("a", 2_000)
    ledger = desk.broker._hub.sessions["a"].ledger
    desk.close("a")
    desk.open("a")
    desk.limit("a", 2_000)
    assert desk.broker._hub.sessions["a"].ledger is ledger


@pytest.mark.limit("limits.context_lifetime_s")
def test_a_context_without_a_lifetime_leaves_after_the_default() -> None:
    desk = Desk(publications=PublicationSettings(lifetime_us_default=5 * SECOND))
    desk.keep("v", "lab")
    desk.run(5 * SECOND - 1)
    assert "v" in desk.broker._server.map.contexts
    desk.run(1)
    assert "v" not in desk.broker._server.map.contexts


@pytest.mark.parametrize("seconds", [5, 5.000_001, 0])
def test_a_lifetime_is_at_most_what_the_settings_allow(seconds: float) -> None:
    desk = Desk(publications=PublicationSettings(lifetime_us_max=5 * SECOND))
    answer = desk.keep("v", "lab", lifetime_us=int(seconds * SECOND))
    error = getattr(answer, "error", None)
    assert (error is None) is (seconds == 5)
    assert ("v" in desk.broker._server.map.contexts) is (seconds == 5)
    if error is not None:
        assert str(error) == "a lifetime is more than 0 and at most 5 seconds"


def test_a_context_of_the_largest_size_is_taken_and_a_larger_one_refused_on_every_path() -> None:
    desk = Desk()
    at = context_of_bytes(CONTEXT_BYTES_MAX, desk.now)
    beyond = context_of_bytes(CONTEXT_BYTES_MAX + 1, desk.now)
    assert getattr(desk.keep("v", "lab", **at.attributes), "error", None) is None
    refused = desk.keep("w", "lab", **beyond.attributes)
    assert str(refused.error) == f"a context has at most {CONTEXT_BYTES_MAX} bytes"  # type: ignore[attr-defined]
    assert list(desk.broker._server.map.contexts) == ["v"]
    for context, readable in ((at, True), (beyond, False)):
        frame = MAP_PROTOCOL.encode(Request(1, 1, 1, (Hello(), Publish(body_of(context), 1))))
        assert isinstance(MAP_PROTOCOL.decode(frame), Unreadable) is not readable


def test_a_request_has_at_most_so_many_operations_and_bytes() -> None:
    for operations, readable in ((OPERATIONS_MAX, True), (OPERATIONS_MAX + 1, False)):
        request = Request(1, 1, 1, (Unsubscribe("s"),) * operations)
        decoded = MAP_PROTOCOL.decode(MAP_PROTOCOL.encode(request))
        assert isinstance(decoded, Unreadable) is not readable
    requests: list[list[bytes]] = []

    class Reading(MapServer):
        def receive(self, given: Input, now: int) -> Sequence[Effect]:
            if isinstance(given, Received) and isinstance(given.message, Request):
                requests.append([getattr(one, "body", b"") for one in given.message.operations])
            return super().receive(given, now)

    world = MapWorld(server=Reading)
    world.client("a")
    world.run(1)
    for number in range(OPERATIONS_MAX + 1):
        world.put("a", f"small{number}", "lab")
    world.run(1)
    for number in range(6):  # the first leaves alone; then four fill a request
        world.put("a", f"large{number}", "lab", note="n" * (REQUEST_BYTES_MAX // 4 - 200))
    world.run(2)
    assert max(map(len, requests)) == OPERATIONS_MAX
    large = [len(one) for one in requests if any(len(body) > 1_000 for body in one)]
    assert large == [1, 4, 1]
    assert world.server.occupancy()["contexts"][0] == OPERATIONS_MAX + 7


def test_clients_beyond_the_bound_are_dropped_with_a_reason_until_one_leaves() -> None:
    world = MapWorld(MapSettings(clients_max=2))
    for name in ("a", "b", "c"):
        world.client(name)
        world.put(name, name, "lab")
    world.run(2)
    assert world.server.occupancy()["clients"] == (2, 2)
    dropped = {one.reason for _, _, one in world.records if isinstance(one, Drop)}
    assert dropped == {"too many clients"}
    (late,) = {"a", "b", "c"} - set(world.server.map.contexts)
    world.world.crash(world.world.hosts["b" if late == "a" else "a"])
    world.run(10)
    assert late in world.server.map.contexts


def test_more_limits_than_bands_share_the_nearest_lower_one_and_all_see_the_map() -> None:
    world = MapWorld(MapSettings(subscribers_min=2))
    limits = [2_000 + 500 * number for number in range(BANDS_MAX + 2)]
    for limit in limits:
        world.client(f"c{limit}", limit_bytes=limit)
        world.watch(f"c{limit}", LAB)
    world.client("mover")
    world.run(3)
    for number in range(20):
        world.put("mover", f"o{number}", "lab/1", note="n" * 100)
    world.run(20)
    streams = [
        stream
        for view in world.server.dissemination.classes.values()
        for stream in view.streams.values()
    ]
    assert max(len(stream.bands) for stream in streams) == BANDS_MAX + 1
    for limit in limits:
        assert len(world.sees(f"c{limit}")) == 20


@pytest.mark.parametrize(("streams_max", "sets"), [(2, 1), (3, 2)])
def test_a_query_has_at_most_so_many_streams(streams_max: int, sets: int) -> None:
    world = MapWorld(MapSettings(subscribers_min=2, streams_per_query_max=streams_max))
    world.client("all")
    world.watch("all", LAB)
    for number in range(3):  # three sets recur: the lab with each of its rooms
        world.client(f"c{number}")
        world.watch(f"c{number}", f"place = 'lab/{number}'")
    world.client("mover")
    world.run(2)
    for turn in range(8):
        for number in range(3):
            world.put("mover", f"o{number}", f"lab/{number}", turn=turn)
            world.run(0.1)
    (view,) = world.server.dissemination.classes.values()
    record = view.table.known(Filter.parse(LAB).text)
    assert record is not None
    assert len(record.set_streams) == sets
    world.run(2)
    assert len(world.sees("all")) == 3


def test_a_disjunction_of_more_parts_than_the_bound_stays_one_query() -> None:
    world = MapWorld(MapSettings(parts_max=3))
    world.client("a")
    world.watch("a", "place IN ('lab/1', 'lab/2', 'lab/3')")
    world.run(1)
    assert world.server.subscriptions.records == 3
    world.watch("a", "place IN ('lab/1', 'lab/2', 'lab/3', 'lab/4')")
    world.run(1)
    assert world.server.subscriptions.records == 1


def test_removals_beyond_the_bound_are_forgotten_the_first_noted_first() -> None:
    removed = Removed(10 * SECOND, 2)
    for number in range(2):
        removed.note(f"v{number}", Removal(number + 1, "a", 1), 1)
    assert [vid for vid, _ in removed.items(1)] == ["v0", "v1"]
    removed.note("v2", Removal(9, "a", 1), 1)
    assert [vid for vid, _ in removed.items(1)] == ["v1", "v2"]


def test_a_batch_that_nobody_receipts_is_repeated_at_the_longest_interval_and_no_later() -> None:
    settings = MapSettings(repeat_us=100_000, repeat_us_max=400_000, client_timeout_us=60 * SECOND)
    world = MapWorld(settings)
    world.client("a")
    world.watch("a", LAB)
    world.client("mover")
    world.run(1)
    world.world.crash(world.world.hosts["a"])
    world.put("mover", "v", "lab")
    world.forget()
    world.run(5)
    times = [
        now
        for now, host, record in world.records
        if host == "server" and getattr(record, "message", "") == "map.batch"
    ]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[:3] == [100_000, 200_000, 400_000]
    assert set(gaps[3:]) == {400_000}


def test_a_filter_of_the_longest_text_is_carried_and_a_longer_one_is_unreadable() -> None:
    for length, readable in ((8_192, True), (8_193, False)):
        request = Request(1, 1, 1, (Subscribe("s", "true".ljust(length)),))
        decoded = MAP_PROTOCOL.decode(MAP_PROTOCOL.encode(request))
        assert isinstance(decoded, Unreadable) is not readable
