"""Both ends together, over a wire that a test may spoil as it likes."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.channels.reliable.messages import Message
from roamcast.channels.reliable.receiver import Delivered, Replaced
from roamcast.channels.reliable.sender import SnapshotTaken, SnapshotWanted, Transmit
from roamcast.channels.reliable.settings import ChannelSettings
from roamcast.model.machine import Effect, Multicast, Received, Send
from roamcast.sim.checkers import SequenceOrSnapshot
from tests.strategies_channel import receiver, sender

STEP_US = 10_000
SMALL = ChannelSettings(
    sync_interval_us=100_000, buffer_messages_max=6, ahead_messages_max=5, receivers_expected=1
)


class Wire:
    """A sender and a receiver; every message is lost, doubled or delayed as the luck says."""

    def __init__(self, luck: random.Random, *, newcomer: bool) -> None:
        self.luck = luck
        self.fair = False
        self.now = 0
        self.sender = sender(SMALL)
        start = None if newcomer else (1, 1)
        self.receiver = receiver(SMALL, start=start, draw=luck.random)
        self.checker = SequenceOrSnapshot()
        self.checker.starts("ann", *((0, 0) if newcomer else (1, 0)))
        self.state = b""
        self.theirs = b""
        self.flying: list[tuple[int, int, bool, Message]] = []
        self.count = 0

    def publish(self, payload: bytes) -> None:
        effects = self.sender.receive(Transmit(payload), self.now)
        self.state += payload
        self.checker.sent(self.sender.incarnation, self.sender.last, payload)
        self.perform(effects, to_receiver=True)

    def restart(self) -> None:
        self.sender = sender(
            SMALL,
            incarnation=self.sender.incarnation + 1,
            now=self.now,
            starts_empty=not self.state,
        )

    def perform(self, effects: list[Effect] | tuple[Effect, ...], *, to_receiver: bool) -> None:
        for effect in effects:
            if isinstance(effect, Send | Multicast):
                for _ in range(1 if self.fair else self.luck.choice((0, 1, 1, 2))):
                    delay = STEP_US if self.fair else self.luck.randrange(5 * STEP_US)
                    self.count += 1
                    item = (self.now + delay, self.count, to_receiver, effect.message)
                    self.flying.append(item)
            elif isinstance(effect, SnapshotWanted):
                taken = self.sender.receive(SnapshotTaken(self.state), self.now)
                self.perform(list(taken), to_receiver=True)
            elif isinstance(effect, Delivered):
                self.theirs += effect.payload
                place = (effect.incarnation, effect.sequence)
                self.checker.delivered("ann", *place, effect.payload)
            elif isinstance(effect, Replaced):
                self.theirs = effect.payload
                self.checker.replaced("ann", effect.incarnation, effect.sequence)

    def tick(self) -> None:
        self.now += STEP_US
        self.flying.sort()
        while self.flying and self.flying[0][0] <= self.now:
            _, _, to_receiver, message = self.flying.pop(0)
            machine = self.receiver if to_receiver else self.sender
            effects = machine.receive(
                Received("server" if to_receiver else "ann", message), self.now
            )
            self.perform(list(effects), to_receiver=not to_receiver)
        self.perform(list(self.sender.advance(self.now)), to_receiver=True)
        self.perform(list(self.receiver.advance(self.now)), to_receiver=False)
        for machine in (self.sender, self.receiver):
            assert all(held <= bound for held, bound in machine.occupancy().values())


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from(["publish", "publish", "tick", "tick", "restart"]), max_size=80),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_whatever_happens_the_user_has_the_sequence_or_a_snapshot(
    acts: list[str], seed: int, newcomer: bool
) -> None:
    wire = Wire(random.Random(seed), newcomer=newcomer)
    for number, act in enumerate(acts):
        if act == "publish":
            wire.publish(bytes([number]))
        elif act == "tick":
            wire.tick()
        else:
            wire.restart()
    wire.fair = True
    for _ in range(1_000):
        if wire.theirs == wire.state and wire.receiver.incarnation == wire.sender.incarnation:
            break
        wire.tick()
    assert wire.theirs == wire.state
    assert wire.receiver.expected == wire.sender.last + 1
