"""Bandwidth limits (AMS 13): never a byte too many, the pending count, more is never less."""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.channels.client.watching import Pending, Refusal
from roamcast.channels.reliable.messages import Data
from roamcast.channels.reliable.sender import ChannelSender
from roamcast.channels.reliable.settings import ChannelSettings
from roamcast.channels.server.map_server import MapServer
from roamcast.channels.server.messages import Parcel, State, parcel_of, size_of
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.spread.streams import TOP, Ledger, Stream
from roamcast.model.machine import Effect, Input, Multicast, Send
from roamcast.model.records import ContextChanged, ContextOpened
from roamcast.sim.checkers import BandwidthLimit
from roamcast.sim.network import LinkQuality
from tests.strategies_map import SECOND, MapWorld

LIMITS = [1_500 + 900 * number for number in range(10)]
QUERY = "within(place, 'lab')"


@given(st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 900)), max_size=60))
def test_no_window_of_a_second_exceeds_what_a_ledger_allows(offers: list[tuple[int, int]]) -> None:
    ledger, now, sent = Ledger(1_000, 100), 0, []
    for wait, size in offers:
        now += wait
        if ledger.room(now, control=True) >= size:
            ledger.charge(now, size)
            sent.append((now, size))
    for start, _ in sent:
        inside = sum(size for at, size in sent if start <= at <= start + SECOND)
        assert inside <= 900


def test_a_ledger_begins_empty_and_gives_data_seven_eighths() -> None:
    ledger = Ledger(1_000, 200)
    assert (ledger.spent_bytes, ledger.room(0), ledger.room(0, control=True)) == (0, 700, 800)
    ledger.charge(5, 100)
    assert ledger.freed_at() == SECOND + 6
    assert (ledger.room(SECOND + 5), ledger.room(SECOND + 6)) == (600, 700)


class OverheardServer(MapServer):
    """A server whose effects the test sees as they leave, one by one."""

    hear: Callable[[Effect, int], None] | None = None

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        return self._heard(super().receive(given, now), now)

    def advance(self, now: int) -> Sequence[Effect]:
        return self._heard(super().advance(now), now)

    def _heard(self, effects: Sequence[Effect], now: int) -> Sequence[Effect]:
        for effect in effects if self.hear else ():
            self.hear(effect, now)
        return effects


def busy_world(quality: LinkQuality) -> tuple[MapWorld, list[str]]:
    world = MapWorld(MapSettings(subscribers_min=2), quality=quality, server=OverheardServer)
    names = [f"c{number}" for number in range(len(LIMITS))]
    for name, limit in zip(names, LIMITS, strict=True):
        world.client(name, limit_bytes=limit)
        world.watch(name, QUERY)
    world.client("free")
    world.watch("free", QUERY)
    world.client("mover")
    world.run(3)
    return world, names


def move(world: MapWorld, draw: random.Random, seconds: float) -> None:
    """Twenty updates a second of objects of about 200 bytes, three times the lowest limit."""
    for _ in range(int(seconds * 20)):
        vid = f"o{draw.randrange(30):02}"
        world.put("mover", vid, f"lab/{draw.randrange(99)}", note="n" * 150)
        world.run(0.05)


class Told:
    """What the server has sent to whom, held against the limits, the counts and the order."""

    def __init__(self, world: MapWorld, names: list[str]) -> None:
        self.counted = self.partial = self.updates = 0
        self._world = world
        self._bandwidth = BandwidthLimit(dict(zip(names, LIMITS, strict=True)))
        self._names = names
        self._newest: dict[str, int] = {}
        self._number = 0
        self._sent: dict[str, dict[str, int]] = {name: {} for name in [*names, "free"]}

    def hear(self, effect: Effect, now: int) -> None:
        if isinstance(effect, ContextOpened | ContextChanged):  # stands before its messages
            self._number = max(self._number + 1, now)  # 0090: by their time
            self._newest[effect.vid] = self._number
            self.updates += 1
        elif isinstance(effect, Send):
            self._bandwidth.deliver(effect.to.name, size_of(effect.message), now)
        elif isinstance(effect, Multicast):
            heard = self._world.world.network.members(effect.group)
            for name in heard:
                self._bandwidth.deliver(name, size_of(effect.message), now)
            if isinstance(effect.message, Data):
                self._update(parcel_of(effect.message.payload), set(heard))

    def _update(self, parcel: Parcel, heard: set[str]) -> None:
        for state in parcel.items:
            assert isinstance(state, State)
            for name in heard:
                self._sent[name][state.vid] = state.number
        # Whoever has more bandwidth hears whatever anybody with less hears.
        limited = [name for name in self._names if name in heard]
        assert limited == self._names[len(self._names) - len(limited) :]
        assert "free" in heard
        lacking = [
            sum(self._sent[name].get(vid) != number for vid, number in self._newest.items())
            for name in limited
        ]
        assert list(parcel.pending) == lacking
        assert lacking == sorted(lacking, reverse=True)
        self.counted += 1
        self.partial += any(lacking)


