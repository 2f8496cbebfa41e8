"""Prediction by heading, and by counts of where people went on to."""

from collections.abc import Sequence

import pytest

from roamcast.errors import InputError
from roamcast.model.transitions import Transitions, read_transitions
from roamcast.overlay.handoff.predict import nodes_ahead


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
