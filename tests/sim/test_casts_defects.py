"""Deliberate defects of casts: the swarm finds each within a thousand seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from roamcast import broker
from roamcast.identity.rules import Viewer, visible
from roamcast.identity.trusted.inbox import PersonInbox
from roamcast.identity.trusted.mailboxes import Mailboxes
from roamcast.model.contexts import Context
from roamcast.model.events import Acknowledged
from roamcast.model.filters.holds import holds
from roamcast.model.filters.lasting import Decision
from roamcast.model.machine import Effect
from roamcast.overlay.casts import delivery, looking, waiting
from roamcast.overlay.casts.casts import Casts
from roamcast.overlay.casts.consents import AskConsent, Consents
from roamcast.overlay.casts.delivery import CastDelivery
from roamcast.overlay.casts.endings import Endings
from roamcast.overlay.casts.held import HeldCast, plan_of
from roamcast.overlay.casts.lookups import Lookups
from roamcast.overlay.casts.messages import Pair, SendCast
from roamcast.overlay.casts.spreading import Spreading
from roamcast.overlay.casts.waiting import WaitingCasts
from roamcast.sim.workloads._cast_parts import COARSE, rules_to
from roamcast.sim.workloads.casts import CastsWorkload
from tests.planting import promise_broken

LOST = "everybody who matches gets it"
TOO_MANY = "nobody else gets it"


PLAIN = {"rules": 0, "take_overs": 0, "consents": 0}
HIDING = PLAIN | {"rules": 1}
WAITING = PLAIN | {"consents": 1, "casts": 14}
CROWDED = HIDING | {"nodes": 2, "more_edges": 0, "trusted": 1, "people": 5, "moves": 50}
CROWDED |= {"casts": 14, "endings": 0}


def found(sizes: Mapping[str, int] = PLAIN) -> str:
    """Give the first broken promise."""
    return promise_broken(CastsWorkload, sizes=dict(sizes))


def test_a_cast_for_each_vid_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 1: many visits, many vids, one person."""
    fate, arrived = Mailboxes._fate, PersonInbox._arrived

    def forgetful(self: Mailboxes, *given: Any) -> str:
        known = fate(self, *given)
        return "reached" if known == "repeated" else known

    def trusting(self: PersonInbox, node: str, mail: Any) -> list[Effect]:
        self._seen.pop(mail.cast, None)
        return arrived(self, node, mail)

    monkeypatch.setattr(Mailboxes, "_fate", forgetful)
    monkeypatch.setattr(PersonInbox, "_arrived", trusting)
    assert found() == "at most once per user"


def test_a_future_cast_that_does_not_catch_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 3: it comes after the context began."""
    real = Lookups.look

    def lazy(self: Lookups, held: HeldCast, now: int) -> None:
        if plan_of(held.body).past is None:
            held.looked = True
        else:
            real(self, held, now)

    monkeypatch.setattr(Lookups, "look", lazy)
    assert found() == LOST


@pytest.mark.soak
def test_expiry_by_the_clock_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 4: a node was cut off."""
    monkeypatch.setattr(Spreading, "accounted", lambda *_: True)
    assert found() == LOST


def test_an_open_end_that_counts_as_never_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 5: `overlaps` with a future start, `contains` before its end."""

    def hasty(times: Any, stretch: Context, now: int, until: int) -> Decision:
        del now, until
        return Decision(holds(times, stretch))

    monkeypatch.setattr(looking, "judge", hasty)
    monkeypatch.setattr(waiting, "judge", hasty)
    assert found() == TOO_MANY


def test_a_change_that_cuts_the_past_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 6: who never left is not found by `contains`."""
    monkeypatch.setattr(looking, "stretches", lambda contexts: [[one] for one in contexts])
    assert found() in (LOST, TOO_MANY)


