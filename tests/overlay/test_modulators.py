"""Built-in modulators: what they let through, and that they go on elsewhere as if they stayed."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import FilterError, LimitError, ModulatorError
from roamcast.model.contexts import Context
from roamcast.overlay.modulators.modulation import Checkpoint, Modulation
from roamcast.overlay.modulators.sample import sample_of
from roamcast.overlay.modulators.specs import (
    MODULATORS_MAX,
    EveryNth,
    PerSecond,
    Select,
    WithinBox,
    read_specs,
)


def passed(spec, contexts, times=None):
    found = Modulation([spec])
    numbered = enumerate(contexts)
    return [n for n, c in numbered if found.apply(sample_of(c), (times or range(99))[n])]


LEVELS = [Context("g", "river", (float(n), 0.0), {"level": n, "kind": "w"}) for n in range(6)]


def test_a_filter_lets_through_what_it_matches():
    assert passed(Select("level >= 4"), LEVELS) == [4, 5]


def test_a_projection_leaves_the_attributes_that_are_named():
    found = Modulation([Select("level > 0", ("level",), data=False)])
    answer = found.apply(sample_of(LEVELS[3], b"large"), 0)
    assert answer.context.attributes == {"level": 3}
    assert answer.context.place == "river"
    assert answer.data == b""


def test_every_nth_is_every_nth():
    assert passed(EveryNth(3), LEVELS) == [2, 5]
    assert passed(EveryNth(1), LEVELS) == [0, 1, 2, 3, 4, 5]


def test_at_most_r_a_second():
    second = 1_000_000
    times = [0, 100_000, second, second + 1, 3 * second, 3 * second + 500_000]
    assert passed(PerSecond(1), LEVELS, times) == [0, 2, 4]


@given(st.lists(st.integers(0, 2_000_000), max_size=60), st.sampled_from([0.5, 1.0, 3.0, 10.0]))
def test_no_second_has_more_than_r_and_one(gaps, rate):
    times, now = [], 0
    for gap in gaps:
        now += gap
        times.append(now)
    found = Modulation([PerSecond(rate)])
    went = [t for t in times if found.apply(sample_of(LEVELS[0]), t) is not None]
    for start in went:
        assert sum(start <= t < start + 1_000_000 for t in went) <= rate + 1


def test_a_box_lets_through_points_inside_it_also_across_the_date_line():
    assert passed(WithinBox(1, -1, 3, 1), LEVELS) == [1, 2, 3]
    assert passed(WithinBox(4, -1, 1, 1), LEVELS) == [0, 1, 4, 5]
    assert passed(WithinBox(0, 0, 9, 9), [Context("g", "river")]) == []
    with pytest.raises(ModulatorError, match="south"):
        Modulation([WithinBox(0, 5, 1, 4)])


def test_modulators_are_applied_in_turn():
    found = Modulation([Select("level > 1"), EveryNth(2)])
    assert [c.attributes["level"] for c in LEVELS if found.apply(sample_of(c), 0)] == [3, 5]


STATEFUL = st.one_of(
    st.builds(EveryNth, st.integers(1, 5)),
    st.builds(PerSecond, st.sampled_from([0.5, 2.0])),
    st.just(Select("level > 1")),
)


@settings(max_examples=60)
@given(
    st.lists(STATEFUL, max_size=3),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 10_000_000)), max_size=20),
    st.integers(0, 20),
)
def test_a_checkpoint_and_the_events_since_give_the_same_answers(specs, drawn, cut):
    events = [(sample_of(LEVELS[level]), time) for level, time in drawn]
    whole, one, other = Modulation(specs), Modulation(specs), Modulation(specs)
    answers = [whole.apply(*event) for event in events]
    for event in events[:cut]:
        one.apply(*event)
    other.restore(one.checkpoint())
    assert other.replay(events[cut:], whole.mark) == answers[cut:]
    assert other.count == len(events)


def test_a_checkpoint_of_others_is_refused():
    found = Modulation([EveryNth(2)])
    with pytest.raises(ModulatorError, match="other modulators"):
        found.restore(Checkpoint((b"", b"")))
    with pytest.raises(ModulatorError, match="not a state"):
        found.restore(Checkpoint((b"\xc1",)))
    with pytest.raises(ModulatorError, match="no state"):
        Modulation([Select()]).restore(Checkpoint((b"x",)))


def test_bad_lists_are_refused_with_the_reason():
    for text, reason in [
        ("{}", "list"),
        ('[{"type": "every"}]', "n"),
        ('[{"type": "every", "n": 0}]', ">= 1"),
        ('[{"type": "sql"}]', "sql"),
        ('[{"type": "wasm", "module": "abc"}]', "module"),
    ]:
        with pytest.raises(ModulatorError, match=reason):
            read_specs(text)
    with pytest.raises(LimitError, match="at most"):
        read_specs(json.dumps([{"type": "every", "n": 1}] * (MODULATORS_MAX + 1)))
    assert len(read_specs(json.dumps([{"type": "every", "n": 1}] * MODULATORS_MAX))) == 8
    with pytest.raises(FilterError):
        Modulation([Select("level >")])
    missing = read_specs(json.dumps([{"type": "wasm", "module": "0" * 64}]))
    with pytest.raises(ModulatorError, match="not here"):
        Modulation(missing)
