"""What the broker workload knows beside the machines: who asked what, and who may see what.

`Truth` is a plain record of requests and answers. It holds what users were promised, and what may
have happened besides: a request that was never answered may or may not have taken effect. `seen` is
the workload's own reading of privacy rules, written apart from `identity/rules.py`. `Program` is a
user's program at the other end of a session.
"""

import enum
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final

import msgspec

from roamcast.broker import (
    Broker,
    SetRules,
    UnpublishFor,
)
from roamcast.channels.client.map_client import MapClient
from roamcast.channels.failover.post import Post
from roamcast.channels.reliable.settings import ChannelSettings
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.sessions.publications import PREFIX, StoredPublication
from roamcast.identity.rule_sets import PREFIX as RULES
from roamcast.identity.rule_sets import OwnedRules
from roamcast.identity.rules import Hours, Rule, Viewer
from roamcast.model.contexts import Context, context_of
from roamcast.model.filters import Filter
from roamcast.model.machine import Entry, Input
from roamcast.sim.checkers import Violation
from roamcast.sim.host import Host, HostState
from roamcast.sim.workload import Sizes
from roamcast.sim.world import World

PUBLIC: Final = "public"
HIDDEN: Final = "hidden"
STAFF: Final = "staff"
WITHOUT: Final = "without "
"""Then a viewer's name: everybody but that one."""

HOURS: Final = "hours"
"""Everybody, in the second minute of the day; clocks that are off begin before or within it."""

FLOOR_SEGMENTS: Final = 3
_MINUTE_US: Final = 60_000_000


def rules_of(kind: str) -> tuple[Rule, ...] | None:
    """Give the rules that a kind stands for; None takes them away."""
    if kind == PUBLIC:
        return None
    if kind == HIDDEN:
        return ()
    if kind == HOURS:
        return (Rule(viewers=("*",), precision="exact", hours=Hours(start_min=1, end_min=2)),)
    if kind == STAFF:
        return (
            Rule(viewers=("staff",), precision="exact"),
            Rule(viewers=("*",), precision="floor", attributes=("n", "type")),
        )
    return (
        Rule(viewers=("*",), precision="exact"),
        Rule(viewers=(kind.removeprefix(WITHOUT),), precision="hidden"),
    )


def seen(kind: str, viewer: Viewer, place: str, now: int) -> tuple[str, bool] | None:
    """Say what a viewer may see of a place, and whether also the secret; None: nothing.

    `now`: what the broker's clock shows.
    """
    if kind == HIDDEN or kind == WITHOUT + viewer.name:
        return None
    if kind == HOURS and now // _MINUTE_US % 1_440 != 1:
        return None
    if kind == STAFF and "staff" not in viewer.groups:
        return "/".join(place.split("/")[:FLOOR_SEGMENTS]), False
    return place, True


class Fate(enum.StrEnum):
    """What became of a request."""

    PENDING = "not answered, and its broker is up"
    DONE = "acknowledged"
    REFUSED = "refused"
    UNSURE = "its broker went away before it answered"


class Attempt(msgspec.Struct):
    """One request about a vid: a state to publish, or a kind of rules."""

    number: int
    asked_us: int
    value: str | None
    """The place to publish, None to unpublish; or the kind of rules to set."""
    broker: int
    """The epoch of the broker that was asked."""
    fate: Fate = Fate.PENDING
    rank: tuple[int, bytes] | None = None
    """What decides between it and others' on disk, once it is acknowledged (decision 0078)."""
    holders: tuple[str, ...] = ()
    """The hosts on whose disks it was when it was acknowledged."""


