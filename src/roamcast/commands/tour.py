"""`roamcast tour`: the six steps of the page's tour in a terminal, on a running service.

Every step asks the service and says what it answered; the command that does the same is shown
first, so that it can be typed again.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from roamcast.commands._service import DataOption, run

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from roamcast.transport.http import HttpClient

BACK_S: Final = 600
SETTLED_S: Final = 180
"""After its begin, a demo's first meeting has filled the hall."""

WATCHED_S: Final = 8.0
GATHERED_S: Final = 1.5
"""So long after the last one, nobody more of other brokers' maps is expected."""

CROSSED_S: Final = 45.0
"""The demo's courier crosses a border before that."""

LOOKS: Final = 20
LOOK_S: Final = 0.5
"""How often and how long a cast is awaited before it is explained."""

COUNTED_S: Final = 2.5
"""After that who has a cast is counted; asked before, the answer would stand for ten seconds."""

NO_ROOMS: Final = frozenset(
    ("campus", "venue", "yard", "building", "floor", "corridor", "lift", "stairs")
)
"""Kinds of places in which nobody meets."""

BUILDING: Final = [{"viewers": ["*"], "precision": "building", "past": True}]


def register(root: typer.Typer) -> None:
    """Add the command to the command line."""
    root.command("tour", rich_help_panel="The service")(tour)


def tour(
    data: DataOption = None,
    wait: Annotated[bool, typer.Option(help="Wait for Enter between the steps.")] = True,
) -> None:
    """Show in six steps what the service does: past, present and future, and who sees you.

    It asks the service on this machine, such as that of `roamcast serve --demo`. The page at its
    address has the same tour.
    """
    from roamcast.transport.address import find
    from roamcast.transport.http import HttpClient

    where = "" if data is None else f" --data {data}"
    guide = Guide(HttpClient(find(data=data)), where, wait=wait)
    run(guide.walk())


