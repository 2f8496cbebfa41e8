"""Casts at one node: who is found, when, and what is owed after a crash; bounds and refusals."""

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import ConflictError, ForbiddenError, LimitError, NotFoundError
from roamcast.identity.rules import Viewer
from roamcast.model.casts import Cast
from roamcast.model.contexts import Context
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.machine import Effect, Store, Stored, StoreFailed, Writes
from roamcast.overlay.casts import held
from roamcast.overlay.casts.casts import Casts
from roamcast.overlay.casts.held import (
    PAYLOADS,
    SENT,
    HeldCast,
    StoredCast,
    name_of,
    paged_pairs,
    plan_of,
    planned,
)
from roamcast.overlay.casts.looking import PastAnswer, answer_run, asked_of, paged
from roamcast.overlay.casts.messages import (
    ENDING,
    RESULT,
    CancelCast,
    CastBody,
    CastEnding,
    CastResult,
    DepositFailed,
    DepositMail,
    LookUpPast,
    MailDeposited,
    Pair,
    PayloadRead,
    PlanFilter,
    ReadPayload,
    SendCast,
    UpdateCast,
)
from roamcast.overlay.casts.orders import with_expiry
from roamcast.overlay.casts.settings import CastSettings
from roamcast.overlay.casts.waiting import WaitingCasts
from roamcast.overlay.events import HandleParcel, ParcelArrived, ParcelHandled, ParcelId
from roamcast.sim.workloads._cast_parts import (
    Alternative,
    RecordedCast,
    VisitState,
    drawn_filter,
    drawn_present,
    matches,
)
from roamcast.sim.workloads._map_parts import ScanMatcher

SENDER = Viewer("sender")
SETTINGS = CastSettings(
    casts_max=3, sender_max=3, batch_us=10, page_pairs=2, retry_us=100, lateness_us=50
)
PLACES = ["campus", "campus/a", "campus/b"]
ROLES = ["red", "blue"]


