"""The trusted node: one mail per person and cast, acknowledged means on disk, all bounded."""

import random
from collections.abc import Sequence

import pyarrow as pa
import pytest
from msgspec.structs import replace

from roamcast.errors import (
    ConflictError,
    InputError,
    LimitError,
    NotFoundError,
    RateError,
    StoreError,
)
from roamcast.identity.credentials import check_credential
from roamcast.identity.pseudonyms import HANDLE, OPAQUE_LENGTH, open_few, seal
from roamcast.identity.rules import Hours
from roamcast.identity.trusted import epochs as epochs_module
from roamcast.identity.trusted.epochs import DestroyEpoch, RotateKeys, ShareEpoch
from roamcast.identity.trusted.issuing import DrawPool, VidPool
from roamcast.identity.trusted.mailboxes import (
    OVERHEAD_BYTES,
    AckMail,
    CloseInbox,
    Deposit,
    Deposited,
    InboxReplaced,
    MailPushed,
    OpenInbox,
    SealedParcel,
)
from roamcast.identity.trusted.reach import (
    NAME_LENGTH_MAX,
    NAMES_MAX,
    PAST_S_MAX,
    QUIET_MAX,
    Reach,
    quiet_until,
)
from roamcast.identity.trusted.register import EnrolPerson, ErasePerson, ErasureDone, SetReach
from roamcast.identity.trusted.settings import PARCELS_MAX, SEALED_BYTES_MAX
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.machine import Effect
from roamcast.model.records import TrustStep
from tests.identity.trusted.scene import KEYS, NODE, SETTINGS, Scene

_MINUTE = 60_000_000


def refusal(effects: Sequence[Effect]) -> Exception:
    (failed,) = effects
    assert isinstance(failed, Failed), failed
    return failed.error


def counts(effects: Sequence[Effect]) -> tuple[int, int, int, int]:
    found = [one for one in effects if isinstance(one, Deposited)]
    (one,) = found
    return one.reached, one.unreachable, one.refused, one.full


def casts(scene: Scene, subject: str) -> list[str]:
    return [mail.cast for mail in scene.node.mails_of(subject)]


def pushed(effects: Sequence[Effect]) -> list[tuple[str, str]]:
    return [(one.inbox, one.mail.cast) for one in effects if isinstance(one, MailPushed)]


# --- one mail per person and cast ---------------------------------------------------------------


def test_ten_vids_of_a_person_get_one_mail() -> None:
    scene = Scene()
    vids = [*scene.vids("ada"), *scene.vids("ada"), *scene.vids("bob")]
    assert len(set(vids)) == 12
    scene.deposit("c1", *vids)
    scene.deposit("c1", *reversed(vids))
    assert casts(scene, "ada") == casts(scene, "bob") == ["c1"]
    assert scene.node.fates == {"reached": 2, "repeated": 22}
    scene.restart()
    scene.deposit("c1", *vids)
    assert casts(scene, "ada") == ["c1"]


def test_a_fetched_mail_does_not_come_again_by_another_vid_or_after_a_restart() -> None:
    scene = Scene()
    first, second, *_ = scene.vids("ada")
    scene.deposit("c1", first)
    assert scene.give(AckMail, "ada", "c1") == [Acknowledged(3 + 1)]
    scene.restart()
    assert counts(scene.deposit("c1", second)) == (1, 0, 0, 0)
    assert casts(scene, "ada") == []


def test_nothing_is_acknowledged_or_pushed_before_it_is_on_disk() -> None:
    scene = Scene()
    (vid, *_) = scene.vids("ada")
    scene.give(OpenInbox, "ada", "phone")
    scene.held = True
    assert scene.deposit("c1", vid) == []
    assert scene.node.mails_of("ada") == []
    (write,) = scene.waiting
    assert len(write.writes) == 2  # the mail and what was seen are one transaction
    answers = scene.release()
    assert pushed(answers) == [("phone", "c1")]
    assert counts(answers) == (1, 0, 0, 0)


def test_a_repeat_of_what_is_still_on_its_way_to_the_disk_waits() -> None:
    scene = Scene()
    first, second, *_ = scene.vids("ada")
    scene.held = True
    scene.deposit("c1", first)
    assert isinstance(refusal(scene.deposit("c1", second)), RateError)
    scene.release()
    assert counts(scene.deposit("c1", second)) == (1, 0, 0, 0)
    assert casts(scene, "ada") == ["c1"]


