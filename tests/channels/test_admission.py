"""Who is served through a relay, by the machine alone: time is advanced by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.channels.client.link_messages import LinkWelcome, settings_bytes
from roamcast.channels.relay.admission import (
    AWAY,
    CHANGED,
    COMPARE_US,
    FAREWELL_US,
    RENEWED,
    SERVICE_AWAY,
    SWEEP_US,
    UNSURE,
    UNSURE_US_MAX,
    RelayAdmission,
)
from roamcast.channels.relay.guests import (
    CloseGuest,
    EndGuest,
    GoingDown,
    GuestArrived,
    GuestGone,
    GuestLinkDown,
    GuestLinkEnded,
    GuestLinkUp,
    GuestReceived,
    GuestState,
    OwnLinkDown,
    OwnLinkUp,
    PassThrough,
    Serve,
    ServingBegan,
    Withheld,
)
from roamcast.channels.relay.publishers import SendUp
from roamcast.channels.server.desk import Public
from roamcast.channels.server.messages import (
    Answer,
    Batch,
    Hello,
    Operation,
    Publish,
    Request,
    Unpublish,
)
from roamcast.channels.server.settings import MapSettings
from roamcast.errors import LimitError
from roamcast.model.addresses import Client
from roamcast.model.contexts import Context, body_of
from roamcast.model.machine import Effect, Input, Received, Send
from roamcast.sim.workloads._map_parts import ScanMatcher

SECOND = 1_000_000
OURS, THEIRS = b"our view class..", b"another class..."
SETTINGS = MapSettings(relay_clients_max=2)


def welcome(
    client: str, epoch: int = 7, view: bytes = OURS, settings: MapSettings = SETTINGS
) -> LinkWelcome:
    return LinkWelcome(client, "service", epoch, settings_bytes(settings), now=1, view=view)


class Scene:
    """A relay whose links come and go as the test says."""

    def __init__(self, guests_max: int = 10) -> None:
        self.now = SECOND
        self.effects: list[Effect] = []
        self.machine = RelayAdmission(
            "relay",
            draw=lambda: 0.5,
            policy=Public(),
            guests_max=guests_max,
            make_matcher=ScanMatcher,
        )

    def give(self, *inputs: Input) -> list[Effect]:
        found = [effect for given in inputs for effect in self.machine.receive(given, self.now)]
        self.effects += found
        return found

    def passes(self, us: int) -> list[Effect]:
        """Let time pass, and wake the machine whenever it is due."""
        end, found = self.now + us, []
        while (due := self.machine.deadline()) is not None and due <= end:
            self.now = max(due, self.now)
            found += self.machine.advance(self.now)
        self.now = end
        self.effects += found
        return found

    def own(self, epoch: int = 7, view: bytes = OURS, settings: MapSettings = SETTINGS) -> None:
        self.give(OwnLinkUp(welcome("operator#relay", epoch, view, settings)))

    def state(self, guest: int) -> GuestState:
        return self.machine.guests[guest].state

    def says(self, name: str, number: int, *operations: Operation) -> list[Effect]:
        """A client of the machine sends a request."""
        assert self.machine.relay is not None
        epoch = self.machine.relay.down.epoch
        return self.give(Received(name, Request(epoch, 5, number, operations)))

    def shows(self, name: str) -> list[Effect]:
        """The map's machine wants to show something to a client."""
        batch = Batch(1, 1, 1, b"seen", 1)
        return self.machine._carry([Send(Client(name), batch)], self.now)


def of(kind: type[Effect], effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, kind)]


def decided(effects: list[Effect]) -> list[Effect]:
    return of(Serve, effects) + of(PassThrough, effects) + of(EndGuest, effects)


def served(scene: Scene, name: str = "ada#1", guest: int = 1) -> None:
    scene.own()
    assert Serve(guest) in scene.give(GuestArrived(guest, welcome(name)))


def test_a_guest_of_our_class_is_served_and_one_of_another_is_passed_through() -> None:
    scene = Scene()
    scene.own()
    assert decided(scene.give(GuestArrived(1, welcome("ada#1")))) == [Serve(1)]
    assert decided(scene.give(GuestArrived(2, welcome("bob#1", view=THEIRS)))) == [PassThrough(2)]
    assert scene.machine.served == {"ada#1": 1}
    assert scene.machine.passed() == 1
    assert scene.machine.may_see("ada#1")
    assert not scene.machine.may_see("bob#1")