class OneNode:
    """A broker's casts with a disk, a past and a trusted node that are always well, unless told."""

    def __init__(self, stored: dict[str, bytes] | None = None, now: int = 1_000) -> None:
        self.disk: dict[str, bytes] = {} if stored is None else stored
        self.past: dict[str, list[Context]] = {}
        self.mail: list[DepositMail] = []
        self.told: list[Effect] = []
        self.now = now
        self.disk_well = self.trust_well = True
        self.casts = Casts(
            SETTINGS,
            now=now,
            draw=lambda: 0.5,
            see=lambda context, _viewer, _now: context,
            state_of=lambda vid: self.past[vid][-1],
            key_of=lambda vid: None if vid.startswith("keyless") else b"key",
            trusted_nodes=["trust"],
            make_matcher=ScanMatcher,
        )
        own = {key: value for key, value in self.disk.items() if key.startswith("casts/")}
        self.carry(self.casts.restore(own, now))

    def carry(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            answer = self.answer(effect)
            for one in answer:
                self.carry(self.casts.receive(one, self.now))

    def answer(self, effect: Effect) -> list[Any]:
        match effect:
            case Store(token, writes):
                return [Stored(token) if self.wrote(writes) else StoreFailed(token, "full")]
            case LookUpPast(token, questions):
                answers = []
                for question in questions:
                    answer = PastAnswer([], [])
                    asked = asked_of(question.filter, question.window)
                    for run in self.past.values():
                        answer_run(asked, run, self.now, question.until, answer)
                    answers.append(answer)
                return list(paged(token, answers, 1))
            case HandleParcel(parcel, writes):
                return [ParcelHandled(parcel)] if self.wrote(writes) else []
            case PlanFilter():
                return [planned(effect)]
            case ReadPayload(token, name):
                return [PayloadRead(token, self.disk.get(name))]
            case DepositMail():
                self.mail.append(effect)
                if not self.trust_well:
                    return [DepositFailed(effect.token, "away")]
                gone = sum(vid.startswith("gone") for vid, _ in effect.parcels)
                return [MailDeposited(effect.token, len(effect.parcels) - gone, gone, 0, 0)]
            case _:
                self.told.append(effect)
                return []

    def wrote(self, writes: Writes) -> bool:
        for key, value in writes if self.disk_well else ():
            self.disk.pop(key, None) if value is None else self.disk.update({key: value})
        return self.disk_well

    def run_until(self, now: int) -> None:
        while (due := self.casts.deadline()) is not None and due <= now:
            self.now = max(self.now, due)
            self.carry(self.casts.advance(self.now))
        self.now = max(now, self.now)

    def show(self, vid: str, place: str, role: str = "red") -> None:
        context = Context(vid, place, None, {"role": role}, self.now)
        run = self.past.setdefault(vid, [])
        if run and run[-1].t_d is None:
            run[-1] = Context(vid, run[-1].place, None, run[-1].attributes, run[-1].t_r, self.now)
        run.append(context)
        self.casts.shows(context)

    def leave(self, vid: str) -> None:
        last = self.past[vid][-1]
        self.past[vid][-1] = Context(vid, last.place, None, last.attributes, last.t_r, self.now)
        self.casts.ends(self.past[vid][-1])

    def ask(self, given: Any) -> Effect:
        self.told.clear()
        self.carry(self.casts.receive(given, self.now))
        return next(one for one in self.told if isinstance(one, Acknowledged | Failed))

    def send(self, cast: str, text: str, **more: Any) -> Effect:
        return self.ask(SendCast(1, Cast(cast, text, b"hello", self.now, **more), SENDER))

    @property
    def reached(self) -> list[str]:
        return [vid for mail in self.mail for vid, _ in mail.parcels]


def at(moment: int) -> str:
    return f"1970-01-01T00:00:00.{moment:06}Z"


def span(a: int, b: int) -> str:
    return f"INTERVAL('{at(a)}', '{at(b)}')"


def test_a_cast_reaches_who_was_there_is_there_and_will_be_there() -> None:
    node = OneNode()
    node.show("old@trust", "hq/3")
    node.run_until(1_100)
    node.leave("old@trust")
    node.show("now@trust", "hq/3/a")
    node.show("elsewhere@trust", "hq/4")
    node.run_until(1_200)
    here = "within(place, 'hq/3')"
    node.send("past", f"{here} AND overlaps(time, {span(900, 1_050)})")
    node.send("present", here)
    node.send("future", f"{here} AND start_by(time, {span(1_250, 1_400)})")
    node.run_until(1_300)
    node.show("next@trust", "hq/3/b")
    node.run_until(2_000)
    by_cast = {cast: {vid for one in node.mail if one.cast == cast for vid, _ in one.parcels}
               for cast in ("past", "present", "future")}  # fmt: skip
    assert by_cast == {
        "past": {"old@trust"},
        "present": {"now@trust"},
        "future": {"next@trust"},
    }


def test_during_is_decided_when_somebody_leaves_and_contains_when_its_end_is_reached() -> None:
    """The errata to TCC figure 4: predicates are decided as early as they can be, by timers."""
    node = OneNode()
    node.send("during", f"role = 'red' AND during(time, {span(1_000, 1_500)})")
    node.send("contains", f"role = 'red' AND contains(time, {span(1_100, 1_300)})")
    node.show("who@trust", "hq")
    node.run_until(1_299)
    assert node.mail == []
    node.run_until(1_300)
    assert [one.cast for one in node.mail] == ["contains"]
    node.run_until(1_400)
    node.leave("who@trust")
    node.run_until(1_401)
    assert [one.cast for one in node.mail] == ["contains", "during"]


def test_a_deposit_tells_a_trusted_node_neither_filter_nor_place_and_names_hours_back() -> None:
    node = OneNode()
    node.show("who@trust", "hq/3")
    node.run_until(1_100)
    node.send("past", f"within(place, 'hq/3') AND overlaps(time, {span(900, 1_050)})")
    node.run_until(1_200)
    (mail,) = node.mail
    assert "hq" not in repr(mail)
    assert mail.back_s == 3_600
    assert node.disk[mail.payload] == b"hello"


def test_vids_without_a_key_or_of_strangers_count_as_unreachable() -> None:
    node = OneNode()
    for vid in ("keyless@trust", "who@elsewhere", "plain", *(f"p{n}@trust" for n in range(6))):
        node.show(vid, "hq")
    node.send("present", "place = 'hq'")
    node.run_until(1_100)
    assert sorted(node.reached) == [f"p{n}@trust" for n in range(6)]
    view = node.casts.view("present")
    assert (view.found, view.delivered, view.unreachable) == (9, 6, 3)  # rounded down to fives


def test_whom_the_trusted_node_cannot_reach_counts_as_unreachable_too() -> None:
    node = OneNode()
    for vid in ("keyless@trust", "gone@trust"):
        node.show(vid, "hq")
    node.send("present", "place = 'hq'")
    node.run_until(1_100)
    assert node.casts.view("present").unreachable == 2


def test_mail_that_is_owed_is_deposited_after_a_crash_and_a_trusted_nodes_absence() -> None:
    node = OneNode()
    for number in range(5):
        node.show(f"p{number}@trust", "hq")
    node.trust_well = False
    node.send("present", "place = 'hq'")
    node.run_until(1_500)
    assert len(node.mail) > 3  # repeated
    after = OneNode(node.disk, now=2_000)
    after.run_until(2_100)
    assert sorted(after.reached) == [f"p{number}@trust" for number in range(5)]
    assert all(len(mail.parcels) <= SETTINGS.page_pairs for mail in after.mail)


def test_a_cast_whose_payload_is_held_is_not_in_memory() -> None:
    node = OneNode()
    node.send("future", f"role = 'red' AND during(time, {span(5_000, 9_000)})")
    (held,) = node.casts.casts.values()
    assert not any(isinstance(getattr(held, name), bytes) for name in HeldCast.__slots__)
    assert b"hello" in node.disk.values()


def test_nothing_is_acknowledged_before_it_is_on_disk() -> None:
    node = OneNode()
    node.disk_well = False
    assert isinstance(node.send("one", "role = 'red'"), Failed)
    assert not node.casts.casts
    node.disk_well = True
    assert isinstance(node.send("one", "role = 'red'"), Acknowledged)


def test_more_casts_than_the_bound_are_refused() -> None:
    node = OneNode()
    for number in range(SETTINGS.casts_max):
        assert isinstance(node.send(f"c{number}", "role = 'red'"), Acknowledged)
    refused = node.send("one more", "role = 'red'")
    assert isinstance(refused, Failed)
    assert isinstance(refused.error, LimitError)
    assert node.casts.occupancy()["casts"] == (3, 3)


@pytest.mark.limit("casts.waiting_per_sender_max")
def test_one_sender_has_so_many_casts_and_no_more_until_one_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "tests.overlay.test_casts.SETTINGS", msgspec.structs.replace(SETTINGS, sender_max=2)
    )
    node = OneNode()
    node.disk_well = False
    assert isinstance(node.send("refused", "place = 'hq'", expires=9_000), Failed)
    node.disk_well = True
    for cast in ("one", "two"):
        assert isinstance(node.send(cast, "place = 'hq'", expires=9_000), Acknowledged)
    node = OneNode(node.disk, node.now)  # a restart counts them again
    over = node.send("three", "place = 'hq'", expires=9_000)
    assert isinstance(over, Failed)
    assert "2 casts of yours are held" in str(over.error)
    other = SendCast(1, Cast("theirs", "place = 'hq'", b"x", node.now), Viewer("other"))
    assert isinstance(node.ask(other), Acknowledged)
    node.run_until(10_000)
    while "one" in node.casts.casts or "two" in node.casts.casts:
        node.run_until(node.now + 1_000_000)
    assert isinstance(node.send("three", "place = 'hq'"), Acknowledged)


