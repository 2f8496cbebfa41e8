"""A client's session, by the machine alone: links and servers come and go, time is set by hand."""

from collections.abc import Callable

import pytest
from msgspec import structs

from roamcast.channels.client.link_messages import LinkWelcome, settings_bytes
from roamcast.channels.client.map_client import SubscribeFilter, UnsubscribeFilter
from roamcast.channels.client.publications import PublishContext, UnpublishContext
from roamcast.channels.client.session import (
    ASK_AGAIN_US,
    DOUBT_US,
    OUTAGE_PART,
    ClientSession,
    Hidden,
    LinkAccepted,
    LinkDown,
    LinkRejected,
    LinkUp,
    PublicationRefused,
    Shown,
    SubscriptionOverflowed,
    SubscriptionRefused,
    Taken,
)
from roamcast.channels.client.watching import Current, Cut, Refusal
from roamcast.channels.server.map_server import MapServer
from roamcast.channels.server.messages import WELL_KNOWN, Batch, Request, ServerHere
from roamcast.channels.server.settings import MapSettings
from roamcast.errors import ContextError, FilterError, LimitError
from roamcast.model.addresses import Client, Server
from roamcast.model.contexts import Context
from roamcast.model.machine import Effect, Ignore, Input, Listen, Multicast, Received, Send
from roamcast.model.wire import Message
from roamcast.sim.workloads._map_parts import ScanMatcher

SECOND = 1_000_000
EVERYBODY = "type = 'person'"
SETTINGS = MapSettings(restart_spread_us=100_000, subscriptions_max=2, publications_max=3)


class Scene:
    """One server and sessions by name, joined by a network that loses and delays nothing."""

    def __init__(self, settings: MapSettings = SETTINGS, *, contexts_max: int = 100) -> None:
        self.now = SECOND
        self.settings = settings
        self.contexts_max = contexts_max
        self.epoch = 0
        self.server: MapServer | None = None
        self.sessions: dict[str, ClientSession] = {}
        self.linked: dict[str, None] = {}
        self.members: dict[str, set[str]] = {}
        self.effects: dict[str, list[Effect]] = {}
        self.loses: Callable[[Message], bool] = lambda _: False
        self.start()

    def start(self, epoch: int = 0) -> None:
        """Start a server that knows nothing."""
        self.epoch = epoch or self.now
        self.server = MapServer(
            "server",
            epoch=self.epoch,
            now=self.now,
            settings=self.settings,
            make_matcher=ScanMatcher,
        )

    def kill(self) -> None:
        self.server = None
        for name in list(self.linked):
            self.unlink(name)

    def welcome(self, name: str, epoch: int = 0, hosts: tuple[str, ...] = ()) -> LinkWelcome:
        settings = settings_bytes(self.settings)
        return LinkWelcome(name, "server", epoch or self.epoch, settings, now=1, hosts=hosts)

    def link(self, name: str, hosts: tuple[str, ...] = ()) -> list[Effect]:
        """Open a link for a session; make the session with the first one."""
        if name not in self.sessions:
            self.sessions[name] = ClientSession(draw=lambda: 0.5, contexts_max=self.contexts_max)
            self.effects[name] = []
        self.linked[name] = None
        return self.give(name, LinkUp(self.welcome(name, hosts=hosts)))

    def unlink(self, name: str) -> None:
        del self.linked[name]
        self.give(name, LinkDown())

    def give(self, name: str, given: Input) -> list[Effect]:
        found = list(self.sessions[name].receive(given, self.now))
        self._carry(name, found)
        return found

    def _carry(self, name: str, effects: list[Effect]) -> None:
        self.effects[name] += effects
        for effect in effects:
            match effect:
                case Listen(group):
                    self.members.setdefault(group, set()).add(name)
                case Ignore(group):
                    self.members.setdefault(group, set()).discard(name)
                case Send(Server(), message):
                    if self.server is not None and name in self.linked:
                        self._serve(self.server.receive(Received(name, message), self.now))

    def _serve(self, effects: object) -> None:
        for effect in effects:  # type: ignore[attr-defined]
            match effect:
                case Send(Client(to), message):
                    self._deliver(to, message, "")
                case Multicast(group, message):
                    for name in sorted(self.members.get(group, ())):
                        self._deliver(name, message, group)

    def _deliver(self, name: str, message: Message, group: str) -> None:
        if name in self.linked and not self.loses(message):
            self.give(name, Received("server", message, group))

    def passes(self, us: int) -> None:
        """Let time pass, and wake everybody who is due."""
        end = self.now + us
        while True:
            machines = [*self.sessions.values(), *([self.server] if self.server else [])]
            due = min(
                (d for d in (one.deadline() for one in machines) if d is not None), default=end + 1
            )
            if due > end:
                break
            self.now = max(due, self.now + 1)
            for name, session in self.sessions.items():
                self._carry(name, list(session.advance(self.now)))
            if self.server is not None:
                self._serve(self.server.advance(self.now))
        self.now = end

    def publish(self, name: str, vid: str, place: str = "hq/1") -> None:
        context = Context(vid, place, None, {"type": "person"}, self.now)
        self.give(name, PublishContext(context))

    def seen(self, name: str) -> list[tuple[str, str]]:
        """What the user of a session saw, in order."""
        found = []
        for effect in self.effects[name]:
            if isinstance(effect, Shown):
                found.append(("shown", effect.context.vid))
            elif isinstance(effect, Hidden):
                found.append(("hidden", effect.vid))
        return found

    def of(self, name: str, kind: type[Effect]) -> list[Effect]:
        return [effect for effect in self.effects[name] if isinstance(effect, kind)]


