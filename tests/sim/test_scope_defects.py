"""Deliberate defects of scopes, relays and pages: the swarm finds each of them within few seeds."""

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from roamcast.channels.client.copy import Left, MapCopy
from roamcast.channels.client.watching import Watching
from roamcast.channels.relay.server import RelayedSubscriptions, RelayServer
from roamcast.channels.server import map_server as server_module
from roamcast.channels.server.contexts import ActiveMap
from roamcast.channels.server.desk import ClientState, Desk
from roamcast.channels.server.map_context import MapContext
from roamcast.channels.server.messages import Parcel, State
from roamcast.channels.server.outbox import Pager, Waiting
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect
from roamcast.sim.workloads.map import MapWorkload
from tests.planting import promise_broken

EVERYTHING = Filter.parse("true")


broken = partial(promise_broken, MapWorkload, 100, sizes={"compiled": 0})


def test_a_client_on_a_wide_area_group_that_does_not_filter_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take = Watching.take

    def shows_all(
        self: Watching, parcel: Parcel, channel: str, source: str, now: int
    ) -> list[Effect]:
        kept = {name: view.filter for name, view in self.copy.views.items()}
        if "wide" in channel:
            for view in self.copy.views.values():
                view.filter = EVERYTHING
        effects = take(self, parcel, channel, source, now)
        for name, view in self.copy.views.items():
            view.filter = kept.get(name, view.filter)
        return effects

    monkeypatch.setattr(Watching, "take", shows_all)
    assert broken() == "only what matches"


def test_a_server_that_takes_a_remote_client_for_a_local_one_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "is_remote", lambda _site, _settings: False)
    assert broken() == "views equal the map"


def test_a_relay_that_forgets_to_withdraw_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    release = RelayedSubscriptions._release

    def forgetful(self: RelayedSubscriptions, client: str, name: str) -> None:
        forward, self._forward = self._forward, lambda _client, _given: None
        release(self, client, name)
        self._forward = forward

    monkeypatch.setattr(RelayedSubscriptions, "_release", forgetful)
    assert broken() == "empty when clients leave"


@pytest.mark.slow
def test_a_relay_that_keeps_departures_to_itself_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    show = RelayServer.show

    def silent(
        self: RelayServer, effects: Sequence[Effect], copy: MapCopy, now: int
    ) -> Sequence[Effect]:
        rest = [effect for effect in effects if not isinstance(effect, Left)]
        return show(self, rest, copy, now)

    monkeypatch.setattr(RelayServer, "show", silent)
    assert broken() == "views equal the map"


@pytest.mark.slow
def test_a_current_set_that_ends_with_its_first_page_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = Pager.page

    def first_only(
        self: Pager,
        seats: Sequence[str | None],
        state_of: Callable[[str], State | None],
        room_bytes: int,
        states_max: int,
    ) -> tuple[list[State], bool]:
        states, ends = page(self, seats, state_of, room_bytes, states_max)
        self.complete = self.complete and ends
        return states, True

    monkeypatch.setattr(Pager, "page", first_only)
    assert broken() == "views equal the map"


@pytest.mark.slow
def test_a_cursor_that_slips_when_an_object_before_it_leaves_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove = ActiveMap.remove

    def closing_ranks(self: ActiveMap, vid: str) -> MapContext | None:
        known = remove(self, vid)
        self.seats = [one for one in self.seats if one is not None]
        self._free.clear()
        for seat, name in enumerate(self.seats):
            assert name is not None
            self.contexts[name].seat = seat
        return known

    monkeypatch.setattr(ActiveMap, "remove", closing_ranks)
    assert broken() == "views equal the map"


@pytest.mark.slow
def test_leaving_a_change_to_pages_that_have_passed_its_object_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deliver = Desk.deliver

    def to_the_pages(self: Desk, client: ClientState, item: Waiting, *, listing: str = "") -> None:
        if not (isinstance(item, State) and client.outbox.pagers):
            deliver(self, client, item, listing=listing)

    monkeypatch.setattr(Desk, "deliver", to_the_pages)
    assert broken() == "views equal the map"
