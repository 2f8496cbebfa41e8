"""Defects that guards once missed, planted one at a time: a test or at most 1,000 seeds find each.

The first six are the survivors of an audit; the others are of the same kinds.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from roamcast.broker import Admission, OpenSession
from roamcast.channels.client.publications import DisownContext, Publications, PublishContext
from roamcast.channels.client.tuner import Tuner
from roamcast.channels.client.watching import Overtaken, Pending, Watching
from roamcast.channels.relay.server import RelayedContexts
from roamcast.channels.reliable.sender import ChannelSender
from roamcast.channels.reliable.settings import ChannelSettings
from roamcast.channels.server.contexts import ActiveMap, MapContexts
from roamcast.channels.server.map_server import MapServer
from roamcast.channels.sessions.hub import Hub
from roamcast.channels.spread.streams import Ledger, Stream
from roamcast.model.contexts import Context
from roamcast.model.machine import Effect, Listen
from roamcast.sim.clocks import ORIGIN_US, Clock
from roamcast.sim.workloads.broker import BrokerWorkload
from roamcast.sim.workloads.map import Coarse, MapWorkload
from tests.planting import promise_broken
from tests.strategies_map import MapWorld

broken = partial(promise_broken, MapWorkload, 300, sizes={"compiled": 0})


# --- the survivors of the audit -----------------------------------------------------------------


def last_message_is_charged() -> bool:
    """Whether a client that leaves a band pays for the band's last message, which it hears."""
    ledger = Ledger(10_000, 0)
    stream = Stream(1, "", (1,), 1)
    stream.join("a", ledger)
    stream.join("b", None)
    sender = ChannelSender("c", incarnation=1, now=0, settings=ChannelSettings())
    stream.add_band(10_000, sender, 0)
    stream.leave("a")
    (band,) = stream.bands
    stream.remove_band(band, 0)
    return ledger.room(0, control=True) < 10_000


def test_the_last_band_message_not_charged_to_who_left_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert last_message_is_charged()
    real = Stream._offer

    def free(self: Stream, *given: Any, left: Sequence[Any] = (), **named: Any) -> Any:
        del left
        return real(self, *given, **named)

    monkeypatch.setattr(Stream, "_offer", free)
    assert not last_message_is_charged()


def who_left_is_no_listener() -> bool:
    """Whether a client that leaves hears no more, and is limited again when it comes back."""
    ledger = Ledger(10_000, 0)
    stream = Stream(1, "", (1,), 1)
    stream.join("b", None)
    stream.join("a", ledger)
    sender = ChannelSender("c", incarnation=1, now=0, settings=ChannelSettings())
    stream.add_band(10_000, sender, 0)
    stream.leave("a")
    left = set(stream.listeners) == {"b"}
    stream.join("a", ledger)
    return left and set(stream.limited) == {"a"}


def test_a_departed_client_that_stays_a_listener_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert who_left_is_no_listener()
    real = Stream.leave

    def stays(self: Stream, client: str) -> bool:
        listener = self.listeners[client]
        left = real(self, client)
        if left:
            self.listeners[client] = listener
        return left

    monkeypatch.setattr(Stream, "leave", stays)
    assert not who_left_is_no_listener()


def test_streams_joined_and_kept_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Tuner.unlink

    def kept(self: Tuner, query: int) -> list[Effect]:
        real(self, query)
        return []  # the channels are forgotten, and their groups never left

    monkeypatch.setattr(Tuner, "unlink", kept)
    assert broken() == "empty when clients leave"


def equal_stamps_keep_a_context() -> bool:
    """Whether a context stays that two clients of a relay publish alike, when one lets go."""
    world = MapWorld()
    world.relay("relay")
    for name in ("a", "b", "watcher"):
        world.weak(name, "relay")
    world.watch("watcher", "type = 'person'")
    context = Context("m", "hall", None, {"type": "person"}, 0)
    for name in ("a", "b"):
        world.world.give(world.world.hosts[name], PublishContext(context, 7))
        world.run(1)
    world.world.give(world.world.hosts["a"], DisownContext("m"))
    world.run(2)
    return world.sees("watcher") == {"m": "hall"}


def test_equal_stamps_at_a_relay_that_move_no_owner_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert equal_stamps_keep_a_context()
    real = RelayedContexts.put_for

    def first_stays(
        self: RelayedContexts, owner: str, context: Context, body: bytes, stamp: int
    ) -> bool:
        known = self.owners.get(context.vid)
        if known is not None and stamp == known.stamp:
            return True
        return real(self, owner, context, body, stamp)

    monkeypatch.setattr(RelayedContexts, "put_for", first_stays)
    assert not equal_stamps_keep_a_context()


