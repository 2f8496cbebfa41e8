"""Relocation: four variants, each with what it promises, wherever the consumer moves."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import LimitError, ModulatorError
from roamcast.model.contexts import Context
from roamcast.overlay.flows.vector import Position
from roamcast.overlay.homes import relocation
from roamcast.overlay.homes.relocation import (
    LogSpan,
    ModulatedConsumer,
    Relocation,
    recover,
    take_over,
)
from roamcast.overlay.modulators.modulation import Modulation
from roamcast.overlay.modulators.sample import sample_of
from roamcast.overlay.modulators.specs import EveryNth, Select

SPECS = (Select("n >= 0"), EveryNth(3))
PLAIN = (Select("n >= 0"),)
ORIGINS = ("x", "y")


def event(origin, number):
    context = Context(f"{origin}{number}", "here", None, {"n": number})
    return Position(1, number), sample_of(context), number


class World:
    """Two origins' logs, one consumer, and an independent record of the mix it was served in."""

    def __init__(self, seed, specs=SPECS):
        self.draw = random.Random(seed)
        self.specs = specs
        self.ends = dict.fromkeys(ORIGINS, 0)
        self.served = ModulatedConsumer(
            specs, Modulation(specs), dict.fromkeys(ORIGINS, Position(1, 0))
        )
        self.got = []
        self.taken = []
        """(origin, number) in the order in which modulators should have had them."""

    def log(self, interval):
        span = range(interval.after.number + 1, interval.upto.number + 1)
        return [event(interval.origin, number) for number in span]

    def give(self, interval):
        known = self.served.vector[interval.origin].number
        if not self.served.frozen:
            new = range(known + 1, interval.upto.number + 1)
            self.taken += [(interval.origin, number) for number in new]
        self.got += [s.context.vid for s in self.served.deliver(interval, self.log(interval))]

    def flow(self):
        """Publish a little; the interval may overlap what is known, or come twice."""
        origin = self.draw.choice(ORIGINS)
        self.ends[origin] += self.draw.randrange(4)
        known = self.served.vector[origin].number
        after = max(0, known - self.draw.randrange(3))
        interval = LogSpan(origin, Position(1, after), Position(1, max(after, self.ends[origin])))
        for _ in range(self.draw.choice((1, 1, 2))):
            self.give(interval)

    def move(self, how, during=2):
        """Freeze, let events flow past the old home, and go on elsewhere."""
        frozen = self.served.freeze(how)
        for _ in range(during):
            self.flow()
        start = {origin: Position(1, end) for origin, end in self.ends.items()}
        self.served, skipped = take_over(frozen, start, Modulation)
        return skipped

    def catch_up(self):
        for origin, end in self.ends.items():
            at = self.served.vector[origin]
            if at < Position(1, end):
                self.give(LogSpan(origin, at, Position(1, end)))

    def expected(self, taken):
        found = Modulation(self.specs)
        samples = [event(origin, number)[1:] for origin, number in taken]
        answers = [found.apply(sample, time) for sample, time in samples]
        return [answer.context.vid for answer in answers if answer is not None]


def run(seed, how, specs=SPECS, moves=3):
    world, skipped = World(seed, specs), []
    for _ in range(moves):
        for _ in range(world.draw.randrange(1, 6)):
            world.flow()
        skipped += world.move(how)
    for _ in range(3):
        world.flow()
    world.catch_up()
    return world, skipped


@settings(max_examples=60)
@given(st.integers(0, 10_000))
def test_strict_relocation_is_as_if_nobody_had_moved(seed):
    world, skipped = run(seed, Relocation())
    assert not skipped
    assert world.got == world.expected(world.taken)
    for origin in ORIGINS:  # nothing lost, doubled or reordered
        numbers = [number for one, number in world.taken if one == origin]
        assert numbers == list(range(1, world.ends[origin] + 1))


@settings(max_examples=40)
@given(st.integers(0, 10_000))
def test_events_without_state_are_all_there_once_in_order(seed):
    world, skipped = run(seed, Relocation(state=False), PLAIN)
    assert not skipped
    for origin in ORIGINS:
        numbers = [int(vid[1:]) for vid in world.got if vid[0] == origin]
        assert numbers == list(range(1, world.ends[origin] + 1))


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.booleans())
def test_the_light_variants_lose_exactly_what_they_report(seed, state):
    world, skipped = run(seed, Relocation(events=False, state=state), PLAIN)
    for origin in ORIGINS:
        lost = {
            number
            for gap in skipped
            if gap.origin == origin
            for number in range(gap.after.number + 1, gap.upto.number + 1)
        }
        numbers = [int(vid[1:]) for vid in world.got if vid[0] == origin]
        assert numbers == [n for n in range(1, world.ends[origin] + 1) if n not in lost]


