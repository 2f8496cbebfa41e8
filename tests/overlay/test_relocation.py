"""One consumer's way through its modulators: queue, script, checkpoint, and what moves on."""

import pytest

from roamcast.model.contexts import Context, body_of
from roamcast.overlay.flows.messages import Event
from roamcast.overlay.flows.vector import Position
from roamcast.overlay.homes.relocation import (
    QUEUE_BYTES_MAX,
    LogSpan,
    ModulatedConsumer,
    Relocation,
    Saved,
)
from roamcast.overlay.modulators.events import Modulate, ModulationAnswer, StartModulation
from roamcast.overlay.modulators.specs import EveryNth, Select
from roamcast.overlay.modulators.workshop import Workshop

COUNTING = (EveryNth(3),)
PLAIN = (Select("n >= 0"),)


def at(number):
    return Position(1, number)


def event(origin, number, data=b""):
    context = Context(f"{origin}{number}", None, None, {"n": number})
    return number, Event(origin, 1, number, body_of(context), data)


class Home:
    """One home with its workshop; `deliver` is what flows do."""

    def __init__(self, specs, how, **bounds):
        self.work = ModulatedConsumer(specs, how, **bounds)
        self.shop = Workshop()
        self.out = []
        self.job = 0

    def begin(self, saved, had):
        self.work.begin(saved, had)
        start = None if saved is None else saved.checkpoint
        assert self.shop.work(StartModulation("m", 1, self.work.specs, start)) is None

    def deliver(self, origin, after, upto):
        events = tuple(event(origin, n) for n in range(after + 1, upto + 1))
        self.work.add(LogSpan(origin, at(after), at(upto)), events)

    def modulate(self, *, checkpoint=False):
        """Do one job; return whether there was one."""
        replaying = bool(self.work.script)
        found = self.work.next_work()
        if not found and not checkpoint:
            return False
        self.job += 1
        order = Modulate("m", 1, self.job, tuple(one.events for one in found), checkpoint)
        answer = self.shop.work(order)
        assert isinstance(answer, ModulationAnswer)
        out, _ = self.work.answered(found, answer.events, answer.mark, replayed=replaying)
        self.out += [(one.span, e.context.vid) for one in out for _, e in one.events]
        if answer.checkpoint is not None:
            self.checkpoint = answer.checkpoint
        return True


def test_a_script_is_followed_in_its_order_and_no_further():
    first = Home(COUNTING, Relocation())
    first.begin(None, {"x": at(0), "y": at(0)})
    for origin, after, upto in (("x", 0, 1), ("y", 0, 3), ("x", 1, 2)):
        first.deliver(origin, after, upto)
        first.modulate()
    assert [vid for _, vid in first.out] == ["y2"]
    second = Home(COUNTING, Relocation())
    second.begin(first.work.saved(), {"x": at(0), "y": at(0)})
    second.deliver("x", 0, 5)  # more than the script needs, and in another order
    assert second.modulate()
    assert not second.modulate(), "y comes first"
    second.deliver("y", 0, 3)
    while second.modulate():
        pass
    assert [vid for _, vid in second.out] == ["y2"]
    assert second.work.replayed()
    assert second.work.cut, "what was left is asked for again"
    assert second.work.vector == {"x": at(2), "y": at(3)}


def test_an_origin_that_only_the_consumers_end_knows_can_be_replayed():
    """A home fell after it met an origin, and before it had anything of it to write."""
    home = Home(COUNTING, Relocation())
    home.begin(Saved(), {"x": at(1)})
    home.deliver("x", 1, 4)
    home.modulate()
    after = Home(COUNTING, Relocation())
    after.begin(home.work.saved(), {"x": at(4)})
    assert after.work.vector == {"x": at(1)}, "the script begins there"
    after.deliver("x", 1, 8)
    while after.modulate():
        pass
    assert after.work.replayed()
    assert after.out == [], "its end had all of it"
    after.work.clear()
    after.deliver("x", 4, 8)
    after.modulate()
    assert [vid for _, vid in after.out] == ["x7"]


def test_other_answers_on_replay_are_noticed():
    home = Home(COUNTING, Relocation())
    home.begin(None, {"x": at(0)})
    home.deliver("x", 0, 4)
    home.modulate()
    saved = home.work.saved()
    other = Home((EveryNth(2),), Relocation())
    other.begin(Saved(saved.vector, None, saved.steps, saved.mark), {"x": at(0)})
    other.deliver("x", 0, 4)
    other.modulate()
    assert not other.work.replayed()


def test_light_variants_say_what_they_skip():
    work = ModulatedConsumer(PLAIN, Relocation(events=False))
    work.begin(None, {"x": at(3)})
    assert work.stands({"x": at(7), "y": at(2)}) == [LogSpan("x", at(3), at(7))]
    assert work.vector == {"x": at(7), "y": at(2)}


def test_a_checkpoint_counts_once_the_end_had_all_before_it():
    home = Home(COUNTING, Relocation(), renew_steps=2, steps_max=4)
    home.begin(None, {"x": at(0), "y": at(0)})
    for number in range(4):
        home.deliver("xy"[number % 2], number // 2, number // 2 + 1)
        assert home.modulate(checkpoint=home.work.wants_checkpoint)
        if number == 1:
            home.modulate(checkpoint=True)
            home.work.checkpointed(home.checkpoint)
    assert home.work.unconfirmed
    home.deliver("x", 2, 3)
    assert not home.modulate(), "it waits until what went out is confirmed"
    assert not home.work.confirm({"x": at(1)})
    assert home.work.confirm({"x": at(1), "y": at(1)})
    assert dict(home.work.base.vector) == {"x": at(1), "y": at(1)}
    assert home.modulate()


def test_a_full_queue_lets_flows_wait():
    work = ModulatedConsumer(PLAIN, Relocation())
    work.begin(None, {"x": at(0)})
    number = 0
    while not work.crowded:
        number += 1
        work.add(LogSpan("x", at(number - 1), at(number)), (event("x", number, bytes(100_000)),))
    assert work.queue_bytes < QUEUE_BYTES_MAX + 200_000
    while work.next_work():
        pass
    assert work.empty
    assert work.queue_bytes == 0


@pytest.mark.parametrize("how", [Relocation(), Relocation(state=False)])
def test_only_a_state_that_counts_is_recorded(how):
    home = Home(PLAIN, how)
    home.begin(None, {"x": at(0)})
    home.deliver("x", 0, 5)
    home.modulate()
    assert not home.work.saved().steps
