"""The inbox: each cast once, whoever delivers it how often, and confirmed once it is on disk."""

from collections.abc import Sequence

from roamcast.identity.trusted.inbox import (
    ConfirmMail,
    MailArrived,
    MailTaken,
    PersonInbox,
    RemoveMail,
)
from roamcast.identity.trusted.mailboxes import Mail
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.machine import Effect, Store, Stored, StoreFailed

UNTIL = 1_000


def mail(cast: str, arrived: int = 0) -> Mail:
    return Mail(cast, "vid@t", "ann", "text", b"sealed", arrived, UNTIL)


class Scene:
    def __init__(self, mails_max: int = 10, seen_max: int = 10) -> None:
        self.disk: dict[str, bytes] = {}
        self.bounds = (mails_max, seen_max)
        self.inbox = PersonInbox(*self.bounds)

    def restart(self) -> None:
        self.inbox = PersonInbox(*self.bounds)
        assert self.inbox.restore(dict(sorted(self.disk.items())), 0) == ()

    def written(self, effects: Sequence[Effect], now: int = 0) -> list[Effect]:
        (store,) = effects
        assert isinstance(store, Store)
        for key, value in store.writes:
            if value is None:
                self.disk.pop(key, None)
            else:
                self.disk[key] = value
        return list(self.inbox.receive(Stored(store.token), now))


def test_two_trusted_nodes_deliver_a_cast_once_and_both_are_told() -> None:
    scene = Scene()
    writing = scene.inbox.receive(MailArrived("a", mail("c1")), 0)
    assert scene.inbox.receive(MailArrived("b", mail("c1")), 0) == []
    assert scene.written(writing) == [
        MailTaken(mail("c1")),
        ConfirmMail("a", "c1"),
        ConfirmMail("b", "c1"),
    ]
    scene.restart()
    assert scene.inbox.receive(MailArrived("b", mail("c1")), 0) == [ConfirmMail("b", "c1")]
    assert list(scene.inbox.mails) == ["c1"]


def test_a_removed_mail_does_not_come_back_until_no_copy_can() -> None:
    scene = Scene()
    scene.written(scene.inbox.receive(MailArrived("a", mail("c1")), 0))
    assert scene.written(scene.inbox.receive(RemoveMail(1, "c1"), 0)) == [Acknowledged(1)]
    assert scene.inbox.receive(RemoveMail(2, "c1"), 0) == [Acknowledged(2)]
    scene.restart()
    assert scene.inbox.mails == {}
    assert scene.inbox.receive(MailArrived("a", mail("c1")), 0) == [ConfirmMail("a", "c1")]
    assert scene.inbox.deadline() == UNTIL
    scene.written(scene.inbox.advance(UNTIL), UNTIL)
    assert scene.disk == {}
    assert scene.inbox.occupancy()["seen"] == (0, 10)


def test_a_disk_that_refuses_takes_nothing_and_confirms_nothing() -> None:
    inbox = PersonInbox()
    (store,) = inbox.receive(MailArrived("a", mail("c1")), 0)
    assert isinstance(store, Store)
    assert inbox.receive(StoreFailed(store.token, "full"), 0) == []
    assert inbox.mails == {}
    (again,) = inbox.receive(MailArrived("a", mail("c1")), 0)
    assert isinstance(again, Store)
    inbox.receive(Stored(again.token), 0)
    (gone,) = inbox.receive(RemoveMail(1, "c1"), 0)
    assert isinstance(gone, Store)
    (failed,) = inbox.receive(StoreFailed(gone.token, "full"), 0)
    assert isinstance(failed, Failed)
    (forget,) = inbox.advance(UNTIL)
    assert isinstance(forget, Store)
    assert inbox.receive(StoreFailed(forget.token, "full"), UNTIL) == []
    assert inbox.deadline() is not None


def test_a_full_inbox_leaves_mail_with_the_trusted_node() -> None:
    for bounds in ((1, 9), (9, 1)):
        scene = Scene(*bounds)
        scene.written(scene.inbox.receive(MailArrived("a", mail("c1")), 0))
        assert scene.inbox.receive(MailArrived("a", mail("c2")), 0) == []
        assert all(held <= most for held, most in scene.inbox.occupancy().values())


def test_mail_is_in_the_order_of_arrival_after_a_restart() -> None:
    scene = Scene()
    for number, cast in enumerate(("z", "a", "m")):
        scene.written(scene.inbox.receive(MailArrived("a", mail(cast, number)), 0))
    scene.restart()
    assert list(scene.inbox.mails) == ["z", "a", "m"]