def test_a_disk_that_refuses_changes_nothing_and_the_same_works_later() -> None:
    scene = Scene()
    (vid, *_) = scene.vids("ada")
    scene.broken = True
    before = scene.node.occupancy()
    assert isinstance(refusal(scene.deposit("c1", vid)), StoreError)
    assert scene.node.occupancy() == before
    scene.broken = False
    assert counts(scene.deposit("c1", vid)) == (1, 0, 0, 0)
    scene.broken = True
    assert isinstance(refusal(scene.give(AckMail, "ada", "c1")), StoreError)
    assert casts(scene, "ada") == ["c1"]


def test_the_first_key_is_written_again_when_the_disk_is_well() -> None:
    scene = Scene()
    scene.disk.clear()
    scene.broken = True
    scene.restart()
    assert not scene.node.ready
    scene.give(EnrolPerson, "ada")
    scene.broken = False
    scene.give(EnrolPerson, "ada")
    pool = (KEYS,) * SETTINGS.pool_size
    assert isinstance(refusal(scene.give(DrawPool, "ada", pool)), StoreError)
    scene.wait(2_000_000)
    assert scene.node.ready
    assert isinstance(scene.give(DrawPool, "ada", pool)[0], VidPool)


def test_the_answer_to_a_deposit_is_rounded_and_names_no_vid() -> None:
    scene = Scene(replace(SETTINGS, round_to=5))
    vids = [vid for name in "abcdefg" for vid in scene.vids(name)]
    (answer,) = scene.deposit("c1", *vids)
    assert answer == Deposited(
        8 + 7, 25, 0, 0, 0
    )  # 28 vids; that they are seven people's, it does not say
    (one,) = scene.deposit("c2", vids[0])
    assert isinstance(one, Deposited)
    assert one.reached == 0  # one and none look alike


# --- delivery -----------------------------------------------------------------------------------


def test_mail_is_pushed_to_who_is_connected_and_kept_until_acknowledged() -> None:
    scene = Scene(replace(SETTINGS, window=2))
    (vid, *_) = scene.vids("ada")
    for number in range(3):
        scene.deposit(f"c{number}", vid)
        scene.now += 1
    assert pushed(scene.give(OpenInbox, "ada", "phone")) == [("phone", "c0"), ("phone", "c1")]
    assert pushed(scene.give(AckMail, "ada", "c0")) == [("phone", "c2")]
    scene.tell(CloseInbox("phone"))
    assert pushed(scene.deposit("c3", vid)) == []
    # What was not acknowledged comes again, in the order of arrival.
    assert pushed(scene.give(OpenInbox, "ada", "desk")) == [("desk", "c1"), ("desk", "c2")]
    newer = scene.give(OpenInbox, "ada", "phone")
    assert newer[0] == InboxReplaced("desk")
    scene.restart()
    assert casts(scene, "ada") == ["c1", "c2", "c3"]


def test_a_mailbox_lasts_while_mail_is_on_its_way_to_it() -> None:
    scene = Scene()
    (vid, *_) = scene.vids("ada")
    scene.give(OpenInbox, "ada", "phone")
    scene.held = True
    scene.deposit("c1", vid)
    scene.tell(CloseInbox("phone"))
    assert counts(scene.release()) == (1, 0, 0, 0)
    assert casts(scene, "ada") == ["c1"]


def test_a_repeated_acknowledgement_deletes_nothing_else() -> None:
    scene = Scene()
    (vid, *_) = scene.vids("ada")
    scene.deposit("c1", vid)
    scene.give(AckMail, "ada", "c1")
    scene.deposit("c2", vid)
    for _ in range(2):
        assert isinstance(scene.give(AckMail, "ada", "c1")[-1], Acknowledged)
    scene.restart()
    scene.give(AckMail, "ada", "c1")
    assert casts(scene, "ada") == ["c2"]


def test_nobody_acknowledges_the_mail_of_another() -> None:
    scene = Scene()
    scene.deposit("c1", *scene.vids("ada"))
    scene.vids("bob")
    scene.give(AckMail, "bob", "c1")
    assert casts(scene, "ada") == ["c1"]
    assert isinstance(refusal(scene.give(AckMail, "eve", "c1")), NotFoundError)


