"""What the broker workload knows beside the machines: who asked what, and who may see what.

`Truth` is a plain record of requests and answers. It holds what users were promised, and what may
have happened besides: a request that was never answered may or may not have taken effect. `seen` is
the workload's own reading of privacy rules, written apart from `identity/rules.py`. `Program` is a
user's program at the other end of a session.
"""

import enum
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from roamcast.identity.rules import Rule, Viewer
from roamcast.sim.checkers import Violation

PUBLIC: Final = "public"
HIDDEN: Final = "hidden"
STAFF: Final = "staff"
WITHOUT: Final = "without "
"""Then a viewer's name: everybody but that one."""

FLOOR_SEGMENTS: Final = 3


def rules_of(kind: str) -> tuple[Rule, ...] | None:
    """Give the rules that a kind stands for; None takes them away."""
    if kind == PUBLIC:
        return None
    if kind == HIDDEN:
        return ()
    if kind == STAFF:
        return (
            Rule(viewers=("staff",), precision="exact"),
            Rule(viewers=("*",), precision="floor", attributes=("n", "type")),
        )
    return (
        Rule(viewers=("*",), precision="exact"),
        Rule(viewers=(kind.removeprefix(WITHOUT),), precision="hidden"),
    )


def seen(kind: str, viewer: Viewer, place: str) -> tuple[str, bool] | None:
    """Say what a viewer may see of a place, and whether also the secret; None: nothing."""
    if kind == HIDDEN or kind == WITHOUT + viewer.name:
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


class History:
    """All requests about one thing, in their order; one at a time."""

    def __init__(self, at_first: str | None) -> None:
        self.attempts = [Attempt(0, 0, at_first, 0, Fate.DONE)]

    def ask(self, now: int, value: str | None, broker: int) -> Attempt:
        """Note a request."""
        self.attempts.append(Attempt(len(self.attempts), now, value, broker))
        return self.attempts[-1]

    def possible(self) -> list[Attempt]:
        """Give what may be in force: the last acknowledged, and what may have come after it."""
        found: list[Attempt] = []
        for attempt in reversed(self.attempts):
            if attempt.fate is not Fate.REFUSED:
                found.append(attempt)
            if attempt.fate is Fate.DONE:
                break
        return found


class Truth:
    """What users asked for and were told, and nothing of any machine."""

    def __init__(self) -> None:
        self.states: dict[str, History] = {}
        self.rules: dict[str, History] = {}

    def state(self, vid: str) -> History:
        """The publications of a vid."""
        return self.states.setdefault(vid, History(None))

    def rule(self, vid: str) -> History:
        """The rules of a vid."""
        return self.rules.setdefault(vid, History(PUBLIC))

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
        return {
            str(one.value)
            for one in attempts
            if one.number >= last and one.fate is not Fate.REFUSED
        }

    def check_shown(
        self, who: str, viewer: Viewer, kinds: Iterable[str], vid: str, shown: dict[str, Any]
    ) -> Attempt:
        """Check one context as it was shown to a viewer; give the attempt that published it."""
        number = shown.get("n")
        attempts = self.state(vid).attempts
        if not isinstance(number, int) or not 0 < number < len(attempts):
            raise Violation("only what was published", f"{who}: {vid} as {shown}")
        attempt = attempts[number]
        if attempt.fate is Fate.REFUSED or attempt.value is None:
            raise Violation("a refused write never shows", f"{who}: {vid} number {number}")
        allowed = [seen(kind, viewer, attempt.value) for kind in kinds]
        if (shown.get("place"), "secret" in shown) not in allowed:
            raise Violation(
                "nobody sees what rules hide", f"{who} was shown {vid} as {shown}, {allowed}"
            )
        return attempt


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

    def connect(self, host: str, server: object) -> None:
        """Begin a session anew."""
        self.disconnect()
        self.host, self.server = host, server

    def disconnect(self) -> None:
        """The session is over."""
        self.server, self.slow, self.opening = None, False, 0
        self.queries, self.views, self.complete = {}, {}, set()

    def read(self, data: bytes) -> list[tuple[str, dict[str, Any]]]:
        """Read a frame; give the contexts that it shows."""
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
            else:
                view[vid] = event["data"]["properties"]
                found.append((vid, view[vid]))
        return found