class ViewHistory:
    """All requests about one thing, in their order; one at a time."""

    def __init__(self, at_first: str | None, *, skewed: bool) -> None:
        self.attempts = [Attempt(0, 0, at_first, 0, Fate.DONE, (0, b""))]
        self._skewed = skewed

    def ask(self, now: int, value: str | None, broker: int) -> Attempt:
        """Note a request."""
        self.attempts.append(Attempt(len(self.attempts), now, value, broker))
        return self.attempts[-1]

    def possible(self) -> list[Attempt]:
        """Give what may be in force: the last acknowledged, and what may have come after it.

        Brokers that were parted agree by the stamps of their clocks. Where those are off, the last
        is the one with the highest rank, and an unanswered request may outrank it.
        """
        found: list[Attempt] = []
        if self._skewed:
            done = [one for one in self.attempts if one.fate is Fate.DONE]
            found.append(max(done, key=lambda one: one.rank or (0, b"")))
            answered = {one.broker: one.number for one in done}
            found += [
                one
                for one in self.attempts
                if one.fate in (Fate.PENDING, Fate.UNSURE)
                and one.number > answered.get(one.broker, 0)
            ]
            return found
        for attempt in reversed(self.attempts):
            if attempt.fate is not Fate.REFUSED:
                found.append(attempt)
            if attempt.fate is Fate.DONE:
                break
        return found


class BrokerTruth:
    """What users asked for and were told, and nothing of any machine."""

    def __init__(self) -> None:
        self.skewed = False
        """Whether clocks are off, so that a later write may have an earlier stamp."""
        self.states: dict[str, ViewHistory] = {}
        self.rules: dict[str, ViewHistory] = {}

    def state(self, vid: str) -> ViewHistory:
        """The publications of a vid."""
        return self.states.setdefault(vid, ViewHistory(None, skewed=self.skewed))

    def rule(self, vid: str) -> ViewHistory:
        """The rules of a vid."""
        return self.rules.setdefault(vid, ViewHistory(PUBLIC, skewed=self.skewed))

    def rule_steps(self, vid: str, epoch: int) -> Hashable:
        """Give how far the rules of a vid have come: every request about them, and its fate.

        None if a broker may apply one kind or another, or one that the clock changes, and for what
        is on a link: that may leave and come back as it was, while a frame waits.
        """
        kinds = self.kinds_at(vid, epoch)
        if len(kinds) != 1 or HOURS in kinds or "#link" in vid:
            return None
        return tuple(one.fate for one in self.rule(vid).attempts)

    def kinds_at(self, vid: str, epoch: int, since: int | None = None) -> set[str]:
        """Give the kinds of rules that a broker may apply now, or may have applied since then.

        Not before the last that this very broker acknowledged: what other brokers acknowledged it
        may not have heard of yet (decision 0079), or may have adopted.
        """
        attempts = self.rule(vid).attempts
        last = 0
        for one in attempts:
            own = one.fate is Fate.DONE and one.broker == epoch
            if own and (since is None or one.asked_us <= since):
                last = one.number
        least = attempts[last].rank or (0, b"")
        return {
            str(one.value)
            for one in attempts
            if one.fate is not Fate.REFUSED
            and (one.number >= last or (self.skewed and _outranks(one, epoch, least)))
        }

    def check_rank(self, history: ViewHistory, attempt: Attempt, host: str) -> None:
        """Check that a write outranks what its host had: else a merge would undo it."""
        assert attempt.rank is not None
        for one in history.attempts[: attempt.number]:
            if host in one.holders and one.rank is not None and one.rank >= attempt.rank:
                detail = f"{host} stored {attempt} after {one}"
                raise Violation("a later write outranks an earlier one", detail)

    def check_shown(
        self,
        who: str,
        viewer: Viewer,
        kinds: Iterable[str],
        vid: str,
        shown: dict[str, Any],
        times: Iterable[int],
    ) -> Attempt:
        """Check one context as it was shown to a viewer; give the attempt that published it.

        `times`: what the broker's clock may have shown when it sent this.
        """
        number = shown.get("n")
        attempts = self.state(vid).attempts
        if not isinstance(number, int) or not 0 < number < len(attempts):
            raise Violation("only what was published", f"{who}: {vid} as {shown}")
        attempt = attempts[number]
        if attempt.fate is Fate.REFUSED or attempt.value is None:
            raise Violation("a refused write never shows", f"{who}: {vid} number {number}")
        allowed = [seen(kind, viewer, attempt.value, now) for kind in kinds for now in times]
        if (shown.get("place"), "secret" in shown) not in allowed:
            raise Violation(
                "nobody sees what rules hide", f"{who} was shown {vid} as {shown}, {allowed}"
            )
        return attempt


