"""Twin worlds: two brokers that differ only in what Eve may not see, and all that reaches her.

From one seed a story is drawn. Both worlds live through its open steps at the same times; the
hidden ones happen in one world each. Eve watches by session and by link, asks, for the past as
well, and tries what a stranger may try. What she gets must be equal, byte by byte and microsecond
by microsecond (0090, 0098).
"""

import random
from collections.abc import Callable
from typing import Any, Final

from roamcast.broker import (
    AdmitClient,
    Broker,
    CutOff,
    Failed,
    Frame,
    LimitSession,
    OpenSession,
    PublishFor,
    SessionDrained,
    SessionSlow,
    SetRules,
    SubscribeSession,
    UnpublishFor,
)
from roamcast.channels.past.asking import EVER, Asked, found
from roamcast.channels.past.part import STEPS as PAST_STEPS
from roamcast.channels.server.map_server import compiled_matcher
from roamcast.channels.server.messages import Batch, Hello, Operation, Receipt, Request, Subscribe
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.sessions.settings import HubSettings
from roamcast.identity.rules import Precision, Rule, Viewer
from roamcast.matching.live.slices import run
from roamcast.model.addresses import Client
from roamcast.model.contexts import Context, encode
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Input, Multicast, Received, Send, Store, Stored
from roamcast.sim.checkers import Violation
from roamcast.sim.step_log import SimStepLog
from roamcast.sim.workloads._map_parts import ScanMatcher

START: Final = 1_700_000_000_000_000
STEPS: Final = 30
LOOKS_BACK: Final = 4
"""Of so many looks one is at the past as well, which takes as long as all the rest."""
EVE: Final = Viewer("eve", frozenset({"guests"}))
LINK: Final = "eve#link"
BOB: Final = Viewer("bob", frozenset({"guests"}))
"""Somebody of the same view class, who shares frames with Eve as long as both see the same."""
ROOMS: Final = tuple(f"campus/b35/{floor}/r{room}" for floor in (1, 2) for room in (1, 2))
FILTERS: Final = (
    "within(place, 'campus')",
    "within(place, 'campus/b35/1')",
    "vid <> ''",
    "type = 'person'",
    "type IS NULL",
)
EVERYTHING: Final = Filter.parse(FILTERS[2])
PARTLY: Final[dict[str, Precision]] = {
    "floor": "floor",
    "building": "building",
    "there": "presence",
}
"""Vids of which Eve sees a part → how much of them."""

Step = Callable[["TwinWorld"], None]