def test_state_moves_without_events():
    world = World(1)
    world.give(LogSpan("x", Position(1, 0), Position(1, 2)))
    frozen = world.served.freeze(Relocation(events=False))
    served, skipped = take_over(frozen, {"x": Position(1, 7)}, Modulation)
    assert skipped == [LogSpan("x", Position(1, 2), Position(1, 7))]
    # The counter stood at two: the next event is the third.
    assert len(served.deliver(LogSpan("x", Position(1, 7), Position(1, 8)), [event("x", 8)])) == 1


def test_modulators_begin_anew_without_state():
    world = World(1)
    world.give(LogSpan("x", Position(1, 0), Position(1, 2)))
    served, _ = take_over(world.served.freeze(Relocation(state=False)), {}, Modulation)
    assert served.deliver(LogSpan("x", Position(1, 2), Position(1, 3)), [event("x", 3)]) == []


def test_a_new_home_that_is_behind_delivers_nothing_twice():
    world = World(1, PLAIN)
    world.give(LogSpan("x", Position(1, 0), Position(1, 5)))
    frozen = world.served.freeze(Relocation(events=False))
    served, skipped = take_over(frozen, {"x": Position(1, 3)}, Modulation)
    assert not skipped
    interval = LogSpan("x", Position(1, 3), Position(1, 6))
    assert [s.context.vid for s in served.deliver(interval, world.log(interval))] == ["x6"]


def test_trap_24_state_that_is_taken_later_than_the_vector_is_found(monkeypatch):
    """Planted: the state is frozen, but events still reach the modulators before they stop."""

    def freeze(self, how):
        vector = relocation.pairs(self.vector)
        for _ in range(2):  # events under way
            at = self.vector["x"].number + 1
            self.deliver(LogSpan("x", Position(1, at - 1), Position(1, at)), [event("x", at)])
        self.frozen = True
        self._renew()
        return relocation.Frozen(self.specs, vector, self._checkpoint, how)

    monkeypatch.setattr(ModulatedConsumer, "freeze", freeze)
    assert any(
        world.got != world.expected(world.taken)
        for world, _ in (run(seed, Relocation()) for seed in range(20))
    )


def test_a_move_that_is_given_up_goes_on_where_it_was():
    world = World(4)
    world.give(LogSpan("x", Position(1, 0), Position(1, 4)))
    world.served.freeze(Relocation())
    world.give(LogSpan("x", Position(1, 4), Position(1, 6)))
    world.served.thaw()
    world.ends["x"] = 6
    world.catch_up()
    assert world.got == world.expected(world.taken)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 5))
def test_a_crash_recovers_state_and_answers_exactly(seed, flows):
    world = World(seed)
    for _ in range(flows):
        world.flow()
    before = len(world.got)
    world.served.freeze(Relocation())
    world.served.thaw()
    for _ in range(flows):
        world.flow()
    saved = world.served.save()
    world.served, again = recover(saved, world.log, Modulation)
    assert [sample.context.vid for sample in again] == world.got[before:]
    for _ in range(4):
        world.flow()
    world.catch_up()
    assert world.got == world.expected(world.taken)


def test_a_log_that_answers_otherwise_stops_the_consumer():
    world = World(2, PLAIN)
    world.give(LogSpan("x", Position(1, 0), Position(1, 4)))
    with pytest.raises(ModulatorError, match="replayed"):
        recover(world.served.save(), lambda interval: world.log(interval)[:-1], Modulation)


def test_a_gap_is_named_and_not_stepped_over():
    world = World(1)
    assert world.served.missing(LogSpan("x", Position(1, 3), Position(1, 5))) == LogSpan(
        "x", Position(1, 0), Position(1, 3)
    )
    assert world.served.missing(LogSpan("z", Position(1, 3), Position(1, 5))) is None
    with pytest.raises(AssertionError, match="gap"):
        world.served.deliver(LogSpan("x", Position(1, 3), Position(1, 5)), [])


def test_steps_and_origins_have_bounds(monkeypatch):
    monkeypatch.setattr(relocation, "STEPS_MAX", 4)
    monkeypatch.setattr(relocation, "ORIGINS_MAX", 2)
    world = World(1)
    for number in range(1, 12):
        world.give(LogSpan("x", Position(1, number - 1), Position(1, number)))
        assert len(world.served.save().steps) < 4
    assert world.got == world.expected(world.taken)
    with pytest.raises(LimitError, match="at most 2"):
        world.served.deliver(LogSpan("z", Position(1, 0), Position(1, 1)), [event("z", 1)])
    with pytest.raises(LimitError, match="at most 2"):
        ModulatedConsumer(SPECS, Modulation(SPECS), dict.fromkeys("abc", Position(1, 0)))