# --- reach rules --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reach", "sender", "kind", "back_s", "allowed"),
    [
        (Reach(), "ann", "text", 10**9, True),
        (Reach(senders=("ann",)), "ann", "text", 0, True),
        (Reach(senders=("ann",)), "eve", "text", 0, False),
        (Reach(stopped=("ann",)), "ann", "text", 0, False),
        (Reach(senders=("ann",), stopped=("ann",)), "ann", "text", 0, False),
        (Reach(kinds=("alarm",)), "ann", "text", 0, False),
        (Reach(kinds=("alarm",)), "ann", "alarm", 0, True),
        (Reach(past_s=3_600), "ann", "text", 3_600, True),
        (Reach(past_s=3_600), "ann", "text", 3_601, False),
        (Reach(past_s=0), "ann", "text", 0, True),
        (Reach(senders=()), "ann", "text", 0, False),
    ],
)
def test_reach_rules_decide_who_may_write(
    reach: Reach, sender: str, kind: str, back_s: int, allowed: bool
) -> None:
    scene = Scene()
    (vid, *_) = scene.vids("ada")
    scene.give(SetReach, "ada", reach)
    scene.restart()
    answer = scene.deposit("c1", vid, sender=sender, kind=kind, back_s=back_s)
    assert counts(answer) == ((1, 0, 0, 0) if allowed else (0, 0, 1, 0))
    assert bool(casts(scene, "ada")) is allowed


def test_quiet_hours_keep_mail_and_push_it_when_they_end() -> None:
    scene = Scene()
    (vid, *_) = scene.vids("ada")
    night = (Hours(start_min=1_380), Hours(end_min=60))
    scene.give(SetReach, "ada", Reach(quiet=night))
    scene.now = 1_439 * _MINUTE
    scene.give(OpenInbox, "ada", "phone")
    assert pushed(scene.deposit("c1", vid, lasts_us=10**12)) == []
    assert casts(scene, "ada") == ["c1"]
    assert pushed(scene.wait(60 * _MINUTE)) == []
    assert pushed(scene.wait(_MINUTE)) == [("phone", "c1")]


def test_urgent_mail_comes_in_quiet_hours_and_no_rule_gives_way_to_it() -> None:
    scene = Scene()
    (vid, *_) = scene.vids("ada")
    scene.give(SetReach, "ada", Reach(quiet=(Hours(),), stopped=("spam",)))
    scene.give(OpenInbox, "ada", "phone")
    assert pushed(scene.deposit("c1", vid)) == []
    assert pushed(scene.deposit("c2", vid, urgent=True)) == [("phone", "c2")]
    assert pushed(scene.deposit("c3", vid, urgent=True, sender="spam")) == []
    assert casts(scene, "ada") == ["c1", "c2"]


def test_rules_that_are_changed_end_quiet_hours_at_once() -> None:
    scene = Scene()
    (vid, *_) = scene.vids("ada")
    scene.give(SetReach, "ada", Reach(quiet=(Hours(),)))
    scene.give(OpenInbox, "ada", "phone")
    assert pushed(scene.deposit("c1", vid)) == []
    assert pushed(scene.give(SetReach, "ada", Reach())) == [("phone", "c1")]


@pytest.mark.parametrize(
    "reach",
    [
        Reach(senders=("a",) * 1_001),
        Reach(kinds=("",)),
        Reach(stopped=("a" * 129,)),
        Reach(past_s=-1),
        Reach(quiet=(Hours(),) * 17),
        Reach(quiet=(Hours(start_min=10, end_min=5),)),
    ],
)
def test_reach_rules_beyond_a_bound_change_nothing(reach: Reach) -> None:
    scene = Scene()
    scene.vids("ada")
    assert isinstance(refusal(scene.give(SetReach, "ada", reach)), InputError)
    assert scene.node.reach_of("ada") == Reach()


def test_who_never_came_has_rules_that_forbid_nothing() -> None:
    assert Scene().node.reach_of("ada") == Reach()