class Guide:
    """Walks through the steps."""

    def __init__(self, http: "HttpClient", where: str, *, wait: bool) -> None:
        self._http = http
        self._where = where
        self._wait = wait

    async def walk(self) -> None:
        """Take all steps."""
        kinds = await self._places()
        office = kinds.get("office") or next(iter(kinds.values()), "")
        hall = kinds.get("hall") or office
        lab = kinds.get("lab") or hall
        await self._who()
        await self._shared(hall)
        await self._past(hall)
        await self._future(lab)
        await self._blur(office)
        await self._border()

    async def _places(self) -> dict[str, str]:
        """Give the first place of each kind of room."""
        answer = await self._http.ask("GET", "/places")
        found: dict[str, str] = {}
        for feature in answer["features"]:
            known = feature["properties"]
            if known["kind"] not in NO_ROOMS:
                found.setdefault(known["kind"], known["path"])
        return found

    def _step(self, number: int, title: str, says: str, command: str = "") -> None:
        if self._wait and number > 1:
            typer.prompt("", default="Enter", prompt_suffix="", show_default=True)
        typer.secho(f"\n{number} of 6  {title}", bold=True)
        typer.echo(says)
        if command:
            typer.secho(f"$ roamcast {command}{self._where}", dim=True)

    def _answer(self, text: str) -> None:
        typer.echo(f"→ {text}")

    async def _who(self) -> None:
        self._step(
            1,
            "Who is here",
            "Everybody is a pseudonym that nobody can link to the next one.",
            "watch --where \"type = 'person'\"",
        )
        found = await asyncio.to_thread(self._everybody)
        people = sum(kind == "person" for kind in found.values())
        self._answer(f"{people} people and {len(found) - people} things are on the map")

    def _everybody(self) -> dict[str, str]:
        """Give the type of all on the map; those of other brokers come after one's own."""
        found: dict[str, str] = {}
        with listening(self._http) as heard:
            for vid, known in heard.contexts("true", GATHERED_S):
                if known is None:
                    found.pop(vid, None)
                else:
                    found[vid] = known.get("type", "")
                if heard.seconds > 2 * GATHERED_S:  # on a lively map somebody always moves
                    break
        return found

    async def _shared(self, hall: str) -> None:
        wanted = f"within(place, '{hall}')"
        self._step(
            2,
            "Hundreds served by one channel",
            "Whoever watches the hall asks the same question, so its answer is sent once.",
            f'watch --where "{wanted}"',
        )
        changes, sent, watchers = await asyncio.to_thread(self._watched, wanted)
        if not changes:
            self._answer(f"{watchers} watchers; nothing changed in {hall} for {WATCHED_S:.0f} s")
            return
        self._answer(
            f"{watchers} watchers, {changes} changes in {hall}, {sent} transmissions: "
            f"{sent / changes:.1f} a change instead of {watchers}"
        )

    def _watched(self, wanted: str) -> tuple[int, int, int]:
        """Watch for a while: changes, what the service sent meanwhile, and who else watches."""
        with listening(self._http) as heard:
            heard.say(type="subscribe", re="hall", filter=wanted)
            _, before = heard.numbers()
            time.sleep(WATCHED_S)
            changes, after = heard.numbers()
        return changes, after["transmissions"] - before["transmissions"], after["sessions"]

    async def _past(self, hall: str) -> None:
        from roamcast.model.time import format_instant, parse_instant

        begins = parse_instant((await self._http.ask("GET", "/past"))["begins"]) // 1_000_000
        now = int(time.time())
        moment = min(max(now - BACK_S, begins + SETTLED_S), now - 30)
        at = format_instant(moment * 1_000_000)
        wanted = f"within(place, '{hall}') AND overlaps(time, TIMESTAMP('{at}'))"
        self._step(
            3,
            "Everyone who was in the hall",
            "They are reached wherever they are now. You learn about how many, never who.",
            f'cast --where "{wanted}" "The slides are at the front desk"',
        )
        people = f"within(place, '{hall}') AND type = 'person'"  # and not the hall's sensor
        there = await self._http.ask("GET", "/count", {"filter": people, "datetime": at})
        self._answer(
            f"{there['count']} people were in {hall} {(now - moment) // 60} minutes ago, "
            "or a little before or after: times of pseudonyms are rounded"
        )
        await self._cast(wanted, "You were in the hall: the slides are at the front desk")

    async def _future(self, lab: str) -> None:
        from roamcast.model.time import format_instant

        now = int(time.time()) * 1_000_000
        first, last = format_instant(now), format_instant(now + 3_600_000_000)
        wanted = f"within(place, '{lab}') AND start_by(time, INTERVAL('{first}', '{last}'))"
        self._step(
            4,
            "Whoever enters the lab within the hour",
            "The same filter, pointed at the future: the cast waits where people will be.",
            f'cast --where "{wanted}" "Goggles on, please"',
        )
        await self._cast(wanted, "Welcome to the lab: goggles on, please")

    async def _cast(self, wanted: str, text: str) -> None:
        body = {"filter": wanted, "text": text, "lifetime_s": 3_600}
        sent = await self._http.ask("POST", "/casts", body=body)
        for _ in range(LOOKS):
            if sent["nodes_answered"] >= sent["nodes_asked"]:
                break
            await asyncio.sleep(LOOK_S)
            sent = await self._http.ask("GET", f"/casts/{sent['id']}")
        await asyncio.sleep(COUNTED_S)
        why = await self._http.ask("GET", f"/casts/{sent['id']}/why")
        self._answer(f"sent {sent['id']}; `roamcast why {sent['id']}{self._where}` says:")
        for line in why["lines"]:
            typer.echo(f"    {line}")

    async def _blur(self, office: str) -> None:
        self._step(
            5,
            "Watch yourself blur",
            "You stand in a room. The mirror shows what a stranger sees, before rules are saved.",
        )
        me = await self._http.ask("GET", "/me")
        lon, lat = await self._middle(office)
        fix = {"_type": "location", "lon": lon, "lat": lat, "tst": time.time()}
        topic = f"owntracks/{me['subject']}/tour"
        body = {**fix, "inregions": [office], "topic": topic}
        await self._http.ask("POST", "/owntracks", body=body)
        for rules, says in ((None, "as it is"), (BUILDING, "with “building only”")):
            asked = {} if rules is None else {"rules": rules}
            answer = await self._http.ask("POST", "/me/mirror", body=asked)
            for image in answer["images"][:1]:
                seen = (image["theirs"] or {}).get("properties", {}).get("place", "nothing")
                self._answer(f"{says}: you are in {office}, a stranger sees {seen}")
        await self._http.ask("DELETE", "/me/contexts")

    async def _middle(self, path: str) -> tuple[float, float]:
        answer = await self._http.ask("GET", "/places")
        for feature in answer["features"]:
            shape = feature["geometry"]
            if feature["properties"]["path"] == path and shape is not None:
                ring = shape["coordinates"][0][:-1]
                lon, lat = (sum(corner[axis] for corner in ring) / len(ring) for axis in (0, 1))
                return lon, lat
        return 0.0, 0.0

    async def _border(self) -> None:
        me = await self._http.ask("GET", "/me")
        self._step(
            6,
            "Walk across a border",
            "A courier walks from building to building, each with a broker of its own. The next "
            "broker prepares before it comes, and goes on where the last one stopped: what was "
            "sent meanwhile arrives once and in order.",
            "watch --where \"type = 'courier'\"",
        )
        if not me["node"]:
            self._answer(
                "this service is one broker: `roamcast serve --demo --brokers 3` has borders"
            )
            return
        if not await asyncio.to_thread(self._followed):
            self._answer("nobody crosses here: the courier is a program of the demo")
        seen = await self._http.ask("GET", "/overlay")
        for link in seen["links"]:
            self._answer(
                f"{me['node']} – {link['node']}: {link['state']}, {link['waiting']} waiting"
            )

    def _followed(self) -> bool:
        """Follow the courier until it has crossed; False: there is none, or it stands still."""
        began: int | None = None
        with listening(self._http) as heard:
            for _, known in heard.contexts("type = 'courier'", CROSSED_S):
                if known is None:
                    continue  # between two maps
                began = known["crossed"] if began is None else began
                self._answer(
                    f"{known['place']}, served by {known['broker']}: {known['parcels']} parcels "
                    f"read, {known['missed']} missed, {known['repeated']} twice"
                )
                if known["crossed"] > began:
                    return True
                if heard.seconds > CROSSED_S:
                    break
        return False