def _outranks(attempt: Attempt, epoch: int, rank: tuple[int, bytes]) -> bool:
    """Whether what another broker was asked before may replace what this one acknowledged."""
    return 0 != attempt.broker != epoch and (attempt.rank is None or attempt.rank > rank)


class Program:
    """A user's program with a session: what it wants, and what it has read."""

    def __init__(self, name: str, viewer: Viewer, limit_bytes: int) -> None:
        self.name = name
        self.viewer = viewer
        self.limit_bytes = limit_bytes
        self.wanted: dict[str, str] = {}
        self.host = ""
        self.server: object | None = None
        """The broker that holds the session open, if one does."""
        self.opening = 0
        """The ticket of the request to open the session; frames before its answer are older."""
        self.slow = False
        self.queries: dict[str, int] = {}
        self.views: dict[int, dict[str, dict[str, Any]]] = {}
        self.complete: set[int] = set()
        self.steps: dict[tuple[int, str], Hashable] = {}
        """(query, vid) → how far the vid's rules had come when it was last shown."""

    def connect(self, host: str, server: object) -> None:
        """Begin a session anew."""
        self.disconnect()
        self.host, self.server = host, server

    def disconnect(self) -> None:
        """The session is over."""
        self.server, self.slow, self.opening = None, False, 0
        self.queries, self.views, self.complete, self.steps = {}, {}, set(), {}

    def read(
        self, data: bytes, rule_steps: Callable[[str], Hashable]
    ) -> list[tuple[str, dict[str, Any]]]:
        """Read a frame; give the contexts that it shows.

        A change must show something new, but where rules went to and fro while the frame waited.
        """
        frame = msgspec.json.decode(data)
        query = frame["query"]
        if frame["type"] == "subscribed":
            self.queries[frame["re"]] = query
            view = self.views[query] = {}
            self.complete.discard(query)
            for feature in frame["features"]:
                view[feature["id"]] = feature["properties"]
            return list(view.items())
        if frame["type"] == "current":
            self.complete.add(query)
            return []
        found = []
        view = self.views[query]
        for event in frame["events"]:
            vid, kind = event["subject"], event["type"].rpartition(".")[2]
            if (vid in view) == (kind == "appeared"):
                raise Violation("no duplicate", f"{self.name}: {vid} {kind}, view {sorted(view)}")
            if kind == "left":
                del view[vid]
                continue
            shown, steps = event["data"]["properties"], rule_steps(vid)
            # Under a rule for the present t_r is when the broker looked: it is no news.
            same = kind == "changed" and {**view[vid], "t_r": ""} == {**shown, "t_r": ""}
            if same and steps is not None and self.steps.get((query, vid)) == steps:
                raise Violation("told only what changed", f"{self.name}: {vid} as {shown}")
            view[vid], self.steps[query, vid] = shown, steps
            found.append((vid, shown))
        return found