def test_a_change_that_cuts_the_present_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 6, for casts that wait."""
    real = WaitingCasts.take

    def cutting(self: WaitingCasts, context: Context, now: int) -> list[tuple[str, str]]:
        gone = self._last.get(context.vid)
        cut: list[tuple[str, str]] = []
        if context.t_d is None and gone is not None:
            for one, begin in list(self._open.get(context.vid, {}).items()):
                self._close(one, begin, context.t_r, now, cut)
        return cut + real(self, context, now)

    monkeypatch.setattr(WaitingCasts, "take", cutting)
    assert found() in (LOST, TOO_MANY)


def test_results_in_one_page_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 9: however many vids there are."""

    def whole(pairs: Sequence[Pair], *_: int) -> list[tuple[Pair, ...]]:
        return [tuple(pairs)] if pairs else []

    monkeypatch.setattr(delivery, "paged_pairs", whole)
    assert found() == "bounded state"


def test_an_end_that_overtakes_its_cast_and_is_forgotten_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trap 12: its id must be remembered, though nothing is held of it."""
    monkeypatch.setattr(Endings, "remember", lambda *_: None)
    assert found() == "an update reaches whom its cast reached"


def test_a_cast_that_is_acknowledged_before_it_is_written_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Casts._asked

    def hasty(self: Casts, given: Any, now: int) -> list[Effect]:
        effects = real(self, given, now)
        return [Acknowledged(given.ticket), *effects] if isinstance(given, SendCast) else [*effects]

    monkeypatch.setattr(Casts, "_asked", hasty)
    assert found() == LOST


def test_mail_forgotten_before_the_trusted_node_has_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = CastDelivery._deposit

    def hasty(self: CastDelivery, held: HeldCast, page: Any) -> Effect:
        effect = real(self, held, page)
        page.page.owes = ()
        return effect

    def given_up(self: CastDelivery, token: int, reason: str, now: int) -> list[Effect]:
        del reason
        _, page = self._deposits.pop(token)
        page.busy = False
        return self.pump(now)

    monkeypatch.setattr(CastDelivery, "_deposit", hasty)
    monkeypatch.setattr(CastDelivery, "deposit_failed", given_up)
    monkeypatch.setattr(
        CastDelivery, "deposited", lambda self, given, now: given_up(self, given.token, "", now)
    )
    assert found() in (LOST, "an update reaches whom its cast reached")


def test_rules_that_cut_what_is_cut_already_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rules then and now hid more of the past than of the present."""

    def twice(shown: Context, _: Context) -> Context:
        return visible(shown, rules_to(COARSE), Viewer("sender"), 0) or shown

    monkeypatch.setattr(broker, "both_show", twice)
    assert found(sizes=HIDING) == LOST


def test_hiding_that_counts_as_leaving_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WaitingCasts, "_is_hidden", lambda *_: False)
    assert found(sizes=CROWDED) == TOO_MANY


def test_look_ups_that_see_what_rules_hide_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        broker.Broker, "_seen_then", lambda _self, _viewer, _now, context, _: context
    )
    assert found(sizes=HIDING) == TOO_MANY


def test_pushing_down_only_where_somebody_is_now_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full node waits no longer: it must hand on to wherever somebody may come."""
    real = Spreading.wanted

    def stingy(
        self: Spreading, body: Any, came_from: str, now: int, *, pushed: bool = False
    ) -> tuple[list[str], bool]:
        return ([], False) if pushed else real(self, body, came_from, now)

    monkeypatch.setattr(Spreading, "wanted", stingy)
    assert found(sizes=PLAIN | {"casts": 14, "nodes": 5}) == LOST


def test_a_refusal_of_what_is_on_its_way_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(set[str]):
        def __contains__(self, _: object) -> bool:
            return False

    real = Consents.__init__

    def begin(self: Consents, *given: Any) -> None:
        real(self, *given)
        self._given = Forgetful()

    monkeypatch.setattr(Consents, "__init__", begin)
    assert found(WAITING) == TOO_MANY


def test_a_cast_that_is_sent_before_anybody_consents_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Consents._ask

    def hasty(self: Consents, given: AskConsent) -> list[Any]:
        asked = given.request
        send = SendCast(-1, asked.cast, Viewer(asked.sender), asked.kind, asked.policy)
        return [*real(self, given), send]

    monkeypatch.setattr(Consents, "_ask", hasty)
    assert found(WAITING) == TOO_MANY