def test_quiet_hours_that_touch_at_midnight_end_with_the_last() -> None:
    night = Reach(quiet=(Hours(start_min=1_380), Hours(end_min=60)))
    assert quiet_until(night, 1_379 * _MINUTE) is None
    assert quiet_until(night, 1_380 * _MINUTE) == 1_500 * _MINUTE
    assert quiet_until(night, 1_440 * _MINUTE) == 1_500 * _MINUTE


def test_reach_rules_at_their_bounds_are_taken() -> None:
    scene = Scene()
    scene.vids("ada")
    most = Reach(
        senders=("a" * NAME_LENGTH_MAX,) * NAMES_MAX,
        past_s=PAST_S_MAX,
        quiet=(Hours(start_min=0, end_min=24 * 60),) * QUIET_MAX,
    )
    for reach in (most, Reach(past_s=0)):
        scene.give(SetReach, "ada", reach)
        assert scene.node.reach_of("ada") == reach


def test_two_changes_for_a_person_are_not_on_their_way_at_once() -> None:
    """The second was made without the first in sight: an enrolment would draw another handle."""
    scene = Scene()
    scene.held = True
    scene.give(EnrolPerson, "ada")
    assert isinstance(refusal(scene.give(EnrolPerson, "ada")), RateError)
    scene.give(EnrolPerson, "bob")
    scene.release()
    scene.held = True
    scene.give(SetReach, "ada", Reach(kinds=("text",)))
    assert isinstance(refusal(scene.give(SetReach, "ada", Reach())), RateError)
    assert isinstance(refusal(scene.give(ErasePerson, "ada")), RateError)
    scene.release()
    assert scene.node.reach_of("ada") == Reach(kinds=("text",))


# --- erasing, rotating, destroying --------------------------------------------------------------


def test_an_erased_person_leaves_nothing_on_disk() -> None:
    scene = Scene()
    vids = scene.vids("ada")
    scene.deposit("c1", *vids)
    scene.deposit("c2", *vids)
    scene.give(AckMail, "ada", "c2")
    scene.give(OpenInbox, "ada", "phone")
    handle = scene.node.handle_of("ada").hex()
    ended, erased = scene.give(ErasePerson, "ada")
    assert ended == InboxReplaced("phone")
    assert isinstance(erased, ErasureDone)
    assert erased.deleted == 3  # a mail, and two casts seen
    # The bare handle is left, for archives; it names nobody, and goes as well in the end.
    assert [key for key in scene.disk if not key.startswith("epoch/")] == [f"gone/{handle}"]
    assert scene.node.departed([*vids, "A" * 24 + "@trust.example"]) == vids
    scene.restart()
    assert scene.node.departed(vids) == vids
    scene.broken = True
    scene.wait(scene.settings.departed_us)
    scene.broken = False
    scene.wait(scene.settings.retry_us)
    assert scene.node.departed(vids) == []
    assert [key for key in scene.disk if not key.startswith("epoch/")] == []
    assert counts(scene.deposit("c3", vids[0])) == (0, 1, 0, 0)
    assert scene.node.resolve(vids) == [None] * 4
    assert all(held == 0 for name, (held, _) in scene.node.occupancy().items() if "mail" in name)
    assert set(scene.vids("ada")).isdisjoint(vids)
    assert casts(scene, "ada") == []


def test_mail_on_its_way_to_the_disk_goes_with_the_person() -> None:
    scene = Scene()
    (vid, *_) = scene.vids("ada")
    scene.held = True
    scene.deposit("c1", vid)
    scene.give(ErasePerson, "ada")
    assert isinstance(refusal(scene.deposit("c2", vid)), RateError)
    scene.release()
    assert [key for key in scene.disk if not key.startswith(("epoch/", "gone/"))] == []
    scene.restart()
    assert counts(scene.deposit("c2", vid)) == (0, 1, 0, 0)


def test_a_person_whom_the_disk_could_not_erase_gets_mail() -> None:
    scene = Scene()
    (vid, *_) = scene.vids("ada")
    scene.broken = True
    assert isinstance(refusal(scene.give(ErasePerson, "ada")), StoreError)
    scene.broken = False
    assert counts(scene.deposit("c1", vid)) == (1, 0, 0, 0)