@pytest.mark.parametrize(
    ("epoch", "view", "decision"),
    [(8, OURS, Serve(1)), (8, THEIRS, PassThrough(1)), (7, OURS, None)],
)
def test_a_guest_of_another_epoch_waits_for_our_own_link_but_not_for_long(
    epoch: int, view: bytes, decision: Effect | None
) -> None:
    scene = Scene()
    scene.own(epoch=7)
    assert decided(scene.give(GuestArrived(1, welcome("ada#1", 8, OURS)))) == []
    assert decided(scene.passes(COMPARE_US - 1)) == []
    found = scene.give(OwnLinkUp(welcome("operator#relay", epoch, view)))
    assert decided(found) == ([] if decision is None else [decision])
    late = decided(scene.passes(1))
    assert late == ([PassThrough(1)] if decision is None else [])


def test_beyond_the_machines_room_guests_are_passed_through() -> None:
    scene = Scene()
    scene.own()
    for guest, name in enumerate(("a#1", "b#1", "c#1", "b#1")):
        scene.give(GuestArrived(guest, welcome(name)))
    assert [one.state for one in scene.machine.guests.values()] == [
        GuestState.SERVED,
        GuestState.SERVED,
        GuestState.PASSED,
        GuestState.SERVED,  # the same device again needs no more room
    ]
    assert scene.machine.occupancy()["served"] == (2, 2)


def test_a_relay_has_a_bound_of_guests() -> None:
    scene = Scene(guests_max=1)
    scene.own()
    scene.give(GuestArrived(1, welcome("a#1")))
    with pytest.raises(LimitError, match="at most 1 guests"):
        scene.give(GuestArrived(2, welcome("b#1")))
    assert list(scene.machine.guests) == [1]


def test_what_shows_anything_waits_until_the_service_says_who_may_see_it() -> None:
    scene = Scene()
    served(scene)
    assert of(Send, scene.shows("ada#1"))
    scene.give(GuestLinkDown(1))
    assert scene.shows("ada#1") == [Withheld("ada#1")]
    scene.own(8, b"the same renamed")  # a restarted service has other tags for the same
    assert scene.shows("ada#1") == [Withheld("ada#1")]
    scene.give(GuestLinkUp(1, welcome("ada#1", 8, b"the same renamed")))
    assert of(Send, scene.shows("ada#1"))
    assert of(EndGuest, scene.effects) == []


@pytest.mark.parametrize("whose", ["guest", "relay"])
def test_when_the_class_of_either_changes_the_guest_must_come_again(whose: str) -> None:
    scene = Scene()
    served(scene)
    if whose == "guest":
        found = scene.give(GuestLinkUp(1, welcome("ada#1", view=THEIRS)))
    else:
        found = scene.give(OwnLinkUp(welcome("operator#relay", view=THEIRS)))
    assert of(EndGuest, found) == [EndGuest(1, CHANGED, 1)]
    assert scene.shows("ada#1") == [Withheld("ada#1")]


def test_who_stays_unsure_is_sent_away_but_only_while_our_own_link_is_up() -> None:
    scene = Scene()
    served(scene)
    scene.give(GuestLinkDown(1))
    scene.passes(UNSURE_US_MAX - 1)
    scene.give(OwnLinkDown())  # now nobody could be served
    scene.passes(5 * UNSURE_US_MAX)
    scene.own()
    assert of(EndGuest, scene.passes(UNSURE_US_MAX - 1)) == []
    assert of(EndGuest, scene.passes(1)) == [EndGuest(1, UNSURE, SECOND)]
    assert of(EndGuest, scene.passes(5 * UNSURE_US_MAX)) == []


def test_a_guest_that_is_sure_again_in_time_stays() -> None:
    scene = Scene()
    served(scene)
    scene.give(GuestLinkDown(1))
    scene.passes(UNSURE_US_MAX - 1)
    scene.give(GuestLinkUp(1, welcome("ada#1")))
    assert of(EndGuest, scene.passes(5 * UNSURE_US_MAX)) == []


