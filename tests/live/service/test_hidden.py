"""What a token may not see is in no answer, whatever the rules and whoever asks.

A real service, real sockets. Every secret of a context (its vid, each attribute, each finer place,
its point, since when it lasts) is a text or number of its own. Each viewer asks in every way there
is, through a relay that keeps all bytes the service sends; what the rules hide from that viewer
must not be among them, and what they show must be there.
"""

import asyncio
import contextlib
import json
import struct
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_socket

from roamcast.client import connect
from roamcast.identity.rules import LEVELS, Hours, Rule, Viewer, visible
from roamcast.model.buildings import building
from roamcast.model.contexts import Context, from_feature, to_feature
from roamcast.model.earth import distance_metres
from roamcast.model.places import Place, Places
from roamcast.model.places_geojson import to_geojson
from roamcast.model.time import format_instant
from tests.running_service import DEADLINE_S, RunningService, hears

pytestmark = pytest.mark.process

PLACES = Places([Place("campus", "region"), *building("campus/b35", 2)])
ROOMS = PLACES.of_kind("office")
VIEWERS = (
    Viewer("ann"),
    Viewer("bob", frozenset({"staff"})),
    Viewer("cid", frozenset({"staff", "legal"})),
    Viewer("eve"),
)
Seen = dict[str, tuple[Any, ...]]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("hidden")
    places = folder / "places.json"
    places.write_bytes(msgspec.json.encode(to_geojson(PLACES)))
    with RunningService(folder, f'[server]\nplaces = "{places}"\n') as running:
        yield running