def test_a_destroyed_epoch_resolves_to_nothing_for_ever() -> None:
    scene = Scene()
    old = scene.vids("ada")
    assert isinstance(refusal(scene.give(DestroyEpoch, 1)), ConflictError)
    scene.give(RotateKeys)
    new = scene.vids("ada")
    assert scene.node.epochs == (1, 2)
    assert None not in scene.node.resolve([*old, *new])
    scene.give(DestroyEpoch, 1)
    for _ in range(2):
        assert scene.node.epochs == (2,)
        assert scene.node.resolve(old) == [None] * 4
        assert counts(scene.deposit("c1", *old)) == (0, 4, 0, 0)
        scene.restart()
    assert not any(key.startswith("epoch/00001") for key in scene.disk)
    assert counts(scene.deposit("c1", *old, *new)) == (4, 4, 0, 0)
    assert isinstance(refusal(scene.give(DestroyEpoch, 1)), InputError)


def test_a_new_key_seals_nothing_before_it_is_on_disk() -> None:
    scene = Scene()
    scene.held = True
    scene.give(RotateKeys)
    assert isinstance(refusal(scene.give(RotateKeys)), ConflictError)
    assert scene.node.epochs == (1,)
    scene.release()
    assert scene.node.epochs == (1, 2)
    scene.broken = True
    assert isinstance(refusal(scene.give(DestroyEpoch, 1)), StoreError)
    assert scene.node.epochs == (1, 2)


# --- pools --------------------------------------------------------------------------------------


def test_a_pool_is_fixed_in_size_and_its_credentials_say_nothing_in_common() -> None:
    scene = Scene()
    scene.give(EnrolPerson, "ada")
    for size in (0, 3, 5):
        assert isinstance(refusal(scene.give(DrawPool, "ada", (KEYS,) * size)), InputError)
    assert isinstance(refusal(scene.give(DrawPool, "bob", (KEYS,) * 4)), NotFoundError)
    (pool,) = scene.give(DrawPool, "ada", (KEYS,) * 4)
    assert isinstance(pool, VidPool)
    scene.now += 7_000_000
    scene.give(EnrolPerson, "bob")
    (other,) = scene.give(DrawPool, "bob", (KEYS,) * 4)
    assert isinstance(other, VidPool)
    read = [
        check_credential(text, {NODE: scene.node.public_key}, scene.now, 0)
        for text in (*pool.credentials, *other.credentials)
    ]
    assert len({one.expires_us for one in read}) == 1  # of everybody's that day
    opaque = [one.vid[:OPAQUE_LENGTH] for one in read]
    assert len({text[3:6] for text in opaque}) == len(opaque)  # after the epoch nothing is shared


def test_pools_are_limited_by_person_and_day() -> None:
    scene = Scene(replace(SETTINGS, pools_max=2))
    scene.vids("ada")
    scene.vids("ada")
    error = refusal(scene.give(DrawPool, "ada", (KEYS,) * 4))
    assert isinstance(error, RateError)
    scene.vids("bob")
    scene.now += error.retry_us
    scene.vids("ada")


# --- bounds -------------------------------------------------------------------------------------


def test_a_full_mailbox_refuses_by_name_and_loses_nothing() -> None:
    scene = Scene(replace(SETTINGS, mails_max=2))
    vids = scene.vids("ada")
    for cast in ("c1", "c2"):
        assert counts(scene.deposit(cast, *vids)) == (4, 0, 0, 0)
    assert counts(scene.deposit("c3", vids[0])) == (0, 0, 0, 1)
    assert casts(scene, "ada") == ["c1", "c2"]
    assert scene.node.occupancy()["mailboxes: mails of one"] == (2, 2)
    scene.give(AckMail, "ada", "c1")
    assert counts(scene.deposit("c3", vids[0])) == (1, 0, 0, 0)


def test_bytes_of_one_mailbox_and_of_all_are_bounded() -> None:
    size = OVERHEAD_BYTES + 6
    scene = Scene(replace(SETTINGS, mail_bytes_max=size, all_bytes_max=2 * size))
    ada, bob, eve = (scene.vids(name)[0] for name in ("ada", "bob", "eve"))
    assert counts(scene.deposit("big", ada, sealed=b"1234567")) == (0, 0, 0, 1)
    assert counts(scene.deposit("c1", ada, bob, eve)) == (2, 0, 0, 1)
    assert counts(scene.deposit("c2", ada)) == (0, 0, 0, 1)
    assert scene.node.occupancy()["mailboxes: bytes"] == (2 * size, 2 * size)