@contextmanager
def listening(http: "HttpClient") -> "Iterator[TourSession]":
    """Open a session at the service."""
    from websockets.sync.client import connect

    service = http.hosts.current
    address = f"{service.url.replace('http', 'ws', 1)}/session?device=tour"
    with connect(address, additional_headers=service.headers) as socket:
        yield TourSession(socket)


class TourSession:
    """A session that hears what the service says of a filter, of all brokers' maps."""

    def __init__(self, socket: "ClientConnection") -> None:
        self._socket = socket
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it has listened."""
        return time.monotonic() - self._began

    def say(self, **message: str) -> None:
        """Send a message."""
        self._socket.send(msgspec.json.encode(message).decode())

    def hear(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Give the next message; None if none comes in time."""
        try:
            return msgspec.json.decode(self._socket.recv(timeout_s), type=dict[str, Any])
        except TimeoutError:
            return None

    def numbers(self) -> tuple[int, dict[str, int]]:
        """Give how many changes came before the service's numbers did, and the numbers."""
        self.say(type="numbers", re="n")
        changes = 0
        while True:
            told = self.hear()
            assert told is not None
            if told["type"] == "changes":
                changes += len(told["events"])
            if told["type"] == "error":
                return changes, {"transmissions": 0, "sessions": 0}
            if told["type"] == "numbers":
                return changes, told

    def contexts(self, wanted: str, quiet_s: float) -> Iterator[tuple[str, dict[str, Any] | None]]:
        """Give vids with what is known of them, None once they left, until it is quiet."""
        self.say(type="subscribe", re="wanted", filter=wanted)
        while (told := self.hear(quiet_s)) is not None:
            for one in told.get("features", ()):
                yield one["id"], one["properties"]
            for change in told.get("events", ()):
                data = change["data"]
                yield change["subject"], None if data is None else data["properties"]
