"""Casts that are pushed down because a node's cache is full (TCC III-E)."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from roamcast.errors import LimitError
from roamcast.identity.rules import Viewer
from roamcast.model.areas import Area, Patch
from roamcast.model.casts import Cast
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.machine import Effect
from roamcast.overlay.casts.casts import Casts
from roamcast.overlay.casts.messages import CAST, CastParcel, SendCast
from roamcast.overlay.casts.settings import CastSettings
from roamcast.overlay.events import ParcelArrived, ParcelId, ParcelPosted, PostParcel
from roamcast.overlay.tables.areas import Areas
from roamcast.overlay.tables.crowd import Crowd
from roamcast.overlay.tables.directory import NodeEntry
from roamcast.overlay.tables.feeding import TableFeeding, TableSettings
from roamcast.sim.workloads._map_parts import ScanMatcher
from tests.overlay.test_casts import OneNode

LATER = "overlaps(time, INTERVAL('2030-01-01T00:00:00Z', '2030-01-02T00:00:00Z'))"
LINKS = ("far", "near")


class EveryArea(Areas):
    """Neighbours that serve one place each."""

    def beyond(self, thing: Area, came_from: str | None) -> list[str]:
        """Name the neighbours that serve a part of an area."""
        return [
            one
            for one in LINKS
            if one != came_from and thing.meets(Area((Patch(places=(f"campus/{one}",)),)))
        ]


class NobodyThere(Crowd):
    """Neighbours without anybody."""

    def beyond(self, thing: Any, came_from: str | None) -> list[str]:
        """Name no neighbour."""
        return []


class InnerNode(OneNode):
    """A node of a small overlay that serves `campus/here`."""

    def __init__(self, cache_max: int = 2, **more: int) -> None:
        super().__init__()
        settings = CastSettings(cache_max=cache_max, scan_us=10, margin_us=0, **more)
        areas = EveryArea()
        feeding = TableFeeding((areas,), NodeEntry("n", "", ("campus/here",)), TableSettings())
        feeding.restore({}, 0)
        overlay: Any = SimpleNamespace(
            links=SimpleNamespace(node="n", neighbours=dict.fromkeys(LINKS)),
            exchange=SimpleNamespace(tables={"areas": areas, "crowd": NobodyThere()}, links=LINKS),
            topology=SimpleNamespace(tree={"n", *LINKS}, table=SimpleNamespace(items={})),
            feeding=feeding,
        )
        self.handed: list[tuple[str, tuple[str, ...]]] = []
        self.casts = Casts(
            settings, now=0, draw=lambda: 0.5, see=lambda context, *_: context,
            state_of=lambda vid: self.past[vid][-1], key_of=lambda _: b"key",
            trusted_nodes=["trust"], make_matcher=ScanMatcher, overlay=overlay,
        )  # fmt: skip
        spreading = self.casts._desk.spreading
        assert spreading is not None
        spreading.changed(0)
        self.now = spreading._settings.unknown_us + 1_000

    def answer(self, effect: Effect) -> list[Any]:
        """Take parcels for neighbours."""
        if isinstance(effect, PostParcel):
            if effect.kind == CAST:
                body = msgspec.msgpack.decode(effect.body, type=CastParcel).body
                self.handed.append((body.id, effect.targets))
            return [ParcelPosted(effect.part, effect.token, ParcelId("n", 1, effect.token))]
        return super().answer(effect)

    def send(self, cast: str, place: str, text: str = "") -> Effect:
        """Send a cast for later; give the answer."""
        later = f"within(place, 'campus/{place}') AND {LATER}"
        made = Cast(cast, text or later, b"x", self.now)
        self.told.clear()
        given = SendCast(1, made, Viewer("s"))
        self.carry(self.casts.receive(given, self.now))
        return next(one for one in self.told if isinstance(one, Acknowledged | Failed))

    @property
    def waits(self) -> list[str]:
        return list(self.casts._desk.waiting.casts)


def test_a_full_cache_pushes_down_what_nobody_here_can_match() -> None:
    node = InnerNode(cache_max=2)
    for name, place in (("a", "far"), ("b", "here")):
        assert isinstance(node.send(name, place), Acknowledged)
    assert node.waits == ["a", "b"]
    node.run_until(node.now + 1_000)
    assert node.handed == []  # nobody is there yet
    assert isinstance(node.send("c", "here"), Acknowledged)
    node.run_until(node.now + 100)
    assert node.waits == ["b", "c"]
    assert node.handed == [("a", ("far",))]
    assert node.casts.occupancy()["cached"] == (2, 2)


def test_a_cast_goes_for_the_past_only_where_its_past_was() -> None:
    node = InnerNode()
    was = "overlaps(time, INTERVAL('1969-01-01T00:00:00Z', '1970-01-01T00:00:00Z'))"
    text = f"within(place, 'campus/far') AND {was} OR within(place, 'campus/near') AND {LATER}"
    assert isinstance(node.send("a", "", text), Acknowledged)
    node.run_until(node.now + 100)
    assert node.handed == [("a", ("far",))]


def test_a_cast_for_elsewhere_does_not_wait_at_a_full_node() -> None:
    node = InnerNode(cache_max=1)
    node.send("a", "here")
    assert isinstance(node.send("b", "near"), Acknowledged)
    node.run_until(node.now + 100)
    assert node.waits == ["a"]
    assert node.handed == [("b", ("near",))]
    assert node.casts.view("b").nodes_asked == 2


def test_a_cache_full_of_casts_for_here_takes_no_more_for_here() -> None:
    node = InnerNode(cache_max=1)
    node.send("a", "here")
    refused = node.send("b", "here")
    assert isinstance(refused, Failed)
    assert isinstance(refused.error, LimitError)
    assert node.waits == ["a"]
    assert not any(key.startswith("casts/body") for key in list(node.disk)[2:])


def test_a_neighbours_cast_that_finds_no_room_stays_in_custody() -> None:
    node = InnerNode(cache_max=1)
    node.send("a", "here")
    held = node.casts.casts["a"].body
    body = msgspec.structs.replace(held, id="b", origin="far")
    parcel = msgspec.msgpack.encode(CastParcel(body, (), 1_000, "far", b"x"))
    arrived = ParcelArrived(ParcelId("far", 1, 1), CAST, parcel)
    node.carry(node.casts.receive(arrived, node.now))
    assert list(node.casts.casts) == ["a"]
    assert list(node.casts._desk.held_up) == [arrived.parcel]


@pytest.mark.parametrize("long", [False, True])
def test_a_long_filter_is_taken_apart_beside_the_loop(long: bool) -> None:
    node = InnerNode(plan_chars=10 if long else 10_000)
    asked: list[str] = []
    answer = node.answer
    node.answer = lambda effect: asked.append(type(effect).__name__) or answer(effect)  # type: ignore[method-assign,func-returns-value]
    assert isinstance(node.send("a", "here"), Acknowledged)
    assert ("PlanFilter" in asked) == long
    bad = Cast("c", "within(place, 'x') AND NOT within(place, 'x') AND a = 1", b"x", node.now)
    node.told.clear()
    node.carry(node.casts.receive(SendCast(2, bad, Viewer("s")), node.now))
    assert list(node.casts.casts) == ["a"] or isinstance(node.told[-1], Acknowledged)
    assert not node.casts._desk.writing