def test_what_was_seen_is_bounded_and_never_forgotten_too_early() -> None:
    scene = Scene(replace(SETTINGS, seen_max=1, grace_us=5_000_000, mail_us=1_000_000))
    (vid, *_) = scene.vids("ada")
    scene.deposit("c1", vid)
    scene.give(AckMail, "ada", "c1")
    assert counts(scene.deposit("c2", vid)) == (0, 0, 0, 1)
    expires = scene.now + 10_000_000
    scene.wait(14_999_999)
    late = scene.give(Deposit, "c1", "ann", "text", expires, 0, (SealedParcel(vid, b""),))
    assert isinstance(refusal(late), InputError)
    assert counts(scene.deposit("c2", vid)) == (0, 0, 0, 1)
    scene.wait(1)
    assert counts(scene.deposit("c2", vid)) == (1, 0, 0, 0)


def test_a_short_cast_counts_as_seen_for_as_long_as_some_node_keeps_its_mail() -> None:
    scene = Scene(replace(SETTINGS, seen_max=1, grace_us=5_000_000, mail_us=20_000_000))
    (vid, *_) = scene.vids("ada")
    scene.deposit("c1", vid)
    scene.wait(24_999_999)
    assert counts(scene.deposit("c2", vid)) == (0, 0, 0, 1)
    scene.wait(1)
    assert counts(scene.deposit("c2", vid)) == (1, 0, 0, 0)


def test_what_is_on_its_way_to_the_disk_counts_as_seen() -> None:
    scene = Scene(replace(SETTINGS, seen_max=1))
    (vid, *_) = scene.vids("ada")
    scene.held = True
    scene.deposit("c1", vid)
    later = scene.deposit("c2", vid)
    answers = [*later, *scene.release()]
    assert casts(scene, "ada") == ["c1"]
    assert sorted(counts([one]) for one in answers) == [(0, 0, 0, 1), (1, 0, 0, 0)]


def test_mail_that_nobody_fetches_is_deleted_by_its_age() -> None:
    scene = Scene(replace(SETTINGS, mail_us=1_000_000))
    (vid, *_) = scene.vids("ada")
    scene.deposit("c1", vid)
    scene.broken = True
    scene.wait(1_000_000)
    assert casts(scene, "ada") == ["c1"]
    scene.broken = False
    scene.wait(1_000_000)
    assert casts(scene, "ada") == []
    assert not any(key.startswith("mail/mail/") for key in scene.disk)
    assert scene.node.occupancy()["mailboxes: bytes"][0] == 0


def test_people_deposits_and_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(replace(SETTINGS, people_max=1, deposits_max=1))
    (vid, *_) = scene.vids("ada")
    assert isinstance(refusal(scene.give(EnrolPerson, "bob")), LimitError)
    scene.held = True
    scene.deposit("c1", vid)
    assert isinstance(refusal(scene.deposit("c2", vid)), RateError)
    scene.release()
    monkeypatch.setattr(epochs_module, "EPOCHS_MAX", 1)
    assert isinstance(refusal(scene.give(RotateKeys)), ConflictError)


def test_deposits_beyond_a_bound_change_nothing() -> None:
    scene = Scene()
    (vid, *_) = scene.vids("ada")
    bad = (
        ("", 1, (SealedParcel(vid, b""),)),
        ("c" * 129, 1, (SealedParcel(vid, b""),)),
        ("c", 0, (SealedParcel(vid, b""),)),
        ("c", 1 << 60, (SealedParcel(vid, b""),)),
        ("c", 1, (SealedParcel(vid, b""),) * (PARCELS_MAX + 1)),
        ("c", 1, (SealedParcel(vid, bytes(SEALED_BYTES_MAX + 1)),)),
    )
    for cast, lasts_us, parcels in bad:
        answer = scene.give(Deposit, cast, "ann", "text", scene.now + lasts_us, 0, parcels)
        assert isinstance(refusal(answer), InputError)
    named = scene.give(Deposit, "c", "a" * 129, "text", scene.now + 1, 0, ())
    assert isinstance(refusal(named), LimitError)
    assert casts(scene, "ada") == []
    largest = (SealedParcel(vid, bytes(SEALED_BYTES_MAX)),) * PARCELS_MAX
    assert counts(scene.give(Deposit, "c" * 128, "a", "t", scene.now + 1, 0, largest))[0] == 256