def _never() -> Hours:
    """Hours that neither begin nor end today: two days from now, as Monday is 0."""
    return Hours(days=((int(time.time()) // 86_400 + 3 + 2) % 7,))


some_rules = st.lists(
    st.builds(
        Rule,
        viewers=st.sampled_from([("*",), ("ann",), ("staff",), ("legal", "eve"), ("nobody",), ()]),
        precision=st.sampled_from([*LEVELS, "room", "exact"]),
        hours=st.sampled_from([None, None, Hours(), _never()]),
        past=st.booleans(),
        attributes=st.sampled_from([None, (), ("role",), ("type", "phone")]),
    ),
    min_size=1,
    max_size=3,
).map(tuple)
"""No list is empty: without any rule a context is public, which `default` below stands for."""

default = (Rule(viewers=("*",), precision="exact", past=True),)
some_phases = st.lists(
    st.tuples(some_rules | st.just(default), st.booleans()), min_size=2, max_size=2
)
some_people = st.lists(some_phases, min_size=2, max_size=4)


class Person:
    """A context with its rules in two phases; whatever it says, it says with words of its own."""

    def __init__(self, number: int, phases: list[tuple[tuple[Rule, ...], bool]]) -> None:
        stamp = time.time_ns() // 1000
        self.vid = f"vid{number}x{stamp:x}"
        self.rules = [rules for rules, _ in phases]
        self.contexts = []
        for phase, (_, in_building) in enumerate(phases):
            mark = f"{number}p{phase}x{stamp:x}"
            place = ROOMS[number] if in_building else f"re{mark}/bu{mark}/fl{mark}/ro{mark}"
            attributes = {"type": f"type{mark}", "role": f"role{mark}", "phone": f"phone{mark}"}
            lon = 9.1 + number * 1e-2 + phase * 1e-3 + stamp % 9_973 * 1e-7
            lat = 48.7 + number * 1e-2 + phase * 1e-3 + stamp % 9_967 * 1e-7
            t_r = stamp - 60_000_000 - number * 1_111_111 - phase * 3_333_333
            self.contexts.append(Context(self.vid, place, (lon, lat), dict(attributes), t_r))

    def moments(self) -> list[tuple[tuple[Rule, ...], Context]]:
        """What is in force one after the other: the second phase's rules come before its state."""
        first, second = self.rules
        return [
            (first, self.contexts[0]),
            (second, self.contexts[0]),
            (second, self.contexts[1]),
        ]


def secrets_of(context: Context) -> dict[str, list[bytes]]:
    """Name everything that a context says, each as the bytes it would be told in."""
    assert context.place is not None
    assert context.point is not None
    found = {"vid": [context.vid.encode()]}
    for name, value in context.attributes.items():
        found[name] = [str(value).encode()]
    if not context.place.startswith("campus"):  # rooms of the building are known to everybody
        for depth, part in enumerate(context.place.split("/"), start=1):
            found[f"place {depth}"] = [part.encode()]
    for name, number in zip(("lon", "lat"), context.point, strict=True):
        found[name] = [repr(number).encode(), struct.pack(">d", number)]
    found["t_r"] = [format_instant(context.t_r).encode(), struct.pack(">q", context.t_r)]
    return found


def shown_of(context: Context, rules: tuple[Rule, ...], viewer: Viewer, now: int) -> set[str]:
    """Name what the rules show of a context."""
    seen = visible(context, rules, viewer, now, PLACES)
    if seen is None:
        return set()
    names = {"vid", *seen.attributes}
    names |= {f"place {n}" for n in range(1, len((seen.place or "").split("/")) + 1) if seen.place}
    names |= {"lon", "lat"} if seen.point == context.point else set()
    return names | ({"t_r"} if seen.t_r == context.t_r else set())


def hidden_words(people: list[Person], viewer: Viewer, now: int) -> dict[str, bytes]:
    """Collect what this viewer may at no moment be told."""
    found: dict[str, bytes] = {}
    for number, person in enumerate(people):
        moments = [(shown_of(c, rules, viewer, now), c) for rules, c in person.moments()]
        known = any(shown for shown, _ in moments)
        for phase, context in enumerate(person.contexts):
            told = {name for shown, state in moments if state is context for name in shown}
            told |= {"vid"} if known else set()
            for name, words in secrets_of(context).items():
                if name not in told:
                    for form, word in enumerate(words):
                        found[f"{name} of person {number}, phase {phase}, form {form}"] = word
    return found


def expected(people: list[Person], moment: int, viewer: Viewer, now: int) -> Seen:
    """Give what this viewer sees, by the rules' own meaning."""
    found: Seen = {}
    for person in people:
        rules, context = person.moments()[moment]
        seen = visible(context, rules, viewer, now, PLACES)
        if seen is not None:
            found[seen.vid] = plain(seen)
    return found


def plain(context: Context) -> tuple[Any, ...]:
    """Give a context without times, which go on."""
    return context.place, context.point, tuple(sorted(context.attributes.items()))


class Relay:
    """Carries bytes between one viewer and the service, and keeps what the service says."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.said = bytearray()
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Relay":
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer, self.said))
        except ConnectionError:
            pass
        finally:
            back.close()
            writer.close()
            self._tasks.discard(task)

    async def _pump(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        kept: bytearray | None = None,
    ) -> None:
        while data := await source.read(65_536):
            if kept is not None:
                kept += data
            target.write(data)
            await target.drain()
        target.close()


class Look:
    """One viewer, who looks in all ways at once."""

    def __init__(self, service: RunningService, viewer: Viewer, relay: Relay) -> None:
        self.viewer = viewer
        self.relay = relay
        self.service = service
        self.token = service.token(viewer.name, ["read", "subscribe"], sorted(viewer.groups))
        self.session: Seen = {}
        self.stream: Seen = {}
        self.link: Any = None

    async def begin(self, stack: AsyncExitStack) -> None:
        """Open a session, a stream and a link, each with a watch for everything."""
        headers = {"authorization": f"Bearer {self.token}"}
        url = f"ws://127.0.0.1:{self.relay.port}/session"
        socket = await stack.enter_async_context(
            connect_socket(url, additional_headers=headers, max_size=None, compression=None)
        )
        await socket.send(json.dumps({"type": "subscribe", "re": "all", "filter": "true"}))
        for reading in (self._read_session(socket), self._read_stream()):
            stack.push_async_callback(_ended, asyncio.create_task(reading))
        root = f"http://127.0.0.1:{self.relay.port}"
        me = await stack.enter_async_context(connect(root, self.token))
        self.link = await stack.enter_async_context(me.watch("true"))

    async def _read_session(self, socket: ClientConnection) -> None:
        async for text in socket:
            told = json.loads(text)
            self._list(self.session, told)
            for event in told.get("events", ()):
                self._take(self.session, event)

    async def _read_stream(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.relay.port)
        head = f"GET /changes HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self.token}\r\n\r\n"
        writer.write(head.encode())
        try:
            while line := await reader.readline():
                if not line.startswith(b"data: "):
                    continue
                told = json.loads(line.removeprefix(b"data: "))
                self._list(self.stream, told)
                if "specversion" in told:
                    self._take(self.stream, told)
        finally:
            writer.close()

    def _list(self, seen: Seen, told: Any) -> None:
        """A current set replaces what was known: rules may have changed what one may see."""
        if told.get("type") == "subscribed":
            seen.clear()
            for feature in told["features"]:
                self._put(seen, feature)

    def _put(self, seen: Seen, feature: Any) -> None:
        context = from_feature(feature)
        seen[context.vid] = plain(context)

    def _take(self, seen: Seen, event: Any) -> None:
        if event["type"].endswith(".left"):
            seen.pop(event["subject"], None)
        else:
            self._put(seen, event["data"])

    def ask(self, path: str, *, recorded: bool = True, **query: str) -> Any:
        """Ask over HTTP; what the question itself gives away is not recorded."""
        port = self.relay.port if recorded else self.service.port
        return self.service.ask("GET", path, self.token, query=query, port=port)

    async def sees(self, wanted: Seen) -> None:
        """Wait until all open views show what is wanted, neither more nor less."""
        end = time.monotonic() + DEADLINE_S
        while True:
            linked = {vid: plain(context) for vid, context in self.link.contexts.items()}
            views = (self.session, self.stream, linked)
            if all(view == wanted for view in views):
                return
            assert time.monotonic() < end, _differences(self.viewer, wanted, views)
            await asyncio.sleep(0.01)

    def answers(self, wanted: Seen, people: list[Person], moment: int) -> None:
        """Ask once in every way."""
        found = self.ask("/collections/contexts/items", limit="1000").json
        contexts = [from_feature(feature) for feature in found["features"]]
        assert {context.vid: plain(context) for context in contexts} == wanted
        assert found["numberMatched"] == found["numberReturned"] == len(wanted)
        assert self.ask("/count").json == {"count": len(wanted)}
        near = self.ask("/nearest", to="9.1,48.7", count="1000").json["features"]
        distances = {one["id"]: one["properties"]["distance_m"] for one in near}
        places = {vid: seen[1] for vid, seen in wanted.items() if seen[1] is not None}
        assert distances.keys() == places.keys()
        for vid, (lon, lat) in places.items():
            assert distances[vid] == pytest.approx(
                distance_metres((9.1, 48.7), (lon, lat)), abs=0.01
            )
        for person in people:
            self._guesses(wanted, person.moments()[moment][1])

    def _guesses(self, wanted: Seen, context: Context) -> None:
        """Ask for what one would have to know already: a hidden one is as if it were not."""
        seen = wanted.get(context.vid)
        for path in ("/contexts/{}", "/collections/contexts/items/{}"):
            answer = self.ask(path.format(context.vid), recorded=False)
            unknown = self.ask(path.format("x" * len(context.vid)), recorded=False)
            assert answer.status == (404 if seen is None else 200)
            if seen is None:
                blurred = answer.body.replace(context.vid.encode(), b"x" * len(context.vid))
                assert blurred == unknown.body
        lon, lat = context.point or (0.0, 0.0)
        guesses = {f"{name} = '{value}'": name for name, value in context.attributes.items()}
        guesses |= {
            f"place = '{context.place}'": "place",
            f"within(place, '{context.place}')": "place",
        }
        guesses[f"vid = '{context.vid}'"] = "vid"
        guesses[
            f"S_INTERSECTS(geometry, BBOX({lon - 1e-8},{lat - 1e-8},{lon + 1e-8},{lat + 1e-8}))"
        ] = "point"
        for guess, name in guesses.items():
            known = seen is not None and (
                name == "vid"
                or (name == "place" and seen[0] == context.place)
                or (name == "point" and seen[1] == context.point)
                or name in dict(seen[2])
            )
            counted = self.ask("/count", recorded=False, filter=guess).json["count"]
            assert counted == int(known), (self.viewer.name, guess)


def _differences(viewer: Viewer, wanted: Seen, views: tuple[Seen, ...]) -> str:
    lines = [f"{viewer.name} sees otherwise than the rules say:"]
    for name, view in zip(("session", "stream", "link"), views, strict=True):
        lines += [
            f"{name}: {view.get(vid)} instead of {wanted.get(vid)}"
            for vid in sorted(wanted.keys() | view.keys())
            if wanted.get(vid) != view.get(vid)
        ]
    return "\n".join(lines)


async def _ended(task: "asyncio.Task[None]") -> None:
    """End a reader, which would read for ever; what it failed of is a failure of the test."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


class Owner:
    """Publishes people, and says who may see them."""

    def __init__(self, service: RunningService, people: list[Person]) -> None:
        self._service = service
        self._people = people
        self._token = service.token("owner", ["publish"])

    async def _do(self, method: str, path: str, body: Any = None) -> None:
        answer = await asyncio.to_thread(self._service.ask, method, path, self._token, body)
        assert answer.status in (200, 201, 204, 404), answer

    async def set_rules(self, moment: int) -> None:
        for person in self._people:
            rules, _ = person.moments()[moment]
            await self._do("PUT", f"/contexts/{person.vid}/rules", msgspec.to_builtins(rules))

    async def publish(self, moment: int) -> None:
        for person in self._people:
            _, context = person.moments()[moment]
            await self._do("PUT", f"/contexts/{person.vid}", to_feature(context))

    async def take_away(self) -> None:
        for person in self._people:
            await self._do("DELETE", f"/contexts/{person.vid}")
            await self._do("DELETE", f"/contexts/{person.vid}/rules")


async def play(service: RunningService, people: list[Person]) -> list[Look]:
    """Let all viewers look on while people come, change their rules, move and leave."""
    owner = Owner(service, people)
    async with AsyncExitStack() as stack:
        looks = []
        for viewer in VIEWERS:
            relay = await stack.enter_async_context(Relay(service.port))
            looks.append(Look(service, viewer, relay))
            await looks[-1].begin(stack)
        await owner.set_rules(0)  # before anybody could see anything
        stack.push_async_callback(owner.take_away)  # also for the example after a failure
        for moment, step in enumerate((owner.publish, owner.set_rules, owner.publish)):
            await step(moment)
            for look in looks:
                wanted = expected(people, moment, look.viewer, time.time_ns() // 1000)
                await look.sees(wanted)
                await asyncio.to_thread(look.answers, wanted, people, moment)
        await owner.take_away()
        for look in looks:
            await look.sees({})
    return looks


@pytest.mark.slow
@settings(
    max_examples=6,
    phases=[Phase.explicit, Phase.generate],  # a failure here takes a minute: it is not shrunk
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(some_people)
def test_what_the_rules_hide_is_in_no_answer_and_what_they_show_is(
    service: RunningService, lives: list[list[tuple[tuple[Rule, ...], bool]]]
) -> None:
    people = [Person(number, phases) for number, phases in enumerate(lives)]
    looks = asyncio.run(play(service, people))
    now = time.time_ns() // 1000
    for look in looks:
        said = bytes(look.relay.said)
        assert len(said) > 1_000
        for name, word in hidden_words(people, look.viewer, now).items():
            assert word not in said, f"{look.viewer.name} was told the {name}"
    numbers = service.ask("GET", "/metrics", service.operator)
    assert numbers.status == 200
    told = numbers.body + service.log.encode()
    for person in people:
        for context in person.contexts:
            for name, words in secrets_of(context).items():
                assert not any(word in told for word in words), f"metrics or log tell the {name}"


def test_numbers_are_for_admins_only(service: RunningService) -> None:
    token = service.token("ann", ["read", "publish", "subscribe", "cast"])
    assert service.ask("GET", "/metrics", token).status == 403


def test_strangers_learn_nothing_from_what_they_may_not_change(service: RunningService) -> None:
    """Answers about a hidden context and about none at all differ in nothing but the name."""
    owner, eve = (service.token(name, ["read", "publish"]) for name in ("owner", "eve"))
    hidden = [{"viewers": ["ann"], "precision": "exact"}]
    feature = {"type": "Feature", "geometry": None, "properties": {"place": "hq/1"}}
    assert service.ask("PUT", "/contexts/there/rules", owner, hidden).status == 200
    assert service.ask("PUT", "/contexts/there", owner, feature).status == 201
    for method, path in (
        ("DELETE", "/contexts/{}"),
        ("GET", "/contexts/{}/rules"),
        ("DELETE", "/contexts/{}/rules"),
    ):
        there = service.ask(method, path.format("there"), eve)
        other = service.ask(method, path.format("where"), eve)
        assert there.status == other.status == 404
        assert there.body.replace(b"there", b"where") == other.body.replace(b"there", b"where")
    with service.session(eve) as held:
        for vid in ("there", "where"):
            held.send(json.dumps({"type": "unpublish", "re": vid, "vid": vid}))
        said = [{**hears(held, "error", re=vid), "re": ""} for vid in ("there", "where")]
        assert str(said[0]).replace("there", "where") == str(said[1])
    assert service.ask("DELETE", "/contexts/there", owner).status == 204
    assert service.ask("DELETE", "/contexts/there/rules", owner).status == 204
