"""Webhooks: whatever fails and whenever the broker falls, a receiver ends with the true view."""

import base64
import hashlib
import hmac
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.broker import (
    CheckWebhook,
    Failed,
    Frame,
    PostWebhook,
    RegisterWebhook,
    RemoveWebhook,
    WebhookAnswered,
    WebhookChecked,
    WebhookFrame,
)
from roamcast.channels.sessions.webhooks import SESSION, WebhookSettings
from roamcast.errors import InputError, LimitError, NotFoundError
from roamcast.identity.rules import Rule, Viewer
from roamcast.model.filters import Filter
from tests.strategies_hub import START, Desk

SECOND = 1_000_000
SECRET = "whsec_" + base64.b64encode(bytes(24)).decode()
HQ = "within(place, 'hq')"
LASTS = 3_600 * SECOND


class HookDesk(Desk):
    """A broker with a receiver of webhooks; `status` is what it answers, None: nothing at all."""

    def __init__(self, **more: Any) -> None:
        self.hook_settings = WebhookSettings(**more)
        self.view: dict[str, Any] = {}
        self.taken: list[tuple[int, PostWebhook]] = []
        self.posts: list[tuple[int, PostWebhook]] = []
        self.status: int | None = 200
        self.refusal = ""
        super().__init__()

    def boot(self) -> None:
        super().boot()
        self.broker._webhooks.settings = self.hook_settings

    def carry(self, effects: Any) -> None:
        for effect in list(effects):
            match effect:
                case Frame(sessions, data) if any(SESSION in one for one in sessions):
                    for one in sessions:
                        self.give(WebhookFrame(one.partition(SESSION)[2], data))
                case CheckWebhook(webhook):
                    self.give(WebhookChecked(webhook, self.refusal))
                case PostWebhook():
                    self.posts.append((self.now, effect))
                    if self.status is not None:
                        self._take(effect, self.status)
                case _:
                    super().carry([effect])

    def _take(self, message: PostWebhook, status: int) -> None:
        if 200 <= status < 300:
            self.taken.append((self.now, message))
            for event in msgspec.json.decode(message.body):
                if event["type"].endswith(".left"):
                    self.view.pop(event["subject"], None)
                else:
                    self.view[event["subject"]] = event["data"]["properties"]["place"]
        self.give(WebhookAnswered(message.webhook, message.number, status))

    def hook(self, name: str = "h", owner: str = "ann", text: str = HQ) -> None:
        end = self.now + LASTS
        url = "https://receiver.example/"
        self.request(RegisterWebhook, name, owner, frozenset(), url, SECRET, text, end)

    def right(self, owner: str = "ann") -> dict[str, str | None]:
        found = self.broker.find(Viewer(owner), Filter.parse(HQ), self.now)
        return {one.vid: one.place for one in found}


