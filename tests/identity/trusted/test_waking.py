"""Wake-ups: a push when mail waits unseen, one until the person came, and none of the erased."""

import pytest

from roamcast.identity.rules import Hours
from roamcast.identity.trusted.mailboxes import AckMail, CloseInbox, OpenInbox
from roamcast.identity.trusted.reach import Reach
from roamcast.identity.trusted.register import ErasePerson, SetReach
from roamcast.identity.trusted.settings import TrustSettings
from roamcast.identity.trusted.waking import (
    ENDPOINT_LENGTH_MAX,
    PushAnswered,
    PushWakeUp,
    RemoveWakeUp,
    SetWakeUp,
)
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.machine import Effect
from roamcast.model.records import TrustStep
from tests.identity.trusted.scene import SETTINGS, Scene

PHONE, LAPTOP = "https://push.example/phone", "https://push.example/laptop"
HOUR_US = 3_600_000_000


def pushes(effects: list[Effect]) -> list[PushWakeUp]:
    return [one for one in effects if isinstance(one, PushWakeUp)]


def woken(scene: Scene, us: int = SETTINGS.wake_delay_us) -> list[PushWakeUp]:
    """Let time pass and let every push be taken; give them."""
    found = pushes(scene.wait(us))
    for one in found:
        scene.tell(PushAnswered(one.device, 201))
    return found


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.vid = made.vids("ada")[0]  # type: ignore[attr-defined]
    assert scene_set(made, PHONE)
    return made


def scene_set(scene: Scene, endpoint: str, subject: str = "ada") -> bool:
    return isinstance(scene.give(SetWakeUp, subject, endpoint)[0], Acknowledged)


def send(scene: Scene, cast: str, *, urgent: bool = False) -> None:
    scene.deposit(cast, scene.vid, lasts_us=48 * HOUR_US, urgent=urgent)  # type: ignore[attr-defined]


def test_mail_that_waits_wakes_every_device_once_until_the_person_came(scene: Scene) -> None:
    scene_set(scene, LAPTOP)
    assert woken(scene) == []
    send(scene, "c1")
    assert {one.endpoint for one in woken(scene)} == {PHONE, LAPTOP}
    send(scene, "c2")
    assert woken(scene) == [], "they were woken and have not come"
    assert len(woken(scene, scene.settings.wake_again_us)) == 2, "they overslept"
    scene.give(OpenInbox, "ada", "i1")
    send(scene, "c3")
    assert woken(scene, 2 * HOUR_US) == [], "who is connected needs no push"
    scene.tell(CloseInbox("i1"))
    send(scene, "c4")
    assert len(woken(scene)) == 2


def test_an_inbox_that_leaves_no_mail_behind_wakes_nobody_later(scene: Scene) -> None:
    send(scene, "c1")
    assert len(woken(scene)) == 1
    scene.give(OpenInbox, "ada", "i1")
    scene.give(AckMail, "ada", "c1")
    scene.tell(CloseInbox("i1"))
    scene.tell(CloseInbox("never opened"))
    assert scene.node._wakes.deadline() is None
    send(scene, "c2")
    assert len(woken(scene)) == 1


def test_who_loses_the_connection_before_the_mail_is_fetched_is_woken_later(scene: Scene) -> None:
    send(scene, "c1")
    assert len(woken(scene)) == 1
    scene.give(OpenInbox, "ada", "i1")
    scene.tell(CloseInbox("i1"))
    assert woken(scene, SETTINGS.wake_again_us - 1) == [], "it may come back by itself"
    assert len(woken(scene, 1)) == 1
    scene.give(OpenInbox, "ada", "i2")
    scene.tell(CloseInbox("i2"))
    send(scene, "c2")
    assert len(woken(scene)) == 1, "new mail does not wait for that"
    scene.give(OpenInbox, "ada", "i3")
    for cast in ("c1", "c2"):
        scene.give(AckMail, "ada", cast)
    scene.tell(CloseInbox("i3"))
    assert woken(scene, 2 * HOUR_US) == [], "nothing is left"


def test_a_push_leaves_some_time_after_the_mail_and_urgent_mail_at_once(scene: Scene) -> None:
    send(scene, "c1")
    assert scene.node.deadline() is not None
    at = [scene.node._wakes.deadline()]
    assert at[0] is not None
    assert scene.now <= at[0] <= scene.now + scene.settings.wake_delay_us
    send(scene, "c2", urgent=True)
    assert len(woken(scene, 0)) == 1