def test_a_restart_parses_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    node = OneNode()
    later = f"within(place, 'hq') AND overlaps(time, {span(2_000, 3_000)})"
    for cast, text in (("future", later), ("present", "place = 'hq'")):
        assert isinstance(node.send(cast, text, expires=900_000), Acknowledged)
    monkeypatch.setattr(held, "_plan", lambda *_: pytest.fail("a filter was parsed"))
    again = OneNode(node.disk, node.now)
    assert sorted(again.casts.casts) == ["future", "present"]
    assert all(one.question() for one in again.casts.casts.values())


@pytest.fixture
def collecting() -> OneNode:
    """A node whose cast is over, though the neighbour it was handed to has not answered."""
    first = OneNode()
    text = "within(place, 'campus')"
    sent = SendCast(1, Cast("c", text, b"hello", first.now, expires=2_000), SENDER, policy="FBTH")
    assert isinstance(first.ask(sent), Acknowledged)
    first.disk[f"{SENT}{name_of('c')}/far"] = b"far"
    node = OneNode(first.disk, first.now)
    node.run_until(1_000_000)
    while "c" in node.casts.casts:
        node.run_until(node.now + 1_000_000)
    return node


def late_result(number: int, *, complete: bool = True) -> ParcelArrived:
    body = CastResult("c", "far", (Pair(f"late-{number}@trust", b"key"),), complete=complete)
    return ParcelArrived(ParcelId("far", 1, number), RESULT, msgspec.msgpack.encode(body))


