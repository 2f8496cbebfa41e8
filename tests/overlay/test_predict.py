"""Prediction by heading, and by counts of where people went on to."""

from collections.abc import Sequence
from typing import Any

import pytest

from roamcast.broker import Broker, CloseSession, OpenSession
from roamcast.channels.server.settings import MapSettings
from roamcast.errors import InputError
from roamcast.identity.rules import Viewer
from roamcast.model.filters import Filter
from roamcast.model.places import Place, Places
from roamcast.model.transitions import Transitions, read_transitions
from roamcast.overlay.consumers.events import ReportSessionPlace, SubscribeSessionEvents
from roamcast.overlay.consumers.settings import EventSettings
from roamcast.overlay.handoff.predict import Seen, heading_for, nodes_ahead
from roamcast.overlay.overlay import OverlayNode
from roamcast.sim.workloads._overlay_parts import key_pair


def node_at(x: float, y: float) -> str | None:
    """Four areas of 100 m by 100 m; nothing beyond."""
    if not (0 <= x < 200 and 0 <= y < 200):
        return None
    return f"{'we'[x >= 100]}{'sn'[y >= 100]}"


def ahead(
    at: tuple[float, float], velocity: tuple[float, float], reach_m: float
) -> tuple[str, ...]:
    def nodes_at(points: Sequence[tuple[float, float]]) -> list[str | None]:
        return [node_at(*point) for point in points]

    return nodes_ahead(at, velocity, nodes_at, "ws", reach_m=reach_m)


def test_what_lies_ahead_within_reach_is_named() -> None:
    assert ahead((80, 20), (1, 0), 30) == ("es",)
    assert ahead((80, 20), (30, 0), 30) == ("es",)
    assert ahead((80, 20), (-1, 0), 30) == ()
    assert ahead((80, 20), (1, 0), 15) == ()


def test_towards_a_corner_its_neighbours_are_named_too() -> None:
    assert ahead((80, 80), (1, 1), 60) == ("en", "es", "wn")


def test_who_stands_goes_nowhere() -> None:
    assert ahead((99, 99), (0, 0), 100) == ()


def test_only_nodes_that_people_go_on_to_are_likely() -> None:
    known = Transitions(5, {"a/1": {"x/1": 14, "x/2": 6, "y/1": 5, "a/2": 75}})

    def likely(place: str, least: float) -> tuple[str, ...]:
        return known.likely(place, ("x", "y", "z"), lambda path: path[0], least=least)

    assert likely("a/1", 0.2) == ("x",)
    assert likely("a/1", 0.05) == ("x", "y")
    assert likely("a/2", 0.2) == ("x", "y", "z")  # nothing is known of it


def test_a_file_of_transitions_is_read_or_refused() -> None:
    assert read_transitions(b'{"k": 5, "counts": {"a": {"b": 5}}}').counts == {"a": {"b": 5}}
    for text in (b"", b"[]", b'{"k": 5, "counts": {"a": {"b": 4}}}', b'{"counts": {"a": 1}}'):
        with pytest.raises(InputError, match="not transition counts"):
            read_transitions(text)


EAST, NORTH = 1 / 111_195, 1 / 111_195
"""Degrees of a metre on the equator."""


def metres(x: float, y: float) -> tuple[float, float]:
    return x * EAST, y * NORTH


def nodes_on_earth(points: Sequence[tuple[float, float]]) -> list[str | None]:
    return [node_at(x / EAST, y / NORTH) for x, y in points]


def heading(before: tuple[float, float], after: tuple[float, float], us: int = 10_000_000) -> Any:
    return heading_for(Seen(metres(*before), 0), Seen(metres(*after), us), nodes_on_earth)


def test_two_positions_tell_where_somebody_is_heading() -> None:
    assert heading((60, 20), (80, 20)) == {"ws", "es"}
    assert heading((80, 20), (60, 20)) == {"ws"}
    assert heading((20, 20), (25, 20)) == {"ws"}  # too slow to be there within the horizon


def test_positions_that_say_nothing_narrow_nothing() -> None:
    now = Seen(metres(80, 20), 10_000_000)
    assert heading_for(None, now, nodes_on_earth) is None
    assert heading((79, 20), (80, 20)) is None
    assert heading((60, 20), (80, 20), 0) is None
    assert heading((60, 20), (80, 20), 60_000_001) is None