def test_quiet_hours_hold_pushes_back_and_urgent_mail_is_pushed(scene: Scene) -> None:
    scene.give(SetReach, "ada", Reach(quiet=(Hours(start_min=0, end_min=60),)))
    send(scene, "c1")
    assert woken(scene, HOUR_US // 2) == []
    send(scene, "c2", urgent=True)
    assert len(woken(scene, 0)) == 1
    scene.give(AckMail, "ada", "c2")
    send(scene, "c3")
    assert woken(scene, HOUR_US // 4) == []
    assert len(woken(scene, HOUR_US)) == 1, "the quiet hour is over"


def test_who_fetched_the_mail_meanwhile_is_not_woken(scene: Scene) -> None:
    send(scene, "c1")
    scene.give(AckMail, "ada", "c1")
    assert woken(scene) == []


@pytest.mark.parametrize("status", [404, 410])
def test_a_device_that_is_gone_is_forgotten_on_disk_too(scene: Scene, status: int) -> None:
    send(scene, "c1")
    (push,) = pushes(scene.wait(scene.settings.wake_delay_us))
    scene.tell(PushAnswered(push.device, status))
    assert scene.node.endpoints_of("ada") == []
    assert not [key for key in scene.disk if key.startswith("wake/")]
    scene.restart()
    assert woken(scene) == []


def test_a_push_service_that_fails_is_asked_later_and_forgotten_in_the_end(scene: Scene) -> None:
    send(scene, "c1")
    wait = scene.settings.wake_delay_us
    for failures in range(1, scene.settings.failures_max + 1):
        (push,) = pushes(scene.wait(wait))
        assert scene.node.endpoints_of("ada") == [PHONE]
        scene.tell(PushAnswered(push.device, (0, 429, 500)[failures % 3]))
        wait = scene.settings.push_retry_us << failures - 1
    assert scene.node.endpoints_of("ada") == []


def test_devices_survive_a_restart_and_a_wake_up_that_a_crash_took_is_made_up(
    scene: Scene,
) -> None:
    send(scene, "c1")
    scene.restart()
    assert [one.endpoint for one in woken(scene)] == [PHONE]


def test_erasing_a_person_takes_their_devices_along_also_one_on_its_way(scene: Scene) -> None:
    send(scene, "c1")
    scene.held = True
    scene.give(SetWakeUp, "ada", LAPTOP)
    scene.give(ErasePerson, "ada")
    (refused,) = scene.give(SetWakeUp, "ada", "https://push.example/third")
    assert isinstance(refused, Failed)
    scene.release()
    assert not [key for key in scene.disk if key.startswith("wake/")]
    assert woken(scene) == []


def test_bounds_of_devices_endpoints_and_pushes(scene: Scene) -> None:
    for number in range(scene.settings.devices_max - 1):
        assert scene_set(scene, f"https://push.example/{number}")
    assert not scene_set(scene, "https://push.example/more")
    assert scene_set(scene, PHONE), "it is there already"
    scene.give(RemoveWakeUp, "ada", PHONE)
    assert scene_set(scene, "https://push.example/".ljust(ENDPOINT_LENGTH_MAX, "x"))
    scene.give(RemoveWakeUp, "ada")
    assert scene.node.endpoints_of("ada") == []
    assert not scene_set(scene, "x" * (ENDPOINT_LENGTH_MAX + 1))
    assert not scene_set(scene, "")
    assert not scene_set(scene, PHONE, "nobody")


def test_at_most_so_many_pushes_are_on_their_way_and_the_others_follow() -> None:
    scene = Scene(TrustSettings(pool_size=4, pushes_max=1, wake_delay_us=0))
    own = {name: scene.vids(name)[0] for name in ("ada", "bob")}
    for name, vid in own.items():
        scene_set(scene, f"https://push.example/{name}", name)
        scene.deposit("c-" + name, vid)
    (first,) = pushes(scene.wait(1_000_000))
    assert pushes(scene.wait(5_000_000)) == []
    scene.tell(PushAnswered(first.device, 201))
    (second,) = pushes(scene.wait(1_000_000))
    assert first.endpoint != second.endpoint


def test_a_disk_that_refuses_changes_nothing_and_the_journal_names_nobody(scene: Scene) -> None:
    scene.broken = True
    assert not scene_set(scene, LAPTOP)
    assert scene.node.endpoints_of("ada") == [PHONE]
    scene.broken = False
    assert scene_set(scene, LAPTOP)
    steps = [one for one in scene.records if isinstance(one, TrustStep) and one.step == "wake-up"]
    assert [(one.number, one.reason) for one in steps] == [(1, "set"), (1, "set")]
