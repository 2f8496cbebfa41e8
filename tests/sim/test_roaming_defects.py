"""Deliberate defects of flows and handoff: the swarm, or a walk, finds each."""

from typing import Any

import msgspec
import pytest

from roamcast.model.machine import Effect
from roamcast.overlay.flows import reader
from roamcast.overlay.flows.buffer import Buffer
from roamcast.overlay.flows.cursor import ConsumerCursor, TakenEvents
from roamcast.overlay.flows.events import EventsDelivered
from roamcast.overlay.flows.flows import Flows
from roamcast.overlay.flows.home import Home
from roamcast.overlay.flows.log import OriginLog
from roamcast.overlay.flows.messages import Event, Flow
from roamcast.overlay.flows.reader import LogReader, Numbers
from roamcast.overlay.flows.relay import RelayLink
from roamcast.overlay.flows.vector import covers
from roamcast.overlay.flows.waves import Waves
from roamcast.overlay.handoff.events import AttachConsumer
from roamcast.overlay.handoff.handoff import Handoff
from roamcast.overlay.handoff.messages import StepNumber
from roamcast.sim.scenario import Narrowing, draw_scenario, narrow, play
from roamcast.sim.workloads.roaming import RoamingWorkload
from tests.overlay import test_flows, test_handoff
from tests.planting import planted, refuted

SEEDS = 1_000
CREDENTIAL = "a consumer is its credential's latest attachment"
BUSY = {
    "nodes": 4,
    "producers": 3,
    "consumers": 3,
    "events": 120,
    "moves": 24,
    "large": 0,
    "causal": 0,
    "short_log": 0,
    "duration_ms": 3_000,
}
"""Much is published while wants move."""


def found(first: int = 0, sizes: dict[str, int] | None = None) -> str:
    """Give the first broken promise; `first` saves the seeds before the one that shows it."""
    for seed in range(first, SEEDS):
        scenario = draw_scenario("roaming", RoamingWorkload, seed)
        outcome = play(narrow(scenario, Narrowing(settings=sizes or {})), RoamingWorkload)
        if outcome.failed:
            return outcome.promise
    raise AssertionError(f"{SEEDS} seeds did not find it")


def test_deliveries_of_two_homes_taken_as_they_come_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trap 15: in flight at the switch."""

    def trusting(self: ConsumerCursor, given: EventsDelivered) -> TakenEvents:
        self.vector[given.origin] = given.upto
        return TakenEvents(tuple(event for _, event in given.events))

    monkeypatch.setattr(ConsumerCursor, "take", trusting)
    assert found(FIRST["two homes"]) in ("no duplicate", "FIFO per producer", "no loss")


def test_a_mark_that_overtakes_the_wants_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 16: standing before routes stand."""
    real = Waves.advance

    def hasty(self: Waves) -> Any:
        self._stands = lambda _: True
        return real(self)

    monkeypatch.setattr(Waves, "advance", hasty)
    assert found(FIRST["hasty mark"]) in ("no loss", "FIFO per producer", "causal order")


def test_flows_that_count_before_wants_stand_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 16: the start vector is not looked at."""
    real = LogReader.take

    def trusting(self: LogReader, origin: str, interval: Any, *, proven: bool = False) -> None:
        del proven
        real(self, origin, interval, proven=True)

    monkeypatch.setattr(LogReader, "take", trusting)
    assert found(FIRST["unproven"], BUSY) in ("no loss", "FIFO per producer")


def test_a_buffer_without_a_bound_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 17."""
    monkeypatch.setattr(Buffer, "trim", lambda *_: None)
    assert found(FIRST["buffer"]) == "bounded state"


def test_a_buffer_that_forgets_where_it_begins_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 17: the head goes, and the start does not move."""
    monkeypatch.setattr(Buffer, "holds", lambda *_: True)
    assert found(FIRST["start"]) in ("no loss", "FIFO per producer", "causal order")


def test_a_log_too_short_that_is_not_told_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 18: a sleep longer than the log."""
    real = Home._lose

    def silent(self: Home, *given: Any) -> list[Effect]:
        real(self, *given)
        return []

    monkeypatch.setattr(Home, "_lose", silent)
    assert found(FIRST["silent gap"]) == "no loss"


def test_an_old_home_that_lets_go_at_once_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 19: ping-pong at a border."""
    real = Handoff._arrived

    def hasty(self: Handoff, message: Any, now: int) -> list[Effect]:
        effects = real(self, message, now)
        self.timers.set(("lease", message.consumer, ""), now)
        return effects

    monkeypatch.setattr(Handoff, "_arrived", hasty)
    assert found(FIRST["hasty home"]) == "who comes right back is prepared for"


def test_a_lease_that_never_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 20: the old node dies after it asked."""
    monkeypatch.setattr(Handoff, "_end", lambda *_: [])
    assert found(FIRST["lease"]) in (
        "virtual consumers are gone at rest",
        "tables are empty at rest",
    )