def test_a_session_opened_twice_that_keeps_its_first_queries_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Admission._open

    def twice(self: Admission, given: OpenSession) -> list[Effect]:
        if given.session in self._session_viewers:
            self._hub.sessions.pop(given.session)  # not closed: its queries stay placed
            self._forget(given.session)
        return real(self, given)

    monkeypatch.setattr(Admission, "_open", twice)
    assert promise_broken(BrokerWorkload) in (
        "bounded state",
        "no duplicate",
        "every view is right in the end",
        "told only what changed",
    )


def test_a_leak_in_the_map_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaks(self: ActiveMap, context: Context) -> None:
        self._at[context.place].pop(context.vid)  # the empty place stays

    monkeypatch.setattr(ActiveMap, "_leave", leaks)
    assert broken() == "bounded state"


# --- more of their kinds ------------------------------------------------------------------------


def a_clock_set_back_hides_nothing() -> bool:
    """Whether a client publishes again what it cancelled before its clock was set back 100 s."""
    world = MapWorld()
    for name in ("a", "b"):
        world.client(name)
    world.watch("b", "type = 'person'")
    world.run(150)
    world.put("a", "m", "hall", type="person")
    world.run(1)
    world.cancel("a", "m")
    world.run(1)
    host = world.world.hosts["a"]
    world.world.crash(host)
    host.clock = Clock(-ORIGIN_US - 100_000_000)
    world.world.restart(host)
    world.run(40)
    world.put("a", "m", "yard", type="person")
    world.run(2)
    shown = world.sees("b") == {"m": "yard"}
    world.cancel("a", "m")
    world.run(2)
    return shown and world.sees("b") == {}


@pytest.mark.parametrize(
    ("owner", "method"), [(MapContexts, "outdate"), (Publications, "outdated")]
)
def test_a_stamp_that_is_old_and_stays_old_is_found(
    owner: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert a_clock_set_back_hides_nothing()
    monkeypatch.setattr(owner, method, lambda *_: None)
    assert not a_clock_set_back_hides_nothing()


def test_pending_updates_that_a_restart_leaves_pending_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Watching.restart

    def silent(self: Watching) -> list[Effect]:
        return [effect for effect in real(self) if not isinstance(effect, Pending)]

    monkeypatch.setattr(Watching, "restart", silent)
    assert broken() == "views equal the map"


def test_a_newer_state_that_is_none_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Watching.take

    def false_alarm(self: Watching, *given: Any) -> list[Effect]:
        effects = real(self, *given)
        return [*effects, Overtaken("client-0/0", 1 << 60)] if effects else effects

    monkeypatch.setattr(Watching, "take", false_alarm)
    assert broken() in ("no duplicate", "views equal the map")


def test_an_hour_that_begins_unnoticed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coarse, "changes_at", lambda *_: None)
    assert broken() == "views equal the map"


def test_hours_of_the_wrong_clock_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Coarse.visible

    def late(self: Coarse, context: Context, view_class: str, now: int) -> Context | None:
        return real(self, context, view_class, now - 700_000)

    def served(self: MapContexts, *given: Any, **more: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Coarse, "visible", late)
            return touched(self, *given, **more)

    touched = MapContexts._touched
    monkeypatch.setattr(MapContexts, "_touched", served)
    assert broken() == "views equal the map"


def test_a_cancelled_context_that_only_leaves_the_books_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MapContexts, "withdraw", lambda *_: True)
    assert broken() in ("views equal the map", "empty when clients leave")


def test_a_client_collected_with_its_contexts_left_behind_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = MapServer.remove

    def forgets(self: MapServer, client: Any, reason: str) -> None:
        client.publications.clear()
        real(self, client, reason)

    monkeypatch.setattr(MapServer, "remove", forgets)
    assert broken() in ("views equal the map", "empty when clients leave")


def test_a_late_copy_of_an_old_batch_that_shows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watching, "unwatch", lambda *_: [])
    assert broken() in ("bounded state", "only what was asked for", "views equal the map")


def test_a_client_that_joins_no_group_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Tuner.tune

    def deaf(self: Tuner, *given: Any, **named: Any) -> list[Effect]:
        return [one for one in real(self, *given, **named) if not isinstance(one, Listen)]

    monkeypatch.setattr(Tuner, "tune", deaf)
    assert broken() in ("views equal the map", "liveness")


def test_a_session_that_ends_and_stays_with_its_query_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Hub, "_leave", lambda *_: None)
    assert promise_broken(BrokerWorkload) in (
        "bounded state",
        "every view is right in the end",
    )