def test_a_guest_ends_with_its_own_link_and_one_passed_through_comes_again_with_it() -> None:
    scene = Scene()
    served(scene)
    scene.give(GuestArrived(2, welcome("bob#1", view=THEIRS)))
    scene.give(GuestArrived(3, welcome("cleo#1", view=THEIRS)))
    revoked = "token: this token was revoked"
    for guest in (1, 2):
        ended = scene.give(GuestLinkEnded(guest, revoked))
        assert of(EndGuest, ended) == [EndGuest(guest, revoked, 0)]
        assert scene.give(GuestLinkEnded(guest, revoked)) == []  # once is enough
    again = scene.give(GuestLinkUp(3, welcome("cleo#1", 8, THEIRS)))
    assert of(EndGuest, again) == [EndGuest(3, SERVICE_AWAY, 1)]
    assert CloseGuest(3) in scene.give(GuestGone(3))
    assert list(scene.machine.guests) == [1, 2]


def test_a_guest_that_waits_is_ended_as_well() -> None:
    scene = Scene()
    scene.own()
    scene.give(GuestArrived(1, welcome("ada#1", 8)))
    assert decided(scene.give(GuestLinkEnded(1, "expired"))) == [EndGuest(1, "expired", 0)]
    assert decided(scene.passes(5 * COMPARE_US)) == []


def test_another_service_behind_the_relay_makes_a_new_machine() -> None:
    scene = Scene()
    served(scene)
    scene.give(GuestArrived(2, welcome("bob#1", view=THEIRS)))
    before = scene.machine.relay
    scene.own(8)
    assert scene.machine.relay is before  # a later epoch is the same service, restarted
    other = MapSettings(relay_clients_max=2, heartbeat_us=123_456)
    found = scene.give(OwnLinkUp(welcome("operator#relay", 9, OURS, other)))
    assert of(EndGuest, found) == [EndGuest(1, RENEWED, 1)]
    assert len(of(ServingBegan, found)) == 1
    assert scene.machine.relay is not before
    assert len(scene.machine.publishers) == 0
    older = scene.give(OwnLinkUp(welcome("operator#relay", 8, OURS, other)))
    assert len(of(ServingBegan, older)) == 1


def publish(scene: Scene, name: str, number: int, vid: str) -> list[Effect]:
    context = Context(vid, "lab/1", None, {}, scene.now)
    stamp = scene.now + number
    first: tuple[Operation, ...] = (Hello(0, ""),) if number == 1 else ()
    return scene.says(name, number, *first, Publish(body_of(context), stamp))


def taken(scene: Scene, guest: int) -> list[Effect]:
    """The service answers all that was sent by a guest's own link."""
    sent = [
        one.message
        for one in scene.effects
        if isinstance(one, SendUp) and one.guest == guest and isinstance(one.message, Request)
    ]
    last = sent[-1]
    number = last.number + len(last.operations) - 1
    return scene.give(GuestReceived(guest, Answer(last.epoch, last.session, number, 1)))


def test_a_guest_publishes_by_its_own_link_and_leaves_when_that_is_taken() -> None:
    scene = Scene()
    served(scene)
    assert of(SendUp, publish(scene, "ada#1", 1, "m"))
    assert "ada#1" in scene.machine.publishers
    assert of(CloseGuest, scene.give(GuestGone(1))) == []
    assert of(CloseGuest, taken(scene, 1)) == []  # it registered; the publication comes after
    assert of(CloseGuest, taken(scene, 1)) == [CloseGuest(1)]
    assert scene.machine.guests == {}
    assert scene.machine.served == {}


def test_a_guest_whose_last_publication_nobody_takes_leaves_nevertheless() -> None:
    scene = Scene()
    served(scene)
    publish(scene, "ada#1", 1, "m")
    scene.give(GuestGone(1))
    assert of(CloseGuest, scene.passes(FAREWELL_US - 1)) == []
    assert of(CloseGuest, scene.passes(1)) == [CloseGuest(1)]


def test_publications_go_on_by_the_link_of_a_guest_that_comes_again() -> None:
    scene = Scene()
    served(scene)
    publish(scene, "ada#1", 1, "m")
    scene.give(GuestGone(1))
    found = scene.give(GuestArrived(2, welcome("ada#1")))
    assert of(CloseGuest, found) == [CloseGuest(1)]
    scene.effects.clear()
    scene.passes(SECOND)
    assert {one.guest for one in scene.effects if isinstance(one, SendUp)} == {2}
    assert len(scene.machine.publishers) == 1