def two(**given: int) -> Scene:
    """`ada` watches, `bob` has published `p`."""
    scene = Scene(**given)  # type: ignore[arg-type]
    for name in ("ada", "bob"):
        scene.link(name)
    scene.publish("bob", "p")
    scene.give("ada", SubscribeFilter("s", EVERYBODY))
    scene.passes(SECOND)
    assert scene.seen("ada") == [("shown", "p")]
    return scene


def test_a_publication_is_taken_once_and_shown() -> None:
    scene = two()
    assert scene.of("bob", Taken) == [Taken(("p",))]
    assert scene.sessions["bob"].taken("p")
    assert scene.of("ada", Current) == [Current("s", 1, True)]
    assert scene.of("ada", LinkAccepted) == [LinkAccepted(5 * SECOND)]


def test_after_a_restart_nobody_seems_to_have_left_who_comes_back_in_time() -> None:
    scene = two()
    scene.kill()
    scene.passes(4 * SECOND)
    scene.start()
    scene.link("ada")
    scene.passes(SECOND)  # ada has registered and listed; bob has not come yet
    assert scene.of("ada", Current)[-1] == Current("s", 0, True)
    scene.link("bob")
    scene.passes(10 * SECOND)
    assert scene.seen("ada") == [("shown", "p"), ("shown", "p")]


def test_who_does_not_come_back_after_a_restart_has_left_when_the_doubt_is_over() -> None:
    scene = two()
    scene.kill()
    outage_us = 4 * SECOND
    scene.passes(outage_us)
    scene.start()
    scene.link("ada")
    wait_us = DOUBT_US + int(outage_us * OUTAGE_PART) + SETTINGS.restart_spread_us
    scene.passes(wait_us - 1)
    assert scene.seen("ada") == [("shown", "p")]
    scene.passes(1)
    assert scene.seen("ada") == [("shown", "p"), ("hidden", "p")]


