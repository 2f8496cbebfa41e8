"""Prediction by heading, and by counted crossings."""

from collections.abc import Sequence

from roamcast.overlay.handoff.predict import likely, nodes_ahead, transitions


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


def test_rare_crossings_are_left_out_of_the_counts() -> None:
    crossings = [("a", "x")] * 15 + [("a", "y")] * 5 + [("a", "z")] * 4 + [("b", "x")] * 4
    shares = transitions(crossings)
    assert shares == {"a": {"x": 15 / 24, "y": 5 / 24}}
    assert likely("a", ("x", "y", "z"), shares, least=0.3) == ("x",)
    assert likely("b", ("x", "y"), shares, least=0.3) == ("x", "y")
