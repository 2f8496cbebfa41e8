"""A second person in the workload of casts: consents, refuses, or does nothing."""

import random
from collections.abc import Callable
from typing import Final

from roamcast.identity.rules import Viewer
from roamcast.overlay.casts.consents import AskConsent, ConsentRequest, EndConsent, GiveConsent
from roamcast.overlay.casts.messages import SendCast
from roamcast.sim.workloads._cast_parts import RecordedCast
from roamcast.sim.world import World

Then = Callable[[bool, int], None]
AskNode = Callable[[World, str, Callable[[int], object], Then], None]
"""Asks a node for something, by a new ticket; then it is told whether that was done, and when."""

DECIDES_US: Final = 1_000_000
SECOND: Final = Viewer("second person")


class SecondPerson:
    """Decides about casts that wait: nobody may get one before it is consented to."""

    def __init__(self, ask: AskNode, is_up: Callable[[World, str], bool]) -> None:
        self.draw = random.Random()
        self.consented = 0
        self._ask = ask
        self._is_up = is_up

    def consider(self, world: World, cast: RecordedCast, given: SendCast, sent: Then) -> None:
        """Let a cast wait, and decide later; `sent` hears whether it was promised."""
        waiting = _Waiting(self, world, cast, sent)
        request = ConsentRequest(
            given.cast, cast.sender, (), given.kind, given.policy, given.priority, 0, cast.sent,
            cast.sent + self.draw.randrange(500_000, 5_000_000),
        )  # fmt: skip
        self._ask(world, cast.origin, lambda ticket: AskConsent(ticket, request), waiting.asked)

    def ask(self, waiting: "_Waiting", make: Callable[[int], object], then: Then) -> None:
        """Ask the node where a cast waits, if it is up."""
        if self._is_up(waiting.world, waiting.cast.origin):
            self._ask(waiting.world, waiting.cast.origin, make, then)


class _Waiting:
    """One cast that waits, and what may become of it."""

    def __init__(self, person: SecondPerson, world: World, cast: RecordedCast, sent: Then) -> None:
        self.world = world
        self.cast = cast
        self._person = person
        self._sent = sent
        self._meaning, cast.alternatives = cast.alternatives, ()
        self._refused = False

    def asked(self, done: bool, now: int) -> None:
        draw = self._person.draw
        for decide, chance in ((self._consent, 0.7), (self._refuse, 0.5)):
            if done and draw.random() < chance:
                self.world.kernel.call(now + draw.randrange(DECIDES_US), decide)

    def _consent(self, now: int) -> None:
        cast, draw = self.cast, self._person.draw
        cast.alternatives = () if self._refused else self._meaning  # it may be sent from now on
        cast.sent_us = now
        self._person.ask(self, lambda ticket: GiveConsent(ticket, cast.id, SECOND), self._given)
        if draw.random() < 0.5:  # the sender takes it back while it is on its way
            self.world.kernel.call(now + draw.randrange(5_000), self._refuse)

    def _given(self, done: bool, now: int) -> None:
        self._person.consented += done
        self._sent(done, now)

    def _refuse(self, _: int) -> None:
        viewer = self._person.draw.choice((SECOND, Viewer(self.cast.sender)))
        self._person.ask(self, lambda ticket: EndConsent(ticket, self.cast.id, viewer), self._ended)

    def _ended(self, done: bool, _: int) -> None:
        if done:  # it was not sent, and never will be
            self._refused = True
            self.cast.alternatives = ()
