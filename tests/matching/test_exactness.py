"""Where comparisons go wrong: at 2⁵³, at zero, at empty texts, prefixes and the end of time."""

import pytest

from roamcast.matching import FilterSet
from roamcast.matching.layout import Tuning
from roamcast.model.context_arrow import to_arrow
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter, syntax
from roamcast.model.filters.atoms import Box, Values
from roamcast.model.filters.values import Interval
from roamcast.model.time import FOREVER

FLAT = Tuning(chain_rows=0)


def of(normal: object) -> Filter:
    made = Filter(syntax.Truth(True), "")
    made.__dict__["normal"] = normal
    return made


def answers(normals: dict[str, object], contexts: list[Context]) -> list[set[str]]:
    index = FilterSet(tuning=FLAT)
    index.add_many((name, of(normal)) for name, normal in normals.items())
    singles = [set(index.match(context)) for context in contexts]
    pairs = index.match_batch(to_arrow(contexts))
    batch: list[set[str]] = [set() for _ in contexts]
    for row, name in zip(pairs.rows.tolist(), pairs.ids.tolist(), strict=True):
        batch[row].add(name)
    assert singles == batch
    return singles


EDGE = 2**53
NUMBERS = [EDGE - 1, EDGE, EDGE + 1, EDGE + 2, -EDGE - 1, 2**63 - 1, 0, -0.0, 5e-324, 1.7e308]
BOUNDS = [*NUMBERS, float(EDGE), 2**63, 10**400, -(10**400), 0.0]


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: f"{bound!r:.20}")
def test_numbers_compare_exactly_also_beyond_what_float64_tells_apart(bound: float) -> None:
    normals = {
        "at": Values("n", "number", (Interval(bound, bound),)),
        "below": Values("n", "number", (Interval(None, bound, high_closed=False),)),
        "to": Values("n", "number", (Interval(None, bound),)),
        "above": Values("n", "number", (Interval(bound, None, low_closed=False),)),
        "from": Values("n", "number", (Interval(bound, None),)),
    }
    contexts = [Context("v", attributes={"n": number}) for number in NUMBERS]
    for number, found in zip(NUMBERS, answers(normals, contexts), strict=True):
        told = {
            "at": number == bound,
            "below": number < bound,
            "to": number <= bound,
            "above": number > bound,
            "from": number >= bound,
        }
        assert found == {name for name, holds in told.items() if holds}


def test_an_open_interval_between_neighbouring_floats_still_holds_the_integer_in_it() -> None:
    normal = Values("n", "number", (Interval(EDGE, EDGE + 2, False, False),))
    contexts = [Context("v", attributes={"n": EDGE + step}) for step in range(3)]
    assert answers({"f": normal}, contexts) == [set(), {"f"}, set()]


def test_an_unbounded_interval_holds_every_number_and_nothing_of_another_kind() -> None:
    normal = Values("n", "number", (Interval(),))
    values = [-1.7e308, 1.7e308, 2**63 - 1, "1", True]
    contexts = [Context("v", attributes={"n": value}) for value in values]
    assert answers({"f": normal}, contexts) == [{"f"}, {"f"}, {"f"}, set(), set()]


def test_true_is_not_one() -> None:
    held = {"one": Filter.parse("n = 1").normal, "true": Filter.parse("n = true").normal}
    contexts = [Context("v", attributes={"n": value}) for value in (1, 1.0, True, False)]
    assert answers(held, contexts) == [{"one"}, {"one"}, {"true"}, set()]


def test_texts_compare_by_code_point_with_the_empty_one_first() -> None:
    texts = ["", "a", "ab", "ab\uffff", "ac", "b", "\U0001f600"]
    normals: dict[str, object] = {
        "empty": Values("w", "string", (Interval("", ""),)),
        "from ''": Values("w", "string", (Interval("", None),)),
        "after ''": Values("w", "string", (Interval("", None, low_closed=False),)),
        "ab%": Values("w", "string", (Interval("ab", "ac", high_closed=False),)),
        "not b": Values(
            "w", "string", (Interval(None, "b", True, False), Interval("b", None, False))
        ),
    }
    told = {
        "empty": lambda text: text == "",
        "from ''": lambda text: text >= "",
        "after ''": lambda text: text > "",
        "ab%": lambda text: text.startswith("ab"),
        "not b": lambda text: text != "b",
    }
    contexts = [Context("v", attributes={"w": text}) for text in texts]
    for text, found in zip(texts, answers(normals, contexts), strict=True):
        assert found == {name for name, holds in told.items() if holds(text)}


def test_a_context_that_lasts_ends_at_the_end_of_time() -> None:
    normals: dict[str, object] = {
        "lasts": Values("t_d", "instant", (Interval(FOREVER, FOREVER),)),
        "ended": Values("t_d", "instant", (Interval(None, FOREVER - 1),)),
        "late": Values("t_d", "instant", (Interval(6, None),)),
        "never": Values("t_d", "instant", (Interval(2**70, 2**71),)),
    }
    contexts = [Context("v", t_r=1, t_d=None), Context("v", t_r=1, t_d=5)]
    assert answers(normals, contexts) == [{"lasts", "late"}, {"ended"}]


def test_borders_of_a_box_belong_to_it_and_zero_has_no_sign() -> None:
    normals: dict[str, object] = {"box": Box(0.0, -0.0, 1.0, 1.0)}
    points = [(0.0, 0.0), (-0.0, -0.0), (1.0, 1.0), (1.0000001, 1.0), (-5e-324, 0.5)]
    contexts = [Context("v", point=point) for point in points] + [Context("v")]
    assert answers(normals, contexts) == [{"box"}] * 3 + [set()] * 3


def test_a_text_that_is_a_moment_counts_as_text_and_as_instant() -> None:
    held = {
        "after": Filter.parse("t > TIMESTAMP('2026-11-15T00:00:00Z')").normal,
        "text": Filter.parse("t LIKE '2026%'").normal,
    }
    values = ["2026-11-15T00:00:00.000001Z", "2026-11-15", "2026-11-16", "2026"]
    contexts = [Context("v", attributes={"t": value}) for value in values]
    assert answers(held, contexts) == [{"after", "text"}, {"text"}, {"after", "text"}, {"text"}]
