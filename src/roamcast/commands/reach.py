"""`roamcast reach`: say who may write to you, what, into how much of your past, and when."""

import re
from typing import TYPE_CHECKING, Annotated, Final

import typer

from roamcast.commands._service import DataOption, JsonOption, run

if TYPE_CHECKING:
    from roamcast.client.reaching import Reaching
    from roamcast.identity.rules import Hours
    from roamcast.identity.trusted.reach import Reach

_SPAN: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)")
_ZONE: Final = re.compile(r"([+-])([01]\d):([0-5]\d)")


def register(root: typer.Typer) -> None:
    """Add the command to the command line."""
    root.command("reach", rich_help_panel="The map")(reach)


def reach(
    stop: Annotated[list[str] | None, typer.Option(help="No more mail of this sender.")] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="Mail of this stopped sender again.")
    ] = None,
    sender: Annotated[
        list[str] | None, typer.Option(help="Only these may write; * for everyone.")
    ] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only these kinds; * for all.")] = None,
    past_hours: Annotated[
        float | None, typer.Option(min=0, help="How far casts may reach into your past.")
    ] = None,
    quiet: Annotated[
        list[str] | None, typer.Option(help="Hours without a push: 22:00-07:00.")
    ] = None,
    zone: Annotated[str, typer.Option(help="Zone of the quiet hours.")] = "+00:00",
    reset: Annotated[bool, typer.Option("--reset", help="Begin with: all, at any time.")] = False,
    person: Annotated[
        str | None, typer.Option("--as", help="Person of the service on this machine.")
    ] = None,
    trust: Annotated[
        str | None, typer.Option(help="Address of the trusted node; by default the service.")
    ] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Read your reach rules, or change those that are named. They hold for all your pseudonyms."""
    import msgspec
    from msgspec import structs

    from roamcast.client.reaching import Reaching
    from roamcast.commands.inbox import trusted_address
    from roamcast.errors import InputError
    from roamcast.identity.trusted.reach import ANYTHING
    from roamcast.transport.http import HttpClient

    hours = tuple(span for text in quiet or () for span in _hours(text, zone))

    def changed(now: "Reach") -> "Reach":
        now = ANYTHING if reset else now
        again = set(allow or ())
        if again & set(stop or ()):
            raise InputError("a sender is either stopped or allowed")
        kept = (one for one in (*now.stopped, *(stop or ())) if one not in again)
        return structs.replace(
            now,
            stopped=tuple(dict.fromkeys(kept)),
            senders=tuple(sender) if sender else now.senders,
            kinds=tuple(kind) if kind else now.kinds,
            past_s=now.past_s if past_hours is None else round(past_hours * 3_600),
            quiet=hours or now.quiet,
        )

    async def ask(asked: "Reaching") -> "Reach":
        now = await asked.rules()
        wanted = changed(now)
        return now if wanted == now else await asked.set(wanted)

    found = run(ask(Reaching(HttpClient(trusted_address(data, person, trust)))))
    typer.echo(msgspec.json.encode(found).decode() if json else _text(found))


def _hours(text: str, zone: str) -> "list[Hours]":
    """Read a span of quiet hours; one over midnight is two."""
    from roamcast.errors import InputError
    from roamcast.identity.rules import MINUTES_A_DAY, Hours

    found, east = _SPAN.fullmatch(text), _ZONE.fullmatch(zone)
    if found is None or east is None:
        raise InputError("quiet hours are such as 22:00-07:00, and a zone such as +01:00")
    begin, end = (int(found[n]) * 60 + int(found[n + 1]) for n in (1, 3))
    offset = (int(east[2]) * 60 + int(east[3])) * (-1 if east[1] == "-" else 1)
    if begin == end or end > MINUTES_A_DAY:
        raise InputError(f"{text} is no span of a day")
    spans = [(begin, end)] if begin < end else [(begin, MINUTES_A_DAY), (0, end)]
    return [
        Hours(start_min=first, end_min=last, offset_min=offset)
        for first, last in spans
        if first < last
    ]


def _text(reach: "Reach") -> str:
    def listed(names: tuple[str, ...], everything: str) -> str:
        return everything if "*" in names else ", ".join(names) or "nobody"

    past = "any time" if reach.past_s is None else f"{reach.past_s / 3_600:g} hours"
    spans = ", ".join(
        f"{one.start_min // 60:02}:{one.start_min % 60:02}-{one.end_min // 60:02}:"
        f"{one.end_min % 60:02}"
        for one in reach.quiet
    )
    lines = [
        f"who may write   {listed(reach.senders, 'everyone')}",
        f"stopped         {', '.join(reach.stopped) or 'nobody'}",
        f"kinds           {listed(reach.kinds, 'all')}",
        f"into the past   {past}",
        f"quiet hours     {spans or 'none'}",
    ]
    return "\n".join(lines)