@pytest.mark.parametrize("latitude", [89.9999, 90.0, -90.0])
def test_headings_hold_at_poles_and_across_the_date_line(latitude: float) -> None:
    def everywhere(points: Sequence[tuple[float, float]]) -> list[str | None]:
        assert all(-180 <= x <= 180 and -90 <= y <= 90 for x, y in points)
        return ["there" if x < -179.99 else None for x, _ in points]

    assert heading_for(Seen((0.0, latitude), 0), Seen((90.0, 0.0), 1), everywhere) is not None
    assert heading_for(Seen((90.0, 0.0), 0), Seen((0.0, latitude), 1), everywhere) is not None
    west, east = Seen((179.999, 0.0), 0), Seen((179.9995, 0.0), 10_000_000)
    assert heading_for(west, east, everywhere) == {"there"}


def square(path: str, west: float, *neighbours: str, drawn: bool = True) -> Place:
    ring = [metres(x, y) for x, y in ((west, 0), (west + 10, 0), (west + 10, 10), (west, 10))]
    shape = {"type": "Polygon", "coordinates": [[*map(list, ring), list(ring[0])]]}
    return Place(path, "room", shape if drawn else None, neighbours)


class Middle:
    """A session between a western, an eastern and an upper node, of which the last has no shape."""

    def __init__(self, events: EventSettings) -> None:
        self.broker = middle(events)
        self.session = "ann#phone"
        self.broker.receive(OpenSession(1, self.session, Viewer("ann")), 1)
        subscribe = SubscribeSessionEvents(2, self.session, "all", Filter.parse("true"))
        self.broker.receive(subscribe, 1)

    def asked(self, point: tuple[float, float] | None, seconds: int) -> set[str]:
        """Report a point, or none; give the nodes that prepare."""
        report = ReportSessionPlace(self.session, "mid/1", point)
        self.broker.receive(report, seconds * 1_000_000)
        assert self.broker.overlay is not None
        assert self.broker.overlay.handoff is not None
        return set(next(iter(self.broker.overlay.handoff.locals.values())).asked)


def middle(events: EventSettings) -> Broker:
    beside = ("east/1", "west/1", "above/1")
    places = Places(
        [
            *(Place(name, "building") for name in ("mid", "east", "west", "above")),
            square("mid/1", 10, *beside),
            square("east/1", 20, "mid/1"),
            square("west/1", 0, "mid/1"),
            square("above/1", 10, "mid/1", drawn=False),
        ]
    )
    broker = Broker(
        "mid",
        epoch=1,
        now=0,
        load=lambda _: {},
        map_settings=MapSettings(),
        places=places,
        event_settings=events,
        overlay=OverlayNode("mid", key_pair("mid")[0], {}, lambda: 0.5, lambda: bytes(16)),
    )
    assert broker.overlay is not None
    assert broker.overlay.handoff is not None
    broker.overlay.feeding.node_at = lambda place: place.split("/")[0]  # type: ignore[method-assign]
    return broker


def test_a_session_that_says_where_it_is_lets_nodes_prepare_that_people_go_on_to() -> None:
    known = Transitions(5, {"mid/1": {"east/1": 80, "west/1": 15, "above/1": 5}})
    assert Middle(EventSettings(transitions=known)).asked(None, 1) == {"east", "west"}
    many = EventSettings(transitions=known, transitions_least=0.5)
    assert Middle(many).asked(None, 1) == {"east"}
    elsewhere = EventSettings(transitions=Transitions(5, {"mid/2": {"east/1": 80}}))
    assert Middle(elsewhere).asked(None, 1) == {"east", "west", "above"}


def test_a_session_that_says_where_it_is_lets_nodes_ahead_prepare() -> None:
    one = Middle(EventSettings())
    broker, session, asked = one.broker, one.session, one.asked
    assert asked(None, 1) == {"east", "west", "above"}
    assert asked(metres(12, 5), 2) == {"east", "west", "above"}
    assert asked(metres(16, 5), 4) == {"east", "above"}
    assert asked(metres(12, 5), 6) == {"west", "above"}
    assert asked(None, 8) == {"east", "west", "above"}
    assert broker.events is not None
    assert broker.events.occupancy()["seen sessions"][0] == 0
    asked(metres(12, 5), 9)
    assert broker.events.occupancy()["seen sessions"][0] == 1
    broker.receive(CloseSession(session), 10_000_000)
    broker.receive(ReportSessionPlace(session, "mid/1", metres(12, 5)), 11_000_000)
    assert broker.events.occupancy()["seen sessions"][0] == 0
