"""Deliberate defects of a whole broker: the swarm finds each within a thousand seeds."""

from functools import partial
from typing import Any

import msgspec
import pytest

from roamcast.broker import Admission, OpenSession
from roamcast.channels.failover.replication import Replication, ServerEvent
from roamcast.channels.past.part import STEPS
from roamcast.channels.server.contexts import MapContexts
from roamcast.channels.server.messages import State
from roamcast.channels.server.subscriptions import LocalQueries
from roamcast.channels.sessions.publications import StoredPublications
from roamcast.identity.rule_sets import RuleSets
from roamcast.model.events import Acknowledged, MapTouched, RulesChanged
from roamcast.model.machine import Effect, Store, Stored
from roamcast.sim.workloads.broker import BrokerWorkload
from tests.planting import first_failure, promise_broken

broken = partial(promise_broken, BrokerWorkload)


def finds(promise: str) -> bool:
    """Whether some seed breaks this very promise; others may break first."""
    return first_failure(BrokerWorkload, promise=promise) is not None


def test_acknowledged_before_stored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Replication._store

    def hasty(self: Replication, part: str, effect: Store, now: int) -> None:
        before = len(self._batches)
        real(self, part, msgspec.structs.replace(effect, token=0), now)  # nobody waits for the disk
        if len(self._batches) > before:
            self._answer(part, Stored(effect.token))

    monkeypatch.setattr(Replication, "_store", hasty)
    assert broken() in (
        "acknowledged means on every current disk",
        "nothing is shown before it is stored",
    )


def test_acknowledged_before_the_follower_stored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(self: Replication, now: int) -> None:
        batch = self._batches.under_way
        for request in self._batches.end() if batch is not None and batch.change else ():
            self._answer(request.part, Stored(request.token))
        self._write(now)
        if self.state.name == "DRAINING" and not self._batches:
            self._step(ServerEvent.DRAINED)
            self._read_offer(now)

    monkeypatch.setattr(Replication, "_release", hasty)
    assert broken() == "acknowledged means on every current disk"


def test_rules_applied_after_the_context_is_shown_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = RuleSets._stored

    def late(self: RuleSets, asked: Any) -> list[Effect]:
        effects = real(self, asked)
        return [effect for effect in effects if not isinstance(effect, RulesChanged)]

    monkeypatch.setattr(RuleSets, "_stored", late)
    assert broken() in (
        "nobody sees what rules hide",
        "every view is right in the end",
    )


def test_a_hidden_context_in_a_current_set_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = LocalQueries.state

    def unfiltered(
        self: LocalQueries, view_class: str, number: int, vid: str, alone: str = ""
    ) -> State | None:
        state, known = real(self, view_class, number, vid, alone), self._server.map.contexts
        return state and State(state.number, vid, known[vid].body)

    monkeypatch.setattr(LocalQueries, "state", unfiltered)
    assert finds("nobody sees what rules hide")


def test_a_hand_over_that_loses_the_last_write_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Replication._offer_page

    def lossy(self: Replication, entries: Any, now: int) -> None:
        real(self, entries[:-1], now)

    monkeypatch.setattr(Replication, "_offer_page", lossy)
    assert broken() == "a hand-over loses nothing"


def test_a_hand_over_that_loses_the_last_publication_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps of the past come after all that users asked for."""
    real = Replication._offer_page

    def lossy(self: Replication, entries: Any, now: int) -> None:
        asked = [entry for entry in entries if not entry.key.startswith(STEPS)]
        real(self, tuple(entry for entry in entries if entry not in asked[-1:]), now)

    monkeypatch.setattr(Replication, "_offer_page", lossy)
    assert broken() == "a hand-over loses nothing"


@pytest.mark.slow
def test_a_session_resumed_without_its_viewers_name_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # By the part itself, not its id: the id of one that has crashed is given to another.
    opened: set[tuple[Admission, str]] = set()
    real = Admission._open

    def resumed(self: Admission, given: OpenSession) -> list[Effect]:
        effects = real(self, given)
        if (self, given.session) in opened:
            self._hub.sessions[given.session].viewer = ""
        opened.add((self, given.session))
        return effects

    monkeypatch.setattr(Admission, "_open", resumed)
    assert broken() in (
        "nobody sees what rules hide",
        "every view is right in the end",
    )


def test_a_failed_write_that_shows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = StoredPublications._failed

    def shown(self: StoredPublications, pending: Any, reason: str) -> list[Effect]:
        if pending.publication is not None and pending.publication.body:
            self._publish(pending.publication)
            return [MapTouched(), *real(self, pending, reason)]
        return real(self, pending, reason)

    monkeypatch.setattr(StoredPublications, "_failed", shown)
    assert broken() in (
        "a refused write never shows",
        "nothing is shown before it is stored",
        "every view is right in the end",
    )


def test_an_acknowledgement_without_any_write_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = StoredPublications._ask

    def forgetful(self: StoredPublications, given: Any, now: int) -> list[Effect]:
        effects = real(self, given, now)
        if now % 7 == 0 and isinstance(effects[0], Store):
            self._failed(self._pending.pop(effects[0].token), "")
            return [Acknowledged(given.ticket)]
        return effects

    monkeypatch.setattr(StoredPublications, "_ask", forgetful)
    assert broken() == "acknowledged means on every current disk"


def test_telling_a_class_what_it_may_not_see_has_changed_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MapContexts, "_unchanged", lambda *_: False)
    assert finds("told only what changed")
