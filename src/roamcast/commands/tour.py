"""`roamcast tour`: the six steps of the page's tour in a terminal, on a running service.

Every step asks the service and says what it answered; the command that does the same is shown
first, so that it can be typed again.
"""

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from roamcast.commands._service import DataOption, run

if TYPE_CHECKING:
    from roamcast.transport.http import HttpClient

BACK_S: Final = 600
SETTLED_S: Final = 150
"""After its begin, a demo's first meeting has filled the hall."""

WATCHED_S: Final = 8.0
LOOKS: Final = 20
LOOK_S: Final = 0.5
"""How often and how long a cast is awaited before it is explained."""

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
        hall = kinds.get("hall") or next(iter(kinds.values()), "")
        lab = kinds.get("lab") or hall
        office = kinds.get("office") or hall
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
            if known["kind"] not in ("campus", "venue", "yard", "building", "floor", "corridor"):
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
            "who --where \"type = 'person'\"",
        )
        people = await self._http.ask("GET", "/count", {"filter": "type = 'person'"})
        things = await self._http.ask("GET", "/count", {"filter": "type <> 'person'"})
        self._answer(f"{people['count']} people and {things['count']} things are on the map")

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
        import msgspec
        from websockets.sync.client import connect

        service = self._http.hosts.current
        address = f"{service.url.replace('http', 'ws', 1)}/session?device=tour"
        with connect(address, additional_headers=service.headers) as socket:

            def numbers() -> tuple[int, dict[str, int]]:
                """Give how many changes came before the numbers did, and the numbers."""
                socket.send('{"type":"numbers","re":"n"}')
                changes = 0
                while True:
                    told = msgspec.json.decode(socket.recv())
                    if told["type"] == "changes":
                        changes += len(told["events"])
                    if told["type"] == "error":
                        return changes, {"transmissions": 0, "sessions": 0}
                    if told["type"] == "numbers":
                        return changes, told

            asked = {"type": "subscribe", "re": "hall", "filter": wanted}
            socket.send(msgspec.json.encode(asked).decode())
            _, before = numbers()
            time.sleep(WATCHED_S)
            changes, after = numbers()
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
        question = {"filter": f"within(place, '{hall}')", "datetime": at}
        there = await self._http.ask("GET", "/count", question)
        self._answer(f"{there['count']} were in {hall}, {(now - moment) // 60} minutes ago")
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
            "Who walks over is handed from one broker to the next: what came meanwhile waits, is "
            "counted, and arrives once and in order.",
            "brokers",
        )
        if not me["node"]:
            self._answer(
                "this service is one broker: `roamcast serve --demo --brokers 3` has borders"
            )
            return
        seen = await self._http.ask("GET", "/overlay")
        for link in seen["links"]:
            self._answer(
                f"{me['node']} – {link['node']}: {link['state']}, {link['waiting']} waiting"
            )