def test_publications_of_a_guest_that_does_not_come_back_are_forgotten() -> None:
    scene = Scene()
    served(scene)
    publish(scene, "ada#1", 1, "m")
    scene.give(GuestGone(1))
    scene.passes(FAREWELL_US)
    assert len(scene.machine.publishers) == 1
    scene.effects.clear()
    scene.passes(SETTINGS.client_timeout_us + 2 * SWEEP_US)
    assert len(scene.machine.publishers) == 0
    assert of(SendUp, scene.effects) == []  # without its own link nobody speaks in its name
    assert scene.machine.deadline() is None or not of(SendUp, scene.passes(60 * SECOND))


def test_without_its_own_link_nothing_is_sent_in_a_guests_name() -> None:
    scene = Scene()
    served(scene)
    publish(scene, "ada#1", 1, "m")
    taken(scene, 1)
    scene.give(GuestLinkDown(1))
    scene.effects.clear()
    vid_gone = Unpublish("m", scene.now + 10)
    scene.says("ada#1", 3, vid_gone)
    assert of(SendUp, scene.effects) == []
    scene.give(GuestLinkUp(1, welcome("ada#1", 8)))
    assert of(SendUp, scene.passes(SECOND))  # it registers with the restarted service


def test_a_relay_that_goes_down_sends_everybody_away() -> None:
    scene = Scene()
    served(scene)
    scene.give(GuestArrived(2, welcome("bob#1", view=THEIRS)))
    scene.give(GuestArrived(3, welcome("cleo#1", 8)))
    assert of(EndGuest, scene.give(GoingDown())) == [
        EndGuest(guest, AWAY, SECOND) for guest in (1, 2, 3)
    ]


ACTS = ("own", "own down", "arrive", "arrive", "up", "down", "ended", "gone", "time")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(ACTS),
        st.integers(0, 2),
        st.sampled_from([7, 7, 8]),
        st.sampled_from([OURS, OURS, THEIRS]),
    ),
    min_size=10,
    max_size=40,
)


class Word:
    """What the service said last of the relay and of each guest, written down by the test."""

    def __init__(self) -> None:
        self.scene = Scene()
        self.ours = (7, OURS)
        self.scene.own(*self.ours)
        self.guests: dict[int, tuple[int, bytes] | None] = {}
        self.came: set[int] = set()
        self.over: set[int] = set()

    def name(self, guest: int) -> str:
        return f"n{guest % 2}#1"  # the last has the name of the first

    def act(self, what: str, guest: int, epoch: int, view: bytes) -> None:
        give, there = self.scene.give, guest in self.guests
        match what:
            case "own":
                self.ours = (epoch, view)
                self.scene.own(epoch, view)
            case "own down":
                give(OwnLinkDown())
            case "time":
                self.scene.passes(epoch * SECOND // 2)
            case "arrive" if guest not in self.came:
                self.came.add(guest)
                self.guests[guest] = (epoch, view)
                give(GuestArrived(guest, welcome(self.name(guest), epoch, view)))
            case "up" if there and guest not in self.over:
                self.guests[guest] = (epoch, view)
                give(GuestLinkUp(guest, welcome(self.name(guest), epoch, view)))
            case "down" if there:
                self.guests[guest] = None
                give(GuestLinkDown(guest))
            case "ended" if there:
                self.over.add(guest)
                self.guests[guest] = None
                give(GuestLinkEnded(guest, "revoked"))
            case "gone" if there:
                del self.guests[guest]
                give(GuestGone(guest))


@given(STEPS)
def test_nobody_is_shown_anything_unless_the_service_says_so_and_every_guest_is_let_go(
    steps: list[tuple[str, int, int, bytes]],
) -> None:
    word = Word()
    scene = word.scene
    for step in steps:
        word.act(*step)
        for name in {word.name(guest) for guest in range(3)}:
            if of(Send, scene.shows(name)):
                shown = scene.machine.served[name]
                assert word.guests[shown] == word.ours
                assert Serve(shown) in scene.effects
    for guest in list(word.guests):
        scene.give(GuestGone(guest))
    scene.passes(FAREWELL_US)
    assert scene.machine.guests == {}
    assert scene.machine.served == {}
    for guest in word.came:
        assert not {Serve(guest), PassThrough(guest)} <= {*decided(scene.effects)}
        assert scene.effects.count(CloseGuest(guest)) == 1
        ends = [one for one in scene.effects if isinstance(one, EndGuest) and one.guest == guest]
        assert len(ends) <= 1


def test_an_input_that_nobody_takes_is_an_assertion() -> None:
    with pytest.raises(AssertionError, match="nobody takes Input"):
        Scene().give(Input())