def test_the_current_set_comes_first_and_then_every_change_signed() -> None:
    desk = HookDesk()
    desk.keep("a", "hq/1")
    desk.hook()
    desk.keep("b", "hq/2")
    desk.keep("a", "hq/3")
    desk.release("b")
    desk.run(SECOND)
    assert desk.view == desk.right() == {"a": "hq/3"}
    kinds = [
        event["type"].rpartition(".")[2]
        for _, message in desk.taken
        for event in msgspec.json.decode(message.body)
    ]
    assert kinds[0] == "appeared"
    ids = [event["id"] for _, one in desk.taken for event in msgspec.json.decode(one.body)]
    assert len(set(ids)) == len(ids)
    now, message = desk.taken[0]
    headers = message.headers
    said = f"{headers['webhook-id']}.{now // SECOND}.".encode() + message.body
    mac = base64.b64encode(hmac.new(bytes(24), said, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{mac}"
    assert headers["webhook-timestamp"] == str(now // SECOND)


def test_a_message_is_repeated_with_growing_pauses_and_the_same_id_until_it_is_taken() -> None:
    desk = HookDesk()
    desk.hook()
    desk.status = 500
    desk.keep("a", "hq/1")
    desk.keep("a", "hq/2")
    desk.run(60 * SECOND)
    times = [now for now, _ in desk.posts]
    pauses = [later - sooner for sooner, later in pairwise(times)]
    assert len(pauses) >= 4
    for number, pause in enumerate(pauses):
        assert SECOND << number <= pause <= (SECOND << number) * 5 // 4
    assert len({(one.headers["webhook-id"], one.body) for _, one in desk.posts}) == 1
    desk.status = 200
    desk.run(120 * SECOND)
    assert desk.view == {"a": "hq/2"}


@pytest.mark.parametrize("way", ["gone", "given up", "expired", "removed"])
def test_a_webhook_ends_and_leaves_nothing_on_disk(way: str) -> None:
    desk = HookDesk(give_up_us=100 * SECOND)
    desk.keep("a", "hq/1")
    desk.hook()
    desk.run(SECOND)
    assert len(desk.load("webhook/")) == 2
    if way == "removed":
        with pytest.raises(NotFoundError):
            desk.request(RemoveWebhook, "eve", "h")
        desk.request(RemoveWebhook, "ann", "h")
    else:
        desk.status = {"gone": 410, "given up": 503, "expired": 200}[way]
        desk.keep("a", "hq/2", lifetime_us=10**13)
        desk.run(LASTS if way == "expired" else 300 * SECOND)
    assert desk.load("webhook/") == {}
    assert desk.broker.webhooks() == []
    assert not desk.broker._hub.sessions


def test_nobody_gets_messages_who_did_not_consent() -> None:
    desk = HookDesk()
    desk.refusal = "the receiver does not allow it"
    with pytest.raises(InputError, match="does not allow"):
        desk.hook()
    assert not desk.posts
    assert desk.load("webhook/") == {}
    assert desk.broker._webhooks._owned == {}


@pytest.mark.limit("webhooks.per_subject_max", "webhook.webhooks_max")
def test_webhooks_of_one_owner_and_of_all_are_bounded() -> None:
    desk = HookDesk(per_owner_max=2, webhooks_max=3)
    desk.hook("a")
    desk.hook("b")
    with pytest.raises(LimitError, match="one subject"):
        desk.hook("c")
    desk.hook("c", "bob")
    with pytest.raises(LimitError, match="the service"):
        desk.hook("d", "eve")
    desk.request(RemoveWebhook, "ann", "a")
    desk.hook("d", "eve")


@pytest.mark.limit("webhook.waiting_max", "webhook.events_max")
def test_messages_hold_so_many_events_and_what_waits_is_bounded() -> None:
    desk = HookDesk(waiting_max=5, events_max=2)
    desk.hook()
    desk.status = None
    for number in range(12):
        desk.keep(f"p{number}", "hq/1")
    assert desk.broker._webhooks.occupancy()["waiting"][0] <= 5
    (_, first), *_ = desk.posts
    desk.status = 200
    desk._take(first, 200)
    desk.run(10 * SECOND)
    assert max(len(msgspec.json.decode(one.body)) for _, one in desk.posts) == 2
    for number in range(5):
        desk.release(f"p{number}")
    desk.run(10 * SECOND)
    assert desk.view == desk.right()


@pytest.mark.parametrize(("spare", "most"), [(0, 1), (1, 2)])
def test_a_message_that_has_its_bytes_takes_no_further_event(spare: int, most: int) -> None:
    plain = HookDesk()
    plain.keep("p1", "hq/1")
    plain.hook()
    (_, message), *_ = plain.posts
    desk = HookDesk(bytes_max=len(message.body) - len("[]") + spare)
    desk.keep("p1", "hq/1")
    desk.keep("p2", "hq/1")
    desk.hook()
    assert len(msgspec.json.decode(desk.posts[0][1].body)) == most


def test_rules_hold_for_webhooks_also_when_they_name_their_owner() -> None:
    desk = HookDesk()
    desk.keep("a", "hq/1", "bob")
    desk.hook()
    desk.rules("a", (Rule(viewers=("ann",), precision="hidden"),), "bob")
    desk.run(SECOND)
    assert desk.view == desk.right() == {}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abcd"), st.sampled_from(["hq/1", "hq/2", "x"])),
        st.tuples(st.just("release"), st.sampled_from("abcd")),
        st.tuples(st.just("status"), st.sampled_from([200, 500, 0, None])),
        st.tuples(st.just("crash")),
        st.tuples(st.just("run"), st.sampled_from([1, SECOND, 20 * SECOND])),
        st.tuples(st.just("hide"), st.sampled_from("abcd"), st.booleans()),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(1, 4), st.integers(1, 4))
def test_whatever_happens_the_receiver_ends_with_the_true_view(
    steps: list[Any], waiting_max: int, events_max: int
) -> None:
    desk = HookDesk(waiting_max=waiting_max, events_max=events_max)
    desk.hook()
    for kind, *more in steps:
        desk.now += 1
        match kind:
            case "put":
                desk.keep(more[0], more[1], "bob")
            case "release":
                desk.release(more[0], "bob")
            case "status":
                desk.status = more[0]
            case "crash":
                desk.boot()
            case "run":
                desk.run(more[0])
            case "hide":
                rule = Rule(viewers=("ann",), precision="hidden")
                shown = Rule(viewers=("*",), precision="exact", past=True)
                desk.rules(more[0], (rule, shown) if more[1] else (shown,), "bob")
    desk.status = 200
    desk.boot()  # what was on its way is lost with the process
    desk.run(10 * SECOND)
    assert desk.view == desk.right()
    assert not isinstance(desk.keep("z", "hq/1", "bob"), Failed)
    assert desk.view == desk.right()
    assert desk.now > START