def test_vids_of_others_and_nonsense_count_as_unreachable() -> None:
    scene, other = Scene(), Scene(name="other.example")
    forged = "A" * OPAQUE_LENGTH + "@" + NODE
    foreign = other.vids("ada")[0]
    moved = foreign.partition("@")[0] + "@" + NODE
    answer = scene.deposit("c1", forged, foreign, moved, "nonsense", "")
    assert counts(answer) == (0, 5, 0, 0)


def test_a_user_agent_has_an_epoch_of_its_own_whose_number_is_never_used_again() -> None:
    scene = Scene()
    own = scene.vids("ada")
    scene.give(ShareEpoch, "ingest")
    shared = scene.node.shared_keys("ingest")
    assert shared is not None
    assert (scene.node.epochs, scene.node.sealing, shared.current) == ((1, 2), 1, 2)
    handles = pa.array([scene.node.handle_of("ada")], HANDLE)
    sensed = seal(handles, shared, random.Random(1).randbytes).to_pylist()
    assert scene.node.resolve([*sensed, own[0]]) == [scene.node.handle_of("ada")] * 2
    assert open_few(own, shared) == [None] * len(own), "it opens nobody else's vids"
    scene.restart()
    scene.give(ShareEpoch, "ingest")
    assert scene.node.shared_keys("ingest") == shared
    assert (scene.node.epochs, scene.node.sealing) == ((1, 2), 1)
    scene.give(DestroyEpoch, 2)
    assert scene.node.shared_keys("ingest") is None
    assert scene.node.resolve(sensed) == [None]
    assert shared.key not in b"".join(scene.disk.values())
    scene.restart()
    scene.give(RotateKeys)
    assert (scene.node.epochs, scene.node.sealing) == ((1, 3), 3)
    scene.restart()
    assert scene.node.sealing == 3


def test_what_a_write_of_mail_does_when_it_is_on_disk() -> None:
    scene = Scene(replace(SETTINGS, deposits_max=1, window=1))
    vid, other = scene.vids("ada")[0], scene.vids("bob")[0]
    scene.records.clear()
    # Answered deposits make room for the next; ada is not connected, bob is.
    scene.give(OpenInbox, "bob", "i1")
    for number in range(3):
        effects = scene.deposit(f"c{number}", vid, other)
        assert isinstance(effects[-1], Deposited), effects
        assert effects[-1].reached == 2
    assert [one.cast for one in scene.node.mails_of("ada")] == ["c0", "c1", "c2"]
    # The window is full: the next is pushed when the first is deleted, once.
    pushed = scene.give(AckMail, "bob", "c0")
    assert [one.mail.cast for one in pushed if isinstance(one, MailPushed)] == ["c1"]
    assert sum(isinstance(one, Acknowledged) for one in pushed) == 1
    told = [(one.step, one.number, one.reason) for one in scene.records
            if isinstance(one, TrustStep) and one.step in ("deposit", "deleted")]  # fmt: skip
    assert told == [("deposit", 2, "reached")] * 3 + [("deleted", 1, "fetched")]
    scene.records.clear()
    answers = scene.wait(scene.settings.mail_us)
    assert not [one for one in answers if isinstance(one, Acknowledged)], "nobody asked"
    gone = [one for one in scene.records if isinstance(one, TrustStep) and one.step == "deleted"]
    assert {one.reason for one in gone} == {"too old"}
    assert scene.node.mails_of("ada") == scene.node.mails_of("bob") == []


def test_the_mail_of_a_person_erased_meanwhile_is_not_kept_and_the_others_is() -> None:
    scene = Scene(replace(SETTINGS, deposits_max=1))
    vid, other = scene.vids("ada")[0], scene.vids("bob")[0]
    scene.held = True
    scene.deposit("c1", vid, other)
    scene.give(ErasePerson, "ada")
    mail, erasure = scene.waiting
    scene.held, scene.waiting = False, []
    scene._perform([erasure])  # the disk may answer the later write first
    scene._perform([mail])
    assert [one.cast for one in scene.node.mails_of("bob")] == ["c1"]
    assert scene.node.mails_of("ada") == []
    assert scene.node.held()["mailboxes"] == 1