@pytest.mark.slow
@pytest.mark.no_cover  # tracing makes it several times slower
@pytest.mark.parametrize("minutes", [2, pytest.param(10, marks=pytest.mark.soak)])
def test_ten_limits_on_one_hot_query_for_minutes_under_loss(minutes: int) -> None:
    world, names = busy_world(LinkQuality(loss=0.05, jitter_us=2_000))
    told = Told(world, names)
    world.server.hear = told.hear
    draw = random.Random(5)
    for _ in range(minutes):
        move(world, draw, 60)
        world.records.clear()
    assert told.updates > 1_100 * minutes  # busy all the time
    assert told.counted > 1_000 * minutes
    assert told.partial > 1_000 * minutes
    world.run(20)
    truth = world.sees("free")
    assert len(truth) == 30
    for name in names:
        assert world.sees(name) == truth
        assert sum(world.machine(name).watching.pending.values()) == 0
    bands = [
        [band.limit_bytes for band in stream.bands]
        for stream in world.server.dissemination.classes[""].streams.values()
    ]
    assert [*LIMITS, TOP] in bands  # b + 1 of them
    assert max(effect.count for effect in world.told_to("c0", Pending)) > 0


def test_a_client_with_more_bandwidth_never_knows_less() -> None:
    world, names = busy_world(LinkQuality())
    draw = random.Random(6)
    for _ in range(60):
        move(world, draw, 0.5)
        numbers = []
        for name in [*names, "free"]:
            known = world.machine(name).watching.copy.known
            numbers.append({vid: one.number for vid, one in known.items()})
        for less, more in pairwise(numbers):
            assert all(more.get(vid, (0, 0)) >= number for vid, number in less.items())
    world.run(60)
    for name in names:
        assert world.sees(name) == world.sees("free")


def test_limits_come_and_go_and_their_bands_with_them() -> None:
    world = MapWorld(MapSettings(subscribers_min=1, linger_us=500_000))
    world.client("free")
    world.watch("free", QUERY)
    world.client("mover")
    world.run(1)
    world.client("low", limit_bytes=2_000)
    world.watch("low", QUERY)
    world.run(3)
    (stream,) = world.server.dissemination.classes[""].streams.values()
    assert [band.limit_bytes for band in stream.bands] == [2_000, TOP]
    assert world.server.dissemination.bands == 1
    world.put("mover", "m", "lab/1")
    world.run(2)
    assert world.sees("low") == world.sees("free") == {"m": "lab/1"}
    world.unwatch("low")
    world.run(4)
    assert [band.limit_bytes for band in stream.bands] == [TOP]
    assert world.server.dissemination.bands == 0
    world.put("mover", "m", "lab/2")
    world.run(1)
    assert world.sees("free") == {"m": "lab/2"}


def test_a_limit_below_the_least_is_refused_and_never_exceeded_either() -> None:
    world = MapWorld(MapSettings())
    world.client("tiny", limit_bytes=100)
    world.run(4)
    assert "at least" in world.told_to("tiny", Refusal)[0].reason


def test_every_message_says_how_many_objects_each_listener_still_lacks() -> None:
    stream = Stream(1, "", (1,), 1)
    limits = {"low": 1_200, "middle": 2_500, "high": 6_000}
    for number, limit in enumerate([TOP, *limits.values()]):
        sender = ChannelSender(f"b{limit}", incarnation=1, now=0, settings=ChannelSettings())
        stream.join(f"n{number}", None) if limit == TOP else None
        stream.add_band(limit, sender, 0)
    for name, limit in limits.items():
        stream.join(name, Ledger(limit, 100))
    draw, now, newest = random.Random(8), 0, {}
    delivered: dict[str, dict[str, int]] = {name: {} for name in limits}
    partial = 0
    for number in range(1, 600):
        now += draw.randrange(60_000)
        if draw.random() < 0.7:
            state = State(number, f"o{draw.randrange(12)}", b"x" * draw.randrange(50, 400))
            newest[state.vid] = number
            effects = stream.place(state, now)
        else:
            effects = stream.flush(now)
        for effect in effects:
            assert isinstance(effect, Multicast)
            band = int(effect.group[1:])
            parcel = parcel_of(effect.message.payload)
            hearing = [name for name, limit in limits.items() if limit >= band]
            for name in hearing:
                delivered[name].update({one.vid: one.number for one in parcel.items})
            if effect is effects[-1]:  # the last of a flush tells what is left after all of it
                lacking = [
                    sum(delivered[name].get(vid) != latest for vid, latest in newest.items())
                    for name in hearing
                ]
                assert list(parcel.pending) == lacking
                partial += any(lacking)
    assert partial > 10