def test_results_that_come_after_a_cast_was_forgotten_are_delivered(collecting: OneNode) -> None:
    collecting.disk_well = False
    collecting.carry(collecting.casts.receive(late_result(1), collecting.now))
    collecting.disk_well = True  # what the disk refused comes again
    for number in (1, 2):
        collecting.carry(collecting.casts.receive(late_result(number), collecting.now))
    assert collecting.reached == ["late-1@trust", "late-2@trust"]
    again = OneNode(dict(collecting.disk), collecting.now)  # killed before it was forgotten again
    again.run_until(again.now + 1_000_000)
    assert "c" not in again.casts.casts
    again.carry(again.casts.receive(late_result(3), again.now))
    assert again.reached == ["late-3@trust"]


def test_nothing_of_a_cast_stays_once_results_can_not_come(collecting: OneNode) -> None:
    assert PAYLOADS + name_of("c") in collecting.disk
    collecting.run_until(2_000 + SETTINGS.late_us + 1)
    assert not collecting.disk
    collecting.carry(collecting.casts.receive(late_result(1), collecting.now))
    assert not collecting.reached
    assert not collecting.disk


def test_a_cast_for_which_no_results_can_come_leaves_no_payload() -> None:
    node = OneNode()
    node.send("c", "place = 'hq'", expires=2_000)
    assert PAYLOADS + name_of("c") in node.disk
    while "c" in node.casts.casts:
        node.run_until(node.now + 1_000)
    assert not any(key.startswith(PAYLOADS) for key in node.disk)


def test_results_of_a_cast_that_was_cancelled_meanwhile_reach_nobody(collecting: OneNode) -> None:
    ending = CastEnding("c", 2_000 + SETTINGS.late_us)
    told = ParcelArrived(ParcelId("far", 1, 9), ENDING, msgspec.msgpack.encode(ending))
    collecting.carry(collecting.casts.receive(told, collecting.now))
    collecting.carry(collecting.casts.receive(late_result(1), collecting.now))
    assert not collecting.reached
    assert not any(key.startswith(PAYLOADS) for key in collecting.disk)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (CancelCast(2, "nobody's", SENDER), NotFoundError),
        (CancelCast(2, "one", Viewer("other")), ForbiddenError),
        (UpdateCast(2, "one", "one", b"", SENDER), ConflictError),
        (UpdateCast(2, "one", "u", bytes(200_000), SENDER), LimitError),
        (SendCast(2, Cast("x", "role = 'a' AND role = 'b'", b"", 1_000), SENDER), Exception),
        (SendCast(2, Cast("x", "role = 'a'", b"", 1_000), SENDER, policy="BTH0"), Exception),
    ],
)
def test_a_wrong_request_changes_nothing(given: Any, error: type[Exception]) -> None:
    node = OneNode()
    node.send("one", "role = 'red'")
    before = dict(node.disk)
    refused = node.ask(given)
    assert isinstance(refused, Failed)
    assert isinstance(refused.error, error)
    assert node.disk == before


def test_a_cancelled_cast_reaches_nobody_more_and_cannot_be_cancelled_again() -> None:
    node = OneNode()
    node.send("future", f"role = 'red' AND start_by(time, {span(1_000, 9_000)})")
    assert isinstance(node.ask(CancelCast(2, "future", SENDER)), Acknowledged)
    node.show("late@trust", "hq")
    node.run_until(1_500)
    assert node.mail == []
    again = node.ask(CancelCast(2, "future", SENDER))
    assert isinstance(again, Failed)
    assert isinstance(again.error, ConflictError)


def test_an_update_reaches_exactly_those_whom_the_cast_reached() -> None:
    node = OneNode()
    for number in range(5):
        node.show(f"p{number}@trust", "hq")
    node.send("alert", f"role = 'red' AND start_by(time, {span(500, 9_000)})")
    node.run_until(1_200)
    first = sorted(node.reached)
    node.mail.clear()
    assert isinstance(node.ask(UpdateCast(2, "alert", "all clear", b"over", SENDER)), Acknowledged)
    node.show("late@trust", "hq")
    node.run_until(1_500)
    assert {one.cast for one in node.mail} == {"all clear"}
    assert sorted(node.reached) == first
    assert node.disk[node.mail[0].payload] == b"over"


def limited(monkeypatch: pytest.MonkeyPatch, **limits: int) -> OneNode:
    monkeypatch.setattr(
        "tests.overlay.test_casts.SETTINGS", msgspec.structs.replace(SETTINGS, **limits)
    )
    return OneNode()