class PublishingUser:
    """Somebody who publishes by HTTP, one request at a time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.ticket = 0


class AskedChange(msgspec.Struct, frozen=True):
    """A request that was not answered yet."""

    host: str
    epoch: int
    given: Input
    attempt: Attempt | None
    vid: str

    @property
    def key(self) -> str:
        """The key of what it is about, in the store."""
        return (RULES if isinstance(self.given, SetRules) else PREFIX) + self.vid


def made_context(vid: str, place: str, number: int, kind: str, now: int) -> Context:
    """Make the context of an attempt; its number says which one is shown."""
    return Context(vid, place, None, {"n": number, "type": kind, "secret": "s"}, now)


def expected(
    truth: dict[str, tuple[str, str, str]], viewer: Viewer, wanted: Filter, now: int
) -> dict[str, str]:
    """Give what a viewer must be shown of a filter: only what it may see decides the match."""
    right = {}
    for vid, (place, kind, rule) in truth.items():
        allowed = seen(rule, viewer, place, now)
        if allowed is not None and wanted.matches(Context(vid, allowed[0], None, {"type": kind})):
            right[vid] = allowed[0]
    return right


def stored_context(value: bytes | None) -> Context | None:
    """Read the context of a stored publication."""
    if value is None:
        return None
    body = msgspec.msgpack.decode(value, type=StoredPublication).body
    return context_of(body) if body else None  # without a body the vid is only claimed


def stored_rules(value: bytes | None) -> tuple[Rule, ...] | None:
    """Read the rules of a vid from disk; None if there are none."""
    return None if value is None else msgspec.msgpack.decode(value, type=OwnedRules).rules


def number_of(value: bytes | None) -> int | None:
    """Read the number of the attempt that a stored publication is of."""
    context = stored_context(value)
    number = None if context is None else context.attributes["n"]
    assert number is None or isinstance(number, int)
    return number


def holds(host: Host, asked: AskedChange, truth: BrokerTruth) -> bool:
    """Whether what was asked, or something later, would survive a crash of this host now."""
    attempt = asked.attempt
    assert attempt is not None
    durable = host.disk.durable()
    if truth.skewed and _replaced(durable.get(asked.key), attempt):
        return True
    if isinstance(asked.given, SetRules):
        entry = durable.get(asked.key)
        gone = entry is None or entry.value is None
        later = truth.rule(asked.vid).attempts[attempt.number + 1 :]
        removed = any(one.value == PUBLIC and one.fate is not Fate.REFUSED for one in later)
        return asked.given.rules is None or not gone or removed
    entry = durable.get(asked.key)
    number = number_of(None if entry is None else entry.value)
    if isinstance(asked.given, UnpublishFor):
        return number is None or number > attempt.number
    if number is not None:
        return number >= attempt.number
    later = truth.state(asked.vid).attempts[attempt.number + 1 :]
    return any(one.value is None and one.fate is not Fate.REFUSED for one in later)


def _replaced(entry: Entry | None, attempt: Attempt) -> bool:
    """Whether what is on disk outranks an acknowledged write, by the stamp of another clock."""
    return entry is not None and attempt.rank is not None and entry.rank > attempt.rank


def map_settings(sizes: Sizes) -> MapSettings:
    """Give settings under which a run of seconds sees timeouts and pages."""
    return MapSettings(
        subscribers_min=sizes["subscribers_min"],
        history_max=8,
        channels_max=12,
        page_contexts_max=sizes["page"],
        notes_max=sizes["page"],
        page_bytes_max=400,
        heartbeat_us=300_000,
        client_timeout_us=1_500_000,
        server_here_us=200_000,
        server_timeout_us=1_000_000,
        handover_us=1_000_000,
        restart_spread_us=200_000,
        linger_us=1_500_000,
        removed_max=64,
        tombstones_max=64,
        tombstone_us=1_500_000,
        channel=ChannelSettings(
            sync_interval_us=250_000,
            round_trip_us=25_000,
            retry_us_max=1_000_000,
            receivers_expected=max(1, sizes["clients"]),
            buffer_messages_max=32,
            ahead_messages_max=64,
        ),
    )


def fall(world: World, now: int) -> None:
    """The broker of some host crashes, and its watchdog does not."""
    for host, _ in brokers_of(world):
        post = host.machine
        assert isinstance(post, Post)
        world.kernel.perform(host, post.fall(host.local(now)))
        world.kernel.arm(host)
        return


def brokers_of(world: World) -> list[tuple[Host, Broker]]:
    """Find the brokers that are up."""
    found = []
    for host in world.hosts.values():
        post = host.machine
        if host.state is not HostState.UP or not isinstance(post, Post):
            continue
        if isinstance(post.server, Broker):
            found.append((host, post.server))
    return found


def clients_of(world: World) -> list[tuple[str, MapClient]]:
    """Find the clients on links that are up."""
    found = ((host.name, host.machine) for host in world.hosts.values())
    return [(name, machine) for name, machine in found if isinstance(machine, MapClient)]