def test_an_attachment_that_nobody_compares_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 21: overlapping handoffs."""
    real = Handoff.check

    def trusting(self: Handoff, given: AttachConsumer) -> None:
        self._steps.pop(given.consumer, None)
        real(self, given)

    monkeypatch.setattr(Handoff, "check", trusting)
    assert found(FIRST["attachment"]) == CREDENTIAL


def test_a_late_cancel_that_counts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 21: events survive it by their vector, so a walk looks."""

    real = Handoff._hear

    def trusting(self: Handoff, consumer: str, newest: StepNumber) -> bool:
        real(self, consumer, newest)
        return True

    monkeypatch.setattr(Handoff, "_hear", trusting)
    with refuted():
        test_handoff.test_a_late_cancel_ends_nothing()


def test_a_virtual_consumer_for_whoever_claims_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trap 22."""
    real = Handoff.check

    def trusting(self: Handoff, given: AttachConsumer) -> None:
        local = self.locals.get(given.consumer)
        owner = given.owner if local is None else local.owner
        real(self, msgspec.structs.replace(given, owner=owner))

    monkeypatch.setattr(Handoff, "check", trusting)
    assert found(FIRST["credential"]) == CREDENTIAL


def test_a_new_link_that_is_trusted_at_once_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 26: what was known of a link ends with it."""
    monkeypatch.setattr(Home, "doubt", lambda *_: None)
    assert found(FIRST["new link"]) in (
        "no loss",
        "FIFO per producer",
        "causal order",
        "liveness",
    )


def test_a_link_that_begins_without_a_word_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 26: only its own ends know that wants may be missing."""
    monkeypatch.setattr(Waves, "reset", lambda _: [])
    assert found(FIRST["silent link"]) in ("no loss", "liveness", "FIFO per producer")


def test_an_event_that_waits_for_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "covers", lambda *_: True)
    assert found(FIRST["needs"]) in ("FIFO per producer", "causal order", "no loss")


def test_publications_that_are_not_told_apart_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(self: Numbers, event: Event) -> bool:
        del self, event
        return True

    monkeypatch.setattr(Numbers, "is_new", everything)
    with refuted():
        test_flows.test_a_publication_sent_again_elsewhere_reaches_a_consumer_once()


def test_an_event_that_leaves_before_it_is_on_disk_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Flows._publish

    def hasty(self: Flows, given: Any, now: int) -> list[Effect]:
        effects = real(self, given, now)
        for number in self._tickets:
            if number == self.log._last:
                event = self.log._entries[number].event
                made = Flow(self.node, self.log.epoch, number - 1, number, ((number, event),))
                self._flow(made, None)
        return effects

    monkeypatch.setattr(Flows, "_publish", hasty)
    assert found(FIRST["unsynced"])


def test_a_number_that_is_given_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log forgets how far it has counted when all of it is trimmed."""
    real = OriginLog.restore

    def forgetful(self: OriginLog, stored: Any) -> None:
        real(self, stored)
        if not self._entries:
            self._last = self.upto = self.trimmed = 0

    monkeypatch.setattr(OriginLog, "restore", forgetful)
    assert found(FIRST["numbers"])


def test_a_dropped_flow_that_nobody_hears_of_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = RelayLink.push

    def silent(self: RelayLink, content: Any, bytes_max: int) -> bool:
        fits = real(self, content, bytes_max)
        self.dropped = False
        return fits

    monkeypatch.setattr(RelayLink, "push", silent)
    monkeypatch.setattr(RelayLink, "empties", lambda self: self.untold.clear() or [])
    assert found(FIRST["dropped"]) in ("no loss", "liveness", "queues are empty at rest")


def test_a_fetch_that_keeps_the_delay_of_doubt_is_found() -> None:
    where = "roamcast.overlay.flows.home:Home.fetches"
    with planted(where, "key not in self._asked", "key not in self._fetching"), refuted():
        test_flows.test_a_restart_of_the_node_between_two_others_is_a_short_silence(1_000_000)


def test_a_wait_that_begins_anew_for_each_event_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def patient(self: LogReader, vector: Any, event: Event) -> list[str]:
        del self
        return [origin for origin, at in event.needs if not covers(vector, ((origin, at),))]

    monkeypatch.setattr(LogReader, "_lacking", patient)
    with refuted():
        test_flows.test_who_is_waited_for_in_vain_is_waited_for_once()


def test_a_late_event_that_is_taken_for_a_repetition_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Numbers.is_new

    def strict(self: Numbers, event: Event, *, late: bool = False) -> bool:
        del late
        return real(self, event)

    monkeypatch.setattr(Numbers, "is_new", strict)
    with refuted():
        test_flows.test_what_was_waited_for_in_vain_comes_late_and_is_told_so()


def test_a_vector_that_nobody_looks_at_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Home, "_look_ahead", lambda *_: None)
    with refuted():
        test_flows.test_a_vector_of_the_far_future_is_told_also_where_its_filter_stands(False)


FIRST = {
    "two homes": 61,
    "hasty home": 17,
    "attachment": 6,
    "credential": 9,
    "hasty mark": 11,
    "unproven": 64,
    "buffer": 2,
    "start": 105,
    "silent gap": 0,
    "lease": 2,
    "new link": 132,
    "silent link": 123,
    "needs": 2,
    "unsynced": 34,
    "numbers": 55,
    "dropped": 209,
}
"""The seed that shows each, so that a test need not run those before it."""
