"""Deciding over open contexts, and expiration: TCC figure 4 with the errata."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.model import time
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.lasting import decide, expiration
from roamcast.model.filters.syntax import PREDICATES
from roamcast.model.filters.temporal import RELATIONS

A, B, Z = 100, 200, 10
TICK = time.MICROSECONDS


def interval(a: int, b: int) -> str:
    return f"INTERVAL('{time.format_instant(a)}','{time.format_instant(b)}')"


def predicate(name: str) -> Filter:
    tolerance = f", {Z}" if name == "equals" else ""
    return Filter.parse(f"{name}(time, {interval(A * TICK, B * TICK)}{tolerance})")


# The paper's expiration column: after which moment nothing can match, and (where it says so)
# after which moment nothing can match if no open context began early enough.
PAPER = {
    "before": (A - 1 / TICK, None),
    "after": (None, None),
    "starts_only": (B, None),
    "ends_only": (B, A),
    "start_by": (B, None),
    "end_by": (B, None),
    "overlaps": (B, None),
    "excludes": (None, None),
    "equals": (B + Z, A + Z),
    "during": (B, None),
    "contains": (B, A),
}


@pytest.mark.parametrize("name", PREDICATES)
def test_a_predicate_expires_when_the_paper_says(name: str) -> None:
    last, last_start = PAPER[name]
    found = expiration(predicate(name))
    assert found.last == (None if last is None else round(last * TICK))
    if last is None:
        assert not found.expired(10**15, [])
        return
    assert found.expired(found.last + 1)
    assert not found.expired(found.last)
    if last_start is not None:
        after = last_start * TICK + 1
        assert found.expired(after, [after])
        assert not found.expired(after, [A * TICK - 5])
        assert not found.expired(after), "without knowing the open contexts it must wait"


@pytest.mark.parametrize("name", PREDICATES)
def test_lateness_keeps_a_filter_longer(name: str) -> None:
    found = expiration(predicate(name))
    if found.last is not None:
        assert not found.expired(found.last + 50, lateness=50)
        assert found.expired(found.last + 51, lateness=50)


moments = st.integers(0, 12)
"""Microseconds: the finest there is, so that no end lies between two that were tried."""


@st.composite
def temporal_filters(draw: st.DrawFn, depth: int = 2) -> str:
    if depth and draw(st.booleans()):
        inner = [draw(temporal_filters(depth - 1)) for _ in range(draw(st.integers(1, 3)))]
        joined = f" {draw(st.sampled_from(['AND', 'OR']))} ".join(f"({part})" for part in inner)
        return f"NOT ({joined})" if draw(st.booleans()) else joined
    a, b = sorted((draw(moments), draw(moments)))
    name = draw(st.sampled_from([*PREDICATES, "t_meets", "t_during", "t_overlaps", "t_finishes"]))
    span = interval(a, b)
    if draw(st.integers(0, 5)) == 0:
        span = f"INTERVAL('..','{time.format_instant(b)}')"
    if draw(st.integers(0, 5)) == 0:
        span = f"INTERVAL('{time.format_instant(a)}','..')"
    if draw(st.integers(0, 5)) == 0:
        return f"t_after(time, seen) OR seen > TIMESTAMP('{time.format_instant(a)}')"
    if draw(st.integers(0, 4)) == 0:  # both ends may depend on what only the context knows
        other = draw(st.sampled_from(["seen", "INTERVAL(seen, '..')", "time"]))
        return f"{draw(st.sampled_from(list(RELATIONS)))}(time, {other})"
    return f"{name}(time, {span})"


def at(t_r: int, t_d: int | None, seen: int = 5) -> Context:
    attributes = {"seen": time.to_datetime(seen)}
    end = None if t_d is None else t_d
    return Context("v", t_r=t_r, t_d=end, attributes=attributes)


@pytest.mark.parametrize("name", RELATIONS)
def test_a_lifetime_is_related_to_itself_without_asking_for_ever(name: str) -> None:
    wanted, unwanted = (Filter.parse(f"{no}{name}(time, time)") for no in ("", "NOT "))
    for one in (wanted, unwanted):
        assert Filter.parse(one.text) == one
        for context in (at(3, 3), at(3, 4), at(3, None)):
            assert decide(one, context, 4).answer is one.matches(context)
    assert wanted.matches(at(3, 4)) is not unwanted.matches(at(3, 4))


def test_an_end_that_is_compared_with_an_attribute_keeps_a_filter_waiting() -> None:
    """Who began in time may end, and so match, whenever its own attribute allows."""
    began = f"start_by(time, {interval(1, 2)})"
    found = expiration(Filter.parse(f"{began} AND t_before(time, seen)"))
    assert found.last is None
    assert not found.expired(100)
    assert not found.expired(100, [1])
    assert found.expired(100, [3])
    ended = f"{began} AND end_by(time, {interval(1, 9)}) AND t_before(time, seen)"
    assert expiration(Filter.parse(ended)).last == 9


@given(temporal_filters(), moments, moments)
def test_a_decision_is_never_taken_back_and_never_late(text: str, t_r: int, wait: int) -> None:
    wanted = Filter.parse(text)
    now = t_r + wait
    decision = decide(wanted, at(t_r, None), now)
    endings = [at(t_r, end) for end in range(now, 30)] + [at(t_r, None)]
    answers = {wanted.matches(ending) for ending in endings}
    if decision.answer is not None:
        assert answers == {decision.answer}
    if len(answers) == 1:  # as soon as no later end can change it, it is decided
        assert decision.answer is not None
    if decision.answer is None and decision.again is not None:
        assert decision.again > now
        early = decide(wanted, at(t_r, None), decision.again - 1)
        assert early.answer is None, "asking again any sooner would have been in vain"


@given(temporal_filters(), moments, st.none() | moments)
def test_nothing_matches_after_expiration(text: str, t_r: int, length: int | None) -> None:
    """The last possible match: when a context ends, or sooner, when it is decided while open."""
    wanted = Filter.parse(text)
    last = expiration(wanted).last
    end = None if length is None else t_r + length
    context = at(t_r, end)
    if not wanted.matches(context):
        return
    decided = t_r
    while (found := decide(wanted, at(t_r, None), decided)).answer is None:
        if found.again is None or (end is not None and found.again > end):
            assert end is not None
            decided = end
            break
        decided = found.again
    if end is not None:
        decided = min(decided, end)
    assert last is None or decided <= last
    assert not expiration(wanted).expired(decided, [t_r])
