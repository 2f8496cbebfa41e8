"""Subscriptions have a standing cost, held against one budget of their subject, and given back."""

import pytest

from roamcast.channels.server.settings import MapSettings
from roamcast.errors import LimitError
from roamcast.identity.rules import Viewer
from roamcast.model.filters import Filter
from tests.strategies_hub import Desk
from tests.strategies_map import MapWorld

TWO_TERMS = "type = 'printer' AND level = {i}"


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("a = 1", 1),
        ("a IN (1, 2, 3)", 3),
        ("a = 1 AND b = 2", 2),
        ("(a = 1 OR b = 2) AND c = 3", 4),  # two rows of two terms
        ("a + 1 > b", 64),
        ("name LIKE '%x%'", 4),
        (" AND ".join(f"(a{i} = 1 OR b{i} = 1)" for i in range(6)), 64 * 12),  # 2⁶ rows
    ],
)
def test_what_no_index_answers_weighs_more(text: str, steps: int) -> None:
    assert Filter.parse(text).standing_steps == steps


@pytest.mark.limit("limits.standing_steps_max")
def test_a_subject_holds_what_its_budget_covers_over_all_its_sessions() -> None:
    desk = Desk(map_settings=MapSettings(standing_steps_max=5))
    for session in ("ada#1", "ada#2", "bob#1"):
        desk.open(session, Viewer(session.partition("#")[0]))
    desk.watch("ada#1", TWO_TERMS.format(i=1), "a")
    desk.watch("ada#2", TWO_TERMS.format(i=1), "a")
    with pytest.raises(LimitError, match=r"2 steps, and 4 of 5 are in use"):
        desk.watch("ada#2", TWO_TERMS.format(i=2), "b")
    desk.watch("ada#2", "level = 3", "b")  # exactly 5
    desk.watch("bob#1", TWO_TERMS.format(i=2), "a")
    # The same name again replaces its subscription, and what ends is given back.
    desk.watch("ada#1", TWO_TERMS.format(i=4), "a")
    desk.close("ada#1")
    desk.unwatch("ada#2", "b")
    desk.watch("ada#2", "level IN (1, 2, 3)", "b")
    with pytest.raises(LimitError):
        desk.watch("ada#2", "level = 9", "c")


def test_a_link_is_held_to_the_same_budget() -> None:
    made = MapWorld(MapSettings(standing_steps_max=3))
    made.client("ada#1")
    made.client("ada#2")
    made.watch("ada#1", TWO_TERMS.format(i=1))
    made.watch("ada#2", TWO_TERMS.format(i=2))
    made.run(1)
    standing = made.server.subscriptions.standing
    assert standing.held("ada#2") == 2  # one of them was refused
    made.unwatch("ada#1")
    made.unwatch("ada#2")
    made.run(1)
    assert standing.held("ada#1") == 0
