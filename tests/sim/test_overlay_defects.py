"""Deliberate defects of the overlay: the swarm finds each within a thousand seeds."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from roamcast.model.areas import Area
from roamcast.model.machine import Effect
from roamcast.overlay.custody.custody import Custody
from roamcast.overlay.custody.held import Held, ParcelEvent, ParcelState
from roamcast.overlay.links import links
from roamcast.overlay.links.links import SKEWED_CLOCK, NodeLinks
from roamcast.overlay.tables.areas import Areas
from roamcast.overlay.tables.crowd import Crowd
from roamcast.overlay.tables.exchange import Exchange
from roamcast.overlay.tables.feeding import TableFeeding
from roamcast.overlay.tables.link_table import LinkTable
from roamcast.overlay.topology.items import LinkItem, TopologyTable
from roamcast.overlay.topology.topology import NodeTopology
from roamcast.sim.workloads.overlay import OverlayWorkload
from tests.planting import promise_broken

found = partial(promise_broken, OverlayWorkload)

NONE = dict.fromkeys(("more_edges", "large", "moves", "rogue", "takeovers"), 0)
FEW_WHOLE = NONE | {"nodes": 3, "whole": 1, "parcels": 1, "duration_ms": 6_000}
"""Whole brokers that stay where they are, so that much is published and looked for."""


def test_a_parcel_forgotten_before_it_is_taken_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Custody._pump

    def hasty(self: Custody, link: str, now: int) -> list[Effect]:
        effects = real(self, link, now)
        for parcel, targets in self._under_way.get(link, {}).items():
            held = self.held.get(parcel)
            if held is not None:
                held.move(held.sent(targets), ParcelEvent.ANSWERED)
                effects += self._note(parcel, now)
                self._drop_if_done(held)
        return effects

    monkeypatch.setattr(Custody, "_pump", hasty)
    assert found() in ("somebody answers for every parcel", "no loss")


def test_a_parcel_taken_before_it_is_written_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Custody._take

    def hasty(self: Custody, taking: Any, held: Held, writes: Any, now: int) -> list[Effect]:
        effects = real(self, taking, held, writes, now)
        if not taking.link:
            return effects
        said = self._say(taking, None)
        taking.session = -1  # its link is not told again
        return [*said, *effects]

    monkeypatch.setattr(Custody, "_take", hasty)
    assert found() in ("somebody answers for every parcel", "no loss")


def test_a_duplicate_that_is_not_answered_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 8: its sender waits for ever."""
    real = Custody._say

    def silent(self: Custody, taking: Any, error: Any, reason: str = "") -> list[Effect]:
        if taking.link and taking.pruned and not taking.targets:
            return []
        return real(self, taking, error, reason)

    monkeypatch.setattr(Custody, "_say", silent)
    assert found() == "queues are empty at rest"


@pytest.mark.soak  # its parcels go round until the run is given up: half a minute
def test_two_that_vouch_for_what_they_sent_each_other_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """0102: both forget it."""
    real = Custody._offered

    def trusting(self: Custody, link: str, parcel: Any, came: Any, now: int) -> list[Effect]:
        held = self.held.get(parcel)
        states = {} if held is None else dict(held.states)
        if held is not None:
            held.states.update(
                (one, ParcelState.WRITTEN)
                for one, state in states.items()
                if state is ParcelState.SENT
            )
        effects = real(self, link, parcel, came, now)
        if held is not None:
            held.states.update(states)
        return effects

    monkeypatch.setattr(Custody, "_offered", trusting)
    assert found() in ("somebody answers for every parcel", "no loss")


def test_an_older_version_that_wins_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def last_wins(self: TopologyTable, items: Sequence[LinkItem]) -> list[LinkItem]:
        changed = [item for item in items if self.items.get(item.ends) != item]
        self.items.update((item.ends, item) for item in changed)
        self._graph = None
        return changed

    monkeypatch.setattr(TopologyTable, "merge", last_wins)
    assert found() in (
        "every topology is right in the end",
        "bounded work",
        "all share one tree",
        "queues are empty at rest",
    )


def test_versions_by_the_clock_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 27: never order by clock."""
    real = NodeTopology._say

    def by_clock(self: NodeTopology, to: str, now: int) -> None:
        self._epoch, self._number = 0, now
        real(self, to, now)

    monkeypatch.setattr(NodeTopology, "_say", by_clock)
    assert found() == "every topology is right in the end"


def test_a_clock_that_nobody_looks_at_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 27: a neighbour 150 s off is refused."""
    real = NodeLinks._objection

    def lenient(self: NodeLinks, *given: Any, **more: Any) -> str:
        reason = real(self, *given, **more)
        return "" if reason == SKEWED_CLOCK else reason

    monkeypatch.setattr(NodeLinks, "_objection", lenient)
    assert found() == "every topology is right in the end"


def test_an_epoch_that_is_not_remembered_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: NodeLinks, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        return ()

    monkeypatch.setattr(NodeLinks, "restore", forgetful)
    assert found() == "every topology is right in the end"


@pytest.mark.slow
def test_a_link_that_resumes_with_old_numbers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = links.session_of
    monkeypatch.setattr(
        links, "session_of", lambda one, other: real((one[0], b""), (other[0], b""))
    )
    assert found()


def test_split_horizon_that_is_missing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Areas, "_held_for", lambda self, _, key: key in self._holders)
    assert found() == "every table is right in the end"


def test_tables_that_are_not_repeated_after_a_reconnect_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trap 26: the full set comes with every link."""

    def once(self: Exchange, link: str) -> None:
        for table in self.tables.values():
            assert isinstance(table, LinkTable)
            known = table._links.get(link)
            if known is None:
                table.reset(link)
            else:
                known.up = True
                table._dropped.cancel(link)

    monkeypatch.setattr(Exchange, "_begin", once)
    assert found() == "every table is right in the end"


def test_archives_that_move_with_the_area_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 7: what was archived stays where it was."""
    real = Areas.put

    def moving(self: Areas, name: str, area: Area) -> None:
        for other in list(self._local):
            self.remove(other)
        real(self, name, area)

    monkeypatch.setattr(Areas, "put", moving)
    assert found() == "every table is right in the end"


def test_a_past_that_moves_with_the_nodes_places_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 7, by whole brokers: their settings change, their past does not."""
    real = TableFeeding._take

    def forgetful(self: TableFeeding, ever: Sequence[str], days: bytes | None) -> None:
        del ever, days
        real(self, (), None)

    monkeypatch.setattr(TableFeeding, "_take", forgetful)
    assert found() == "every table is right in the end"


def test_days_that_a_restart_forgets_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """0180: what was there on a day is to be found there for ever."""
    real = TableFeeding._take

    def forgetful(self: TableFeeding, ever: Sequence[str], days: bytes | None) -> None:
        del days
        real(self, ever, None)

    monkeypatch.setattr(TableFeeding, "_take", forgetful)
    assert found() == "every table is right in the end"


def test_a_summary_that_forgets_at_once_who_ended_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 2: it begins and ends between two offers, and no neighbour ever hears of it."""

    def hasty(self: Crowd, vid: str) -> None:
        if self._members.pop(vid, None) is not None:
            self._new = [one for one in self._new if one.vid != vid]
            self._grown = self._summarised(self._members.values())
            self._mark("crowd", None)

    monkeypatch.setattr(Crowd, "end", hasty)
    assert found(sizes=FEW_WHOLE) == "no summary refuses a member"


def test_a_summary_without_those_that_rules_hide_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """0130: staff would not find them."""
    monkeypatch.setattr(Crowd, "veil", lambda *_: None)
    assert found() == "no summary refuses a member"