def test_who_leaves_a_restarted_service_has_left_at_once() -> None:
    scene = two()
    scene.kill()
    scene.passes(4 * SECOND)
    scene.start()
    for name in ("bob", "ada"):
        scene.link(name)
    scene.passes(SECOND // 2)
    scene.give("bob", UnpublishContext("p"))
    scene.passes(SECOND // 10)
    assert scene.seen("ada")[-1] == ("hidden", "p")


def test_without_a_restart_a_departure_is_never_doubted() -> None:
    scene = two()
    scene.unlink("ada")
    scene.give("bob", UnpublishContext("p"))
    scene.passes(SECOND)
    scene.link("ada")
    scene.passes(2 * SECOND)
    assert scene.seen("ada") == [("shown", "p"), ("hidden", "p")]


def test_other_settings_make_another_client_and_show_nothing_twice() -> None:
    scene = two()
    before = scene.sessions["ada"].client
    scene.kill()
    scene.settings = MapSettings(restart_spread_us=100_000, heartbeat_us=300_000)
    scene.start()
    for name in ("bob", "ada"):
        scene.link(name)
    scene.passes(5 * SECOND)
    assert scene.sessions["ada"].client is not before
    assert ("hidden", "p") not in scene.seen("ada")
    scene.give("bob", UnpublishContext("p"))
    scene.passes(SECOND)
    assert scene.seen("ada")[-1] == ("hidden", "p")


def test_a_host_with_an_older_map_is_rejected_and_told_after_a_while() -> None:
    scene = two()
    scene.kill()
    hosts = ("http://a", "http://b")
    scene.passes(SETTINGS.server_timeout_us)
    scene.start(epoch=1)
    scene.linked["ada"] = None
    newer = scene.sessions["ada"].client
    assert newer is not None
    soon = scene.give("ada", LinkUp(scene.welcome("ada", hosts=hosts)))
    assert soon == [LinkRejected()]
    scene.now += 1
    late = scene.give("ada", LinkUp(scene.welcome("ada", hosts=hosts)))
    assert [type(one) for one in late] == [Send, LinkRejected]
    assert isinstance(late[0], Send)
    assert isinstance(late[0].message, Request)
    assert late[0].message.epoch == newer.epoch
    assert scene.sessions["ada"].client is newer
    assert scene.seen("ada") == [("shown", "p")]


def test_without_other_hosts_an_older_map_is_begun_with() -> None:
    scene = two()
    scene.kill()
    scene.start(epoch=1)
    for name in ("bob", "ada"):
        scene.link(name)
    scene.passes(5 * SECOND)
    assert scene.sessions["ada"].client is not None
    assert scene.sessions["ada"].client.epoch == 1
    assert scene.seen("ada") == [("shown", "p"), ("shown", "p")]


def test_what_comes_late_by_an_earlier_link_is_not_followed() -> None:
    """A relay's epoch may be older than the service's, which was heard before."""
    scene = two()
    relay = structs.replace(scene.welcome("ada", epoch=1), server="relay")
    scene.give("ada", LinkUp(relay))
    late = Received("server", ServerHere(scene.epoch + 1, 0), WELL_KNOWN)
    assert scene.give("ada", late) == []
    client = scene.sessions["ada"].client
    assert client is not None
    assert (client.server, client.epoch) == ("relay", 1)


def test_a_client_that_was_cut_off_asks_again() -> None:
    scene = two()
    session = scene.sessions["ada"]
    effects = session._pass([Cut("too slow")], scene.now)
    assert effects == [Cut("too slow")]
    assert session.client is not None
    session.client.wanted.clear()
    session.client.watching.unwatch("s")
    scene.give("bob", UnpublishContext("p"))
    scene.publish("bob", "q")
    scene.passes(ASK_AGAIN_US + SECOND)
    assert scene.seen("ada") == [("shown", "p"), ("shown", "q"), ("hidden", "p")]


def test_a_refused_publication_is_withdrawn_and_a_refused_subscription_ended() -> None:
    scene = two()
    effects = scene.sessions["bob"]._pass([Refusal("publish", "p", "no")], scene.now)
    assert effects[0] == PublicationRefused("p", "no")
    assert "p" not in scene.sessions["bob"].published
    scene.sessions["bob"]._pass([Refusal("publish", "p", "no")], scene.now)  # it is nobody's by now
    ended = scene.sessions["ada"]._pass([Refusal("subscribe", "s", "no")], scene.now)
    assert ended == [SubscriptionRefused("s", "no")]
    assert scene.sessions["ada"].occupancy()["subscriptions"] == (0, 2)


def test_a_refused_publication_ends_no_subscription_of_its_name() -> None:
    scene = two()
    ada = scene.sessions["ada"]
    effects = ada._pass([Refusal("publish", "s", "no"), Refusal("session", "s", "no")], scene.now)
    assert effects == [Refusal("publish", "s", "no"), Refusal("session", "s", "no")]
    assert ada.occupancy()["subscriptions"] == (1, 2)


def test_bad_input_changes_nothing() -> None:
    scene = two()
    session = scene.sessions["bob"]
    scene.passes(SECOND)
    with pytest.raises(FilterError):
        scene.give("bob", SubscribeFilter("bad", "place ="))
    with pytest.raises(ContextError):
        scene.give("bob", PublishContext(Context("", "hq/1")))
    assert session.occupancy()["subscriptions"] == (0, 2)
    assert session.occupancy()["publications"] == (1, 3)
    assert scene.give("bob", UnsubscribeFilter("never")) == []
    assert scene.give("bob", UnpublishContext("never")) == []
    assert session.taken("never")


def test_publications_and_subscriptions_have_bounds() -> None:
    scene = two()
    for vid in ("q", "r"):
        scene.publish("bob", vid)
    with pytest.raises(LimitError, match="at most 3 contexts"):
        scene.publish("bob", "s")
    scene.publish("bob", "p", "hq/2")  # a next state of the same needs no room
    for name in ("s", "t"):
        scene.give("ada", SubscribeFilter(name, EVERYBODY))
    with pytest.raises(LimitError, match="at most 2 subscriptions"):
        scene.give("ada", SubscribeFilter("u", EVERYBODY))


def test_what_waits_for_a_service_that_is_away_has_a_bound() -> None:
    scene = two()
    scene.kill()
    limit = 2 * SETTINGS.publications_max
    for number in range(limit):
        scene.publish("bob", f"v{number}")
        scene.give("bob", UnpublishContext(f"v{number}"))
    assert scene.sessions["bob"].occupancy()["untaken"] == (limit, limit)
    with pytest.raises(LimitError, match="changes wait for the service"):
        scene.publish("bob", "one more")
    assert "one more" not in scene.sessions["bob"].published
    scene.start()
    scene.link("bob")
    scene.passes(5 * SECOND)
    assert scene.sessions["bob"].occupancy()["untaken"] == (0, limit)


def test_a_subscription_shows_as_many_contexts_as_it_may_and_no_more() -> None:
    scene = Scene(contexts_max=2)
    for name in ("ada", "bob"):
        scene.link(name)
    for vid in ("p", "q"):
        scene.publish("bob", vid)
    scene.give("ada", SubscribeFilter("s", EVERYBODY))
    scene.passes(SECOND)
    scene.publish("bob", "p", "hq/2")
    scene.passes(SECOND)
    assert scene.of("ada", SubscriptionOverflowed) == []
    scene.publish("bob", "r")
    scene.passes(SECOND)
    assert scene.of("ada", SubscriptionOverflowed) == [SubscriptionOverflowed("s", 2)]
    assert ("shown", "r") not in scene.seen("ada")
    assert scene.sessions["ada"].occupancy()["subscriptions"] == (0, 2)


def test_nothing_is_lost_of_what_is_published_while_the_link_is_away() -> None:
    scene = two()
    scene.unlink("bob")
    scene.publish("bob", "q")
    assert not scene.sessions["bob"].taken("q")
    scene.passes(SECOND)
    scene.link("bob")
    scene.loses = lambda message: isinstance(message, Batch)
    scene.passes(SECOND)
    assert scene.sessions["bob"].taken("q")
    scene.loses = lambda _: False
    scene.passes(3 * SECOND)
    assert ("shown", "q") in scene.seen("ada")


def test_an_input_that_nobody_takes_is_an_assertion() -> None:
    with pytest.raises(AssertionError, match="nobody takes Input"):
        ClientSession(draw=lambda: 0.5).receive(Input(), 0)


def test_a_session_without_a_first_link_waits_for_nothing() -> None:
    assert ClientSession(draw=lambda: 0.5, contexts_max=9).deadline() is None


def test_at_its_limit_a_client_may_still_change_a_subscription() -> None:
    scene = Scene()
    scene.link("ada")
    for name in ("s", "t"):
        scene.give("ada", SubscribeFilter(name, EVERYBODY))
    scene.give("ada", SubscribeFilter("s", "type = 'car'"))
    scene.passes(SECOND)
    assert {current.subscription for current in scene.of("ada", Current)} == {"s", "t"}  # type: ignore[attr-defined]