@pytest.mark.limit("casts.candidates_max")
@pytest.mark.parametrize(("people", "lost"), [(3, False), (4, True)])
def test_who_is_one_candidate_too_many_is_found_by_one_more_look(
    people: int, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = limited(monkeypatch, candidates_max=3)
    node.send("during", f"role = 'red' AND during(time, {span(1_000, 1_500)})", expires=2_000)
    node.run_until(1_050)
    for number in range(people):
        node.show(f"p{number}@trust", "hq")
        node.run_until(1_060 + number)
    assert node.casts.occupancy()["candidates"] == (3, 3)
    assert ("during" in node.casts._desk.waiting.lost) == lost
    node.run_until(1_200)
    for number in range(people):
        node.leave(f"p{number}@trust")
    node.run_until(20_000)
    assert sorted(node.reached) == [f"p{number}@trust" for number in range(people)]


@pytest.mark.limit("casts.update_max")
@pytest.mark.parametrize(("people", "updated"), [(4, 4), (6, 4)])
def test_an_update_reaches_so_many_and_the_cast_itself_everybody(
    people: int, updated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = limited(monkeypatch, update_max=4)
    for number in range(people):
        node.show(f"p{number}@trust", "hq")
    node.send("alert", f"role = 'red' AND start_by(time, {span(500, 9_000)})")
    node.run_until(1_200)
    assert len(node.reached) == people
    node.mail.clear()
    assert isinstance(node.ask(UpdateCast(2, "alert", "all clear", b"over", SENDER)), Acknowledged)
    node.run_until(1_500)
    assert len(node.reached) == updated


@pytest.mark.limit("casts.union_max")
@pytest.mark.parametrize(("found", "passed_on"), [(3, False), (4, True)])
def test_results_wait_to_be_united_up_to_so_many(
    found: int, passed_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a branching point, while a neighbour has not answered (trap 9)."""
    first = limited(monkeypatch, union_max=3)
    text = "within(place, 'campus')"
    sent = SendCast(1, Cast("c", text, b"hello", first.now, expires=90_000), SENDER, policy="FBTH")
    assert isinstance(first.ask(sent), Acknowledged)
    for neighbour in ("far", "away"):
        first.disk[f"{SENT}{name_of('c')}/{neighbour}"] = neighbour.encode()
    node = OneNode(first.disk, first.now)
    node.run_until(1_100)
    for number in range(found):
        node.carry(node.casts.receive(late_result(number, complete=False), node.now))
    assert bool(node.mail) == passed_on
    assert len(node.reached) == (found if passed_on else 0)


def test_results_that_are_on_their_way_to_the_disk_are_not_divided_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = limited(monkeypatch, union_max=1)
    text = "within(place, 'campus')"
    sent = SendCast(1, Cast("c", text, b"hello", first.now, expires=90_000), SENDER, policy="FBTH")
    assert isinstance(first.ask(sent), Acknowledged)
    for neighbour in ("far", "away"):
        first.disk[f"{SENT}{name_of('c')}/{neighbour}"] = neighbour.encode()
    node = OneNode(first.disk, first.now)
    node.run_until(1_100)
    slow: list[Effect] = []
    monkeypatch.setattr(
        node, "answer", lambda one: slow.append(one) or [] if isinstance(one, Store)
        else OneNode.answer(node, one),
    )  # fmt: skip
    for number in range(4):
        node.carry(node.casts.receive(late_result(number, complete=False), node.now))
    monkeypatch.undo()
    node.carry(slow)
    assert sorted(node.reached) == [f"late-{number}@trust" for number in range(4)]


@pytest.mark.parametrize(("last", "expires"), [(3_000, 3_000), (1_500, 2_000)])
def test_a_cast_expires_when_it_can_match_nobody_but_lives_for_a_while(
    last: int, expires: int
) -> None:
    draft = msgspec.structs.replace(
        body(f"role = 'red' AND overlaps(time, {span(500, last)})"), sent=1_000, split_at=1_000
    )
    assert with_expiry(draft, None, CastSettings(life_us=1_000)).expires_us == expires


def body(filter_text: str, policy: str = "NH", expires: int = 100_000) -> CastBody:
    return CastBody("c", filter_text, None, 0, 0, expires, expires, "text/plain", "s", (), "k",
                    policy, 0, "origin")  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "branches", "resolver"),
    [
        ("NH", ("a", "b"), "here"),
        ("FBTH", ("a", "b"), "a"),  # FBTH is BTH1
        ("BTH1", ("a", "b"), "a"),
        ("BTH2", ("a", "b"), "b"),
        ("BTH3", ("a", "b"), "here"),  # erratum: with fewer the access node resolves itself
    ],
)
def test_the_policy_names_the_node_that_resolves(
    policy: str, branches: tuple[str, ...], resolver: str
) -> None:
    held = HeldCast(StoredCast(body("role = 'red'", policy), "b", branches, 1))
    assert held.resolver("here") == resolver


@given(st.lists(st.integers(0, 400), max_size=60), st.integers(1, 9), st.integers(50, 900))
def test_pages_hold_everybody_in_order_within_both_bounds(
    sizes: list[int], pairs_max: int, bytes_max: int
) -> None:
    pairs = [Pair(f"v{number}", bytes(size)) for number, size in enumerate(sizes)]
    pages = paged_pairs(pairs, pairs_max, bytes_max)
    assert [pair for page in pages for pair in page] == pairs
    for page in pages:
        assert 0 < len(page) <= pairs_max
        size = sum(len(pair.vid) + len(pair.key) + 16 for pair in page)
        assert len(page) == 1 or size <= bytes_max


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False), st.data())
def test_what_is_looked_up_and_what_is_waited_for_is_together_what_the_record_says(
    draw: random.Random, data: st.DataObject
) -> None:
    """Whenever a cast comes, and whatever has begun or ended by then, the same people match."""
    times = sorted(data.draw(st.sets(st.integers(10, 990), min_size=1, max_size=6)))
    ends = data.draw(st.booleans()) and len(times) > 1
    states = [
        VisitState(draw.choice(PLACES[1:]), draw.choice(ROLES), at, certain=True)
        for at in (times[:-1] if ends else times)
    ]
    end = times[-1] if ends else None
    arrives = data.draw(st.integers(0, 1_000))
    expires = data.draw(st.integers(1, 1_200))
    if draw.random() < 0.2:
        text, meaning = drawn_present(draw, arrives, PLACES, ROLES)
    else:
        text, meaning = drawn_filter(draw, lambda: draw.randrange(1_000), PLACES, ROLES)
    assert is_found(states, end, text, arrives, expires) == expected(states, end, meaning, expires)


def expected(
    states: list[VisitState], end: int | None, meaning: tuple[Alternative, ...], expires: int
) -> bool:
    until = [*(one.begin for one in states[1:]), end]
    run = [(one, one.begin, at) for one, at in zip(states, until, strict=True)]
    return matches(run, RecordedCast("c", "n", 1, expires, meaning, 0, "NH"))


def is_found(
    states: list[VisitState], end: int | None, text: str, arrives: int, expires: int
) -> bool:
    """Let a cast come at a time: ask the past up to then, and wait for the rest."""
    sent = msgspec.structs.replace(body(text, expires=expires), sent=arrives, split_at=arrives)
    held = HeldCast(StoredCast(sent, "", (), 1))
    casts = WaitingCasts(lambda context, _viewer, _now: context, 100, ScanMatcher, lambda _: None)
    casts.add(held)
    contexts = [Context("v", one.place, None, {"role": one.role}, one.begin) for one in states]
    events = [(one.t_r, one) for one in contexts]
    if end is not None:
        last = contexts[-1]
        events.append((end, Context("v", last.place, None, last.attributes, last.t_r, end)))
    found: list[tuple[str, str]] = []
    asked = asked_of(plan_of(sent).text, plan_of(sent).window)
    known = [event for when, event in events if when <= arrives]
    run: list[Context] = []
    for event in known:
        if run and run[-1].t_d is None:
            before = run.pop()
            cut = event.t_d if event.t_d is not None else event.t_r
            run.append(Context("v", before.place, None, before.attributes, before.t_r, cut))
        if event.t_d is None:
            run.append(event)
    answer = PastAnswer([], [])
    if run:
        answer_run(asked, run, arrives, expires, answer)
    found += [("c", vid) for vid in answer.found]
    held.whom.update(dict.fromkeys(answer.found))
    found += casts.resume("c", answer.lasting, {}, lambda _: known[-1], arrives)
    for when, event in events:
        if when > arrives:
            found += fire(casts, when - 1)
            found += casts.take(event, when)
    found += fire(casts, 3_000)
    return bool(found)


def fire(casts: WaitingCasts, until: int) -> list[tuple[str, str]]:
    found = []
    while (due := casts.deadline()) is not None and due <= until:
        found += casts.fire(due)
    return found
