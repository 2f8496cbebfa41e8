"""Deliberate defects of the past: the swarm finds each within a thousand seeds."""

from functools import partial
from typing import Any

import pytest

from roamcast.channels.past import asking
from roamcast.channels.past.feed import ArchiveFeed, FeedState
from roamcast.channels.past.messages import BatchLanded, PastGrew
from roamcast.channels.server.contexts import MapContexts
from roamcast.channels.sessions.publications import StoredPublications
from roamcast.model.machine import Effect, Store
from roamcast.sim.workloads import _past_parts
from roamcast.sim.workloads._past_parts import SimArchive
from roamcast.sim.workloads.broker import BrokerWorkload
from tests.planting import promise_broken

pytestmark = pytest.mark.slow


broken = partial(promise_broken, BrokerWorkload)


def test_a_step_written_after_the_acknowledgement_is_found(monkeypatch: Any) -> None:
    write, stored = StoredPublications._write, StoredPublications._stored

    def alone(self: StoredPublications, *given: Any) -> Store:
        store = write(self, *given)
        return Store(store.token, store.writes[:1])

    def late(self: StoredPublications, pending: Any, now: int) -> list[Effect]:
        effects = stored(self, pending, now)
        self._past.again(pending.steps)
        return [*effects, PastGrew()]

    monkeypatch.setattr(StoredPublications, "_write", alone)
    monkeypatch.setattr(StoredPublications, "_stored", late)
    assert broken() in (
        "what was acknowledged is found",
        "the past has the right interval",
    )


def test_a_deletion_before_the_archives_commit_is_found(monkeypatch: Any) -> None:
    def hasty(self: ArchiveFeed) -> list[Effect]:
        self.state = FeedState.FORGETTING
        return [self._forget()]

    monkeypatch.setattr(ArchiveFeed, "_named", hasty)
    assert broken() == "what was acknowledged is found"


def test_an_end_at_the_notice_and_not_at_the_last_sighting_is_found(monkeypatch: Any) -> None:
    real = MapContexts.withdraw

    def noticed(self: MapContexts, *given: Any, ended: int | None = None, **how: Any) -> bool:
        del ended
        return real(self, *given, **how)

    monkeypatch.setattr(MapContexts, "withdraw", noticed)
    assert broken() == "silence ends a context at the last sighting"


def test_an_archive_that_is_fed_twice_is_found(monkeypatch: Any) -> None:
    def careless(self: SimArchive, batch: Any, rows: Any) -> BatchLanded:
        self.rows += rows
        return BatchLanded(batch.number)

    monkeypatch.setattr(SimArchive, "append", careless)
    assert broken() == "nothing is archived twice"


def test_a_batch_that_is_named_anew_after_a_crash_is_found(monkeypatch: Any) -> None:
    def forgetful(self: ArchiveFeed) -> list[Effect]:
        self._forget_batch()
        self.batch = type(self.batch)(self.batch.number, _Last.archive.last)
        return []

    class _Last:
        archive = SimArchive()

    real = SimArchive.__init__

    def noted(self: SimArchive) -> None:
        real(self)
        _Last.archive = self

    monkeypatch.setattr(SimArchive, "__init__", noted)
    monkeypatch.setattr(ArchiveFeed, "resume", forgetful)
    assert broken() == "nothing is archived twice"


def test_a_row_lost_between_two_places_during_a_question_is_found(monkeypatch: Any) -> None:
    """Reading against the direction in which pieces move: the log before what waits for it."""
    real = asking.found

    def against(*given: Any, waiting: Any, **how: Any) -> Any:
        return real(*given, waiting=(), **how)

    monkeypatch.setattr(_past_parts, "found", against)
    assert broken() == "a question about the past finds all of it"