class TwinWorld:
    """A broker with a disk that always works, and Eve at it; `received` is all that reached her."""

    def __init__(self, owner: str, settings: HubSettings, *, compiled: bool) -> None:
        self.owner = owner
        self.now = START
        self.received: list[tuple[int, Any]] = []
        self.by_link: list[tuple[int, Any]] = []
        """What reached her link: which of her connections is written to first does not count."""
        self._asked = 0
        self._session = 0
        self._looks = 0
        self._settings = settings
        self._make_matcher = compiled_matcher if compiled else ScanMatcher
        self._disk: dict[str, bytes] = {}
        self._ticket = 0
        self.boot()

    def boot(self) -> None:
        """Start, or start again from what is on disk."""
        self.broker = Broker(
            "twin",
            epoch=self.now,
            now=self.now,
            load=self._stored,
            map_settings=MapSettings(notes_max=1),
            hub_settings=self._settings,
            make_matcher=self._make_matcher,
        )

    def _stored(self, prefix: str) -> dict[str, bytes]:
        return {key: value for key, value in self._disk.items() if key.startswith(prefix)}

    def give(self, given: Input, *, received: bool = False) -> None:
        """Give an input; `received`: Eve made it, and reads what it is answered."""
        self._carry(self.broker.receive(given, self.now), received)

    def ask(self, make: Callable[..., Input], *given: Any, received: bool = False) -> None:
        """Give an input with a ticket."""
        self._ticket += 1
        self.give(make(self._ticket, *given), received=received)

    def _carry(self, effects: list[Effect], received: bool) -> None:
        for effect in effects:
            match effect:
                case Store(token, writes):
                    for key, value in writes:
                        if value is None:
                            self._disk.pop(key, None)
                        else:
                            self._disk[key] = value
                    self.give(Stored(token), received=received)
                case Frame(sessions, data) if "eve" in sessions:
                    self.received.append((self.now, data))
                case Send(Client(name), message) if name == LINK:
                    self.by_link.append((self.now, message))
                    if isinstance(message, Batch):
                        receipt = Receipt(message.epoch, message.session, message.number)
                        self.give(Received(LINK, receipt))
                case Multicast(group, message) if self._hears(group):
                    self.by_link.append((self.now, message))
                case CutOff(session="eve", reason=reason):
                    self.received.append((self.now, reason))
                case Failed(_, error) if received:
                    self.received.append((self.now, f"{type(error).__name__}: {error}"))

    def _hears(self, group: str) -> bool:
        return self.broker.class_of_group(group) == self.broker.class_of_client(LINK)

    def link(self) -> None:
        """Let Eve connect by link, and watch what her session watches."""
        self.ask(AdmitClient, LINK, EVE)
        self._asked, self._session = 0, self.now
        self.say(Hello(), *(Subscribe(about, about) for about in FILTERS[:3]))

    def say(self, *operations: Operation) -> None:
        """Let Eve's link ask for something; for nothing, it is a heartbeat."""
        first, self._asked = self._asked + 1, self._asked + len(operations)
        epoch = self.broker.epoch
        self.give(Received(LINK, Request(epoch, self._session, first, operations)))

    def run(self, until: int) -> None:
        """Let time pass."""
        while (due := self.broker.deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self._carry(self.broker.advance(self.now), False)
        self.now = until

    def put(self, vid: str, place: str, **attributes: Any) -> None:
        """Publish a context."""
        attributes = {"type": "person", **attributes}
        self.ask(PublishFor, self.owner, Context(vid, place, None, attributes, self.now))

    def rules(self, vid: str, *rules: Rule) -> None:
        """Set the rules of a vid."""
        self.ask(SetRules, self.owner, vid, rules)

    def look(self) -> None:
        """Let Eve ask what can be asked once, and try what is not hers."""
        broker, now = self.broker, self.now
        for wanted in map(Filter.parse, FILTERS):
            page = run(broker.page(EVE, wanted, now, after="", limit=2))
            said = [encode(one) for one in page.contexts]
            count = run(broker.count(EVE, wanted, now))
            price = broker.price(EVE, wanted, now).terms
            self.received.append((now, (said, page.more, count, price)))
        for vid in ("hidden", *PARTLY, "open"):
            seen = broker.get(EVE, vid, now)
            self.received.append((now, None if seen is None else encode(seen)))
        self._looks += 1
        if self._looks % LOOKS_BACK == 0:
            self._look_back()
        self.ask(UnpublishFor, "eve", "hidden", received=True)
        self.ask(SetRules, "eve", "hidden", (), received=True)
        self.ask(PublishFor, "eve", Context("hidden", "lab", None, {}, now), received=True)

    def _look_back(self) -> None:
        """Let Eve ask for the past: all of it, a time lately, and a moment."""
        log, now = SimStepLog().of(self._stored(PAST_STEPS)), self.now
        lately = (now - 1_500_000, now - 500_000)
        for window in (EVER, lately, (lately[0], lately[0])):
            memory = self.broker.remembers(EVE, now)
            answers = found(
                Asked(EVERYTHING, window),
                memory.seen,
                waiting=memory.waiting,
                log=log,
                archive=tuple,
                known=memory.known,
                whole=memory.whole,
                blur=self.broker.blur,
            )
            said = [encode(one) for one in answers.values()]
            self.received.append((now, (window, said)))


class TwinStory:
    """What happens in both worlds, and what in one of them, drawn from a seed."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._past = {vid: draw.random() < 0.5 for vid in PARTLY}
        self._place = dict.fromkeys(PARTLY, 0)
        """Vids of which Eve sees a part → the floor that they are on."""
        self._slow = False

    def begin(self, world: TwinWorld) -> None:
        """Set rules before anything is published: from here on the worlds may differ."""
        for vid in PARTLY:
            world.rules(vid, self._shown(vid))
        world.rules("hidden")
        # A link of somebody whom no rule has ever named is told that one does: it ends (0082).
        world.rules("another", Rule(viewers=("eve",), precision="exact"))
        self._connect(world)

    def _connect(self, world: TwinWorld) -> None:
        for viewer in (EVE, BOB):
            world.ask(OpenSession, viewer.name, viewer)
            for about in FILTERS[:3]:
                world.ask(SubscribeSession, viewer.name, about, Filter.parse(about))
        world.link()

    def _shown(self, vid: str, viewer: str = "*") -> Rule:
        named = None if PARTLY[vid] == "presence" else ("type",)
        return Rule(
            viewers=(viewer,), precision=PARTLY[vid], past=self._past[vid], attributes=named
        )

    def open_step(self) -> Step:
        """Draw a step that Eve may see, or that is her own."""
        draw, vid = self._draw, self._draw.choice([*PARTLY])
        kind = draw.randrange(9)
        if kind == 0:
            return lambda world: world.ask(UnpublishFor, world.owner, vid)
        if kind == 1:
            place = draw.choice(ROOMS)
            return lambda world: world.put("open", place)
        if kind == 2:
            return lambda world: world.ask(UnpublishFor, world.owner, "open")
        if kind == 3:
            self._slow = not self._slow
            tell = SessionSlow("eve") if self._slow else SessionDrained("eve")
            return lambda world: world.give(tell)
        if kind == 4:
            limit = draw.choice((0, 3_000))
            return lambda world: world.ask(LimitSession, "eve", limit)
        if kind == 5:
            about = draw.choice(FILTERS)
            return lambda world: world.ask(SubscribeSession, "eve", about, Filter.parse(about))
        if kind == 6 and draw.random() < 0.2:
            self._slow = False
            return self._restart
        self._place[vid] = draw.randrange(2)
        place, whole = ROOMS[2 * self._place[vid]], self._whole(vid)
        return lambda world: world.put(vid, place, **whole)

    def _restart(self, world: TwinWorld) -> None:
        world.boot()
        self._connect(world)

    def _whole(self, vid: str) -> dict[str, str]:
        # With `presence` the type is hidden, too.
        return {"type": self._draw.choice(("person", "robot"))} if vid != "there" else {}

    def hidden_step(self) -> Step:
        """Draw a step that Eve may not see anything of."""
        draw = self._draw
        kind = draw.randrange(7)
        if kind == 0:
            return lambda world: world.ask(UnpublishFor, world.owner, "hidden")
        if kind == 1:
            room, mood = draw.choice(ROOMS), draw.random()
            return lambda world: world.put("hidden", room, mood=mood)
        if kind == 2:
            named = draw.choice((("bob",), ("eve",), ("bob", "eve"), ("staff",)))
            precision: Precision = "hidden" if "eve" in named else "exact"
            rule = Rule(viewers=named, precision=precision)
            return lambda world: world.rules("hidden", rule)
        vid = draw.choice([*PARTLY])
        if kind == 6:  # to Eve it stays as it was, by her name or by everybody's
            whole = draw.choice((("*",), ("eve",), ("*", "eve"), ("eve", "bob")))
            rules = [self._shown(vid, viewer) for viewer in whole]
            if draw.random() < 0.3:
                rules.append(Rule(viewers=("bob",), precision="hidden"))
            return lambda world: world.rules(vid, *rules)
        if kind == 3:
            rule = Rule(viewers=("bob",), precision="exact")
            return lambda world: world.rules(vid, self._shown(vid), rule)
        number = draw.randrange(2)

        def stir(world: TwinWorld) -> None:
            seen = world.broker.get(Viewer(world.owner), vid, world.now)
            if seen is not None:
                assert seen.place is not None
                place = seen.place[:-1] + str(number + 1)
                world.put(vid, place, **{**seen.attributes, "mood": number})

        return stir


def check_twins(draw: random.Random) -> int:
    """Run twin worlds; raise `Violation` at the first difference. Give how much Eve heard."""
    settings = HubSettings(
        page_features_max=draw.choice((1, 2, 1_000)),
        frame_events_max=2,
        frame_cost_us=draw.choice((0, 3_000_000)),
        slow_us_max=10_000_000_000,
    )
    compiled = draw.random() < 0.1
    worlds = [TwinWorld(owner, settings, compiled=compiled) for owner in ("ann", "zoe")]
    story = TwinStory(draw)
    for world in worlds:
        story.begin(world)
    now = START
    for moment in range(STEPS):
        now += draw.choice((1, 1_000, 300_000, 2_000_000))
        hidden = draw.random() < 0.5
        step = story.hidden_step() if hidden else story.open_step()
        only = draw.randrange(2)
        for number, world in enumerate(worlds):
            world.run(now)
            world.say()
            if not hidden or number == only:
                step(world)
            if not hidden:
                world.look()
        _compare(moment, *(world.received for world in worlds))
        _compare(moment, *(world.by_link for world in worlds))
    return len(worlds[0].received) + len(worlds[0].by_link)


def _compare(moment: int, first: list[tuple[int, Any]], second: list[tuple[int, Any]]) -> None:
    if first != second:
        here = next(
            (pair for pair in zip(first, second, strict=False) if pair[0] != pair[1]),
            (len(first), len(second)),
        )
        raise Violation("what is hidden tells nothing", f"step {moment}: {here[0]} or {here[1]}")
