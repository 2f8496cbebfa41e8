"""Casts that wait for a second person's consent: sent once, or forgotten."""

from typing import Any

import pytest

from roamcast.errors import ConflictError, ForbiddenError, LimitError, NotFoundError, StoreError
from roamcast.identity.rules import Viewer
from roamcast.model.casts import Cast
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.machine import Effect, Store, Stored, StoreFailed
from roamcast.model.records import CastStep
from roamcast.overlay.casts.consents import (
    REQUESTS_MAX,
    RETRY_US,
    SENDER_REQUESTS_MAX,
    AskConsent,
    ConsentRequest,
    Consents,
    EndConsent,
    GiveConsent,
)
from roamcast.overlay.casts.messages import SendCast

ANN, BOB = Viewer("ann", frozenset({"staff"})), Viewer("bob")
UNTIL = 10_000_000


class Waiting:
    """The part with a disk."""

    def __init__(self, disk: dict[str, bytes] | None = None) -> None:
        self.disk = {} if disk is None else disk
        self.sent: dict[str, SendCast] = {}
        self.well = True
        self.part = Consents(lambda cast: cast in self.sent)
        self.part.restore(self.disk, 0)

    def give(self, given: Any, now: int = 1) -> list[Effect]:
        return self._carry(self.part.receive(given, now), now)

    def advance(self, now: int) -> list[Effect]:
        return self._carry(self.part.advance(now), now)

    def _carry(self, effects: Any, now: int) -> list[Effect]:
        out: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Store):
                for key, value in effect.writes if self.well else ():
                    self.disk.pop(key, None) if value is None else self.disk.update({key: value})
                answer = Stored(effect.token) if self.well else StoreFailed(effect.token, "full")
                out += self._carry(self.part.receive(answer, now), now)
            else:
                out.append(effect)
        return out

    def ask(self, name: str = "c", sender: str = "ann", expires: int | None = None) -> Effect:
        cast = Cast(name, "within(place, 'hq')", b"hello", 1, expires=expires)
        request = ConsentRequest(cast, sender, ("staff",), "text", "NH", 1, 100, 1, UNTIL)
        return self.give(AskConsent(7, request))[0]


def error_of(effects: list[Effect]) -> Exception:
    (failed,) = effects
    assert isinstance(failed, Failed)
    return failed.error


def test_a_second_persons_consent_sends_it_as_its_senders() -> None:
    node = Waiting()
    assert isinstance(node.ask(), Acknowledged)
    step, sent = node.give(GiveConsent(8, "c", BOB), 5_000)
    assert isinstance(step, CastStep)
    assert isinstance(sent, SendCast)
    assert (sent.ticket, sent.viewer, sent.cast.sent, sent.priority) == (8, ANN, 5_000, 1)
    assert node.disk  # until the cast itself is held
    node.sent["c"] = sent
    assert node.advance(5_000 + RETRY_US) == []
    assert not node.disk
    assert not node.part.requests
    assert node.part.deadline() is None


def test_the_sender_does_not_consent_and_strangers_find_nothing() -> None:
    node = Waiting()
    node.ask()
    assert isinstance(error_of(node.give(GiveConsent(8, "c", ANN))), ForbiddenError)
    assert isinstance(error_of(node.give(GiveConsent(8, "x", BOB))), NotFoundError)
    assert "c" in node.part.requests


def test_consent_that_fails_or_a_crash_leaves_it_waiting() -> None:
    node = Waiting()
    node.ask()
    node.give(GiveConsent(8, "c", BOB), 5_000)  # and the cast does not come to be held
    node.advance(5_000 + RETRY_US)
    assert "c" in node.part.requests
    again = Waiting(node.disk)
    assert isinstance(again.give(GiveConsent(9, "c", BOB))[-1], SendCast)


@pytest.mark.parametrize("who", [ANN, BOB])
def test_refused_or_taken_back_it_is_forgotten(who: Viewer) -> None:
    node = Waiting()
    node.ask()
    node.well = False
    assert isinstance(error_of(node.give(EndConsent(8, "c", who))), StoreError)
    assert "c" in node.part.requests
    node.well = True
    answered, step = node.give(EndConsent(8, "c", who))
    assert isinstance(answered, Acknowledged)
    assert isinstance(step, CastStep)
    assert "ann" not in step.step
    assert not node.disk


def test_nobody_in_time_and_it_is_forgotten() -> None:
    node = Waiting()
    node.ask()
    assert node.advance(UNTIL - 1) == []
    assert [one.step for one in node.advance(UNTIL) if isinstance(one, CastStep)] == [
        "nobody consented in time"
    ]
    assert not node.disk


def test_an_expired_cast_is_not_sent() -> None:
    node = Waiting()
    node.ask(expires=100)
    assert isinstance(error_of(node.give(GiveConsent(8, "c", BOB), 200)), ConflictError)


def test_an_id_is_asked_for_once_and_a_full_disk_refuses() -> None:
    node = Waiting()
    node.well = False
    refused = node.ask()
    assert isinstance(refused, Failed)
    assert not node.part.requests
    node.well = True
    node.ask()
    twice = node.ask()
    assert isinstance(twice, Failed)
    assert isinstance(twice.error, ConflictError)


def test_requests_are_bounded_by_sender_and_in_all() -> None:
    node = Waiting()
    for number in range(SENDER_REQUESTS_MAX):
        assert isinstance(node.ask(f"c{number}"), Acknowledged)
    over = node.ask("more")
    assert isinstance(over, Failed)
    assert isinstance(over.error, LimitError)
    for number in range(SENDER_REQUESTS_MAX, REQUESTS_MAX):
        assert isinstance(node.ask(f"c{number}", f"s{number}"), Acknowledged)
    assert isinstance(node.ask("more", "other"), Failed)
    assert node.part.occupancy() == {"requests": (REQUESTS_MAX, REQUESTS_MAX)}


def test_what_is_consented_to_cannot_be_refused_any_more() -> None:
    waiting = Waiting()
    waiting.ask()
    waiting.give(GiveConsent(8, "c", BOB))  # on its way to the disk
    (answer,) = waiting.give(EndConsent(9, "c", ANN))
    assert isinstance(answer, Failed)
    assert isinstance(answer.error, ConflictError)
    waiting.advance(1 + RETRY_US)
    assert waiting.part.waiting(), "the disk refused the cast: it waits again"
    assert isinstance(waiting.give(EndConsent(9, "c", ANN), 2 * RETRY_US)[0], Acknowledged)
