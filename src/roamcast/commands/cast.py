"""`roamcast cast`, `roamcast why`: write to everybody who was, is or will be somewhere."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roamcast.commands._service import (
    DataOption,
    JsonOption,
    TemplateOption,
    ValuesOption,
    WhereOption,
    run,
    wanted,
)
from roamcast.commands.inbox import inbox_of

if TYPE_CHECKING:
    from roamcast.client.casting import CastConsent, Casting, CastPreview, CastProgress
    from roamcast.client.inbox import MailInbox, OpenedMail

CastArgument = Annotated[str, typer.Argument(help="Id of the cast.")]


def register(root: typer.Typer) -> None:
    """Add the commands to the command line."""
    root.command("cast", rich_help_panel="The map")(cast)
    root.command("why", rich_help_panel="The map")(why)
    root.command("consent", rich_help_panel="The map")(consent)


def cast(
    text: Annotated[str, typer.Argument(help="What to say; - reads it from the input.")] = "",
    where: WhereOption = None,
    template: TemplateOption = None,
    values: ValuesOption = None,
    preview: Annotated[
        bool, typer.Option("--preview", help="Only say about how many it would reach.")
    ] = False,
    kind: Annotated[str, typer.Option(help="Kind, which people may refuse.")] = "text",
    priority: Annotated[
        str, typer.Option(help="routine, notice, warning or emergency.")
    ] = "routine",
    expires: Annotated[
        str | None, typer.Option(help="Last moment that counts, or a time from now such as 8h.")
    ] = None,
    cap: Annotated[
        Path | None,
        typer.Option(help="Send this alert (CAP 1.2, XML), to its own area or to --where."),
    ] = None,
    cancel: Annotated[str | None, typer.Option(help="Cancel this cast instead.")] = None,
    update: Annotated[
        str | None, typer.Option(help="Update this cast: write to those whom it has reached.")
    ] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Write to everybody who satisfies a filter: was there, is there, or will be.

    Nobody learns who they are. The token needs the scope cast and a granted place
    (roamcast token --cast-area); counts have noise, and small ones are not told.
    """
    from roamcast.errors import InputError

    casting = _casting(data)
    if cancel is not None:
        run(casting.cancel(cancel))
        _print({"cancelled": cancel}, f"cancelled {cancel}", json=json)
        return
    text = sys.stdin.read() if text == "-" else text
    if update is not None:
        name = run(casting.update(update, text, kind=kind))
        _print({"id": name}, f"updated {update} by {name}", json=json)
        return
    if cap is not None:
        _show_alert(casting, cap, where, expires, json=json)
        return
    if where is None and template is None:
        raise InputError("a cast needs --where: a filter that names a place")
    filter_ = wanted(where, template, values)
    if preview:
        _show_preview(run(casting.preview(filter_, text or "?")), json=json)
        return
    sent = run(casting.cast(filter_, text, kind=kind, priority=priority, **_expiry(expires)))
    _show_sent(sent, json=json)


def _show_alert(
    casting: "Casting", path: Path, where: str | None, expires: str | None, *, json: bool
) -> None:
    from roamcast.errors import InputError

    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the alert: {error.strerror}", source=str(path)) from None
    sent = run(casting.send_alert(data, where or "", **_expiry(expires)))
    if isinstance(sent, str):
        _print({"id": sent}, f"sent {sent} to those whom the alert before it reached", json=json)
    else:
        _show_sent(sent, json=json)


def why(
    cast: CastArgument,
    journal: Annotated[
        list[Path] | None,
        typer.Option(help="Journal of a node, also of a service that is down; may be repeated."),
    ] = None,
    mail: Annotated[
        str | None,
        typer.Option(help="Pseudonym that a mail of yours came to, or any: why you have it."),
    ] = None,
    person: Annotated[
        str | None,
        typer.Option("--as", help="With --mail: person of the service on this machine."),
    ] = None,
    keys: Annotated[Path | None, typer.Option(help="With --mail: key store of the person.")] = None,
    trust: Annotated[
        str | None, typer.Option(help="With --mail: address of the trusted node.")
    ] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Say why a cast reached whom it did: which node, filter, rule or limit decided.

    The service tells its sender. Who got it asks with --mail: only they can open the receipt.
    Operators read what each node did, step by step, from journals; those name nobody.
    """
    if mail is not None:
        _show_mail(cast, mail, inbox_of(data, person, keys, trust), json=json)
        if not journal:
            return
    if journal:
        _show_steps(cast, journal, json=json)
        return
    told = run(_casting(data).why(cast))
    lines = [f"{told.id}: {told.filter}", *(f"  {line}" for line in told.lines)]
    _print(told, "\n".join(lines), json=json)


def _show_mail(cast: str, mail: str, inbox: "MailInbox", *, json: bool) -> None:
    """Print why a person has a mail, from its receipt."""
    from roamcast.errors import NotFoundError
    from roamcast.model.time import MICROSECONDS, format_instant

    async def find() -> "OpenedMail | None":
        async for one in inbox.mails(follow=False, keep=True):
            if one.cast == cast and mail in ("any", one.vid):
                return one
        return None

    found = run(find())
    if found is None:
        raise NotFoundError(
            f"you have no mail of the cast {cast[:60]!r}: it did not reach you, or you removed it; "
            "`roamcast reach` shows whom you refuse"
        )
    letter, lines = found.letter, []
    took_s = (found.arrived_us - letter.sent_us) / MICROSECONDS
    when = (
        f"{took_s:.1f} s after it was sent" if letter.sent_us else "when it was sent is not known"
    )
    late = ", late: your pseudonym came, or a mailbox or node was found, only then"
    lines.append(f"delivered at {format_instant(found.arrived_us)}, {when}" + late * (took_s > 60))
    lines.append(f"to your pseudonym {found.vid}")
    if found.problem:
        lines.append(f"it can not be opened: {found.problem}")
    else:
        lines.append(f"because {found.receipt}")
        lines.append(f"decided and sealed by the node {letter.node or 'that sent it'}")
        lines.append(found.doubt or "its receipt is signed, and the signature holds")
    told = {"id": cast, "vid": found.vid, "filter": letter.reason, "lines": lines}
    _print(told, "\n".join([f"{cast}: {letter.reason}", *(f"  {one}" for one in lines)]), json=json)


def consent(
    cast: Annotated[
        str | None, typer.Argument(help="Id of the cast; without one, list them.")
    ] = None,
    refuse: Annotated[
        bool, typer.Option("--refuse", help="Refuse it, or take your own back.")
    ] = False,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """List the casts that wait for a second person's consent, or consent to one.

    Casts to many wait where the setting casts.consent_above says so. Whoever might send such a cast
    may consent to it, but for its sender.
    """
    casting = _casting(data)
    if cast is None:
        waiting = run(casting.consents())
        lines = [line for one in waiting for line in _consent_lines(one)]
        _print(waiting, "\n".join(lines) or "nothing waits for consent", json=json)
    elif refuse:
        run(casting.refuse(cast))
        _print({"refused": cast}, f"refused {cast}: nothing was sent", json=json)
    else:
        _show_sent(run(casting.consent(cast)), json=json)


def _consent_lines(request: "CastConsent") -> list[str]:
    about = f"about {request.about}" if request.about else "an unknown number of"
    what = "yours: another person consents" if request.own else f"roamcast consent {request.id}"
    what_for = f"({request.kind}, {request.priority})"
    return [
        f"{request.id}  from {request.sender}  {what_for}  until {request.until}",
        f"  to {about} pseudonyms, {request.tense}: {request.filter}",
        f"  {request.text}",
        f"  {what}",
    ]


def _show_steps(cast: str, folders: list[Path], *, json: bool) -> None:
    """Print the steps of a cast at all nodes whose journals are given, in their order."""
    import msgspec

    from roamcast.errors import NotFoundError
    from roamcast.journal.segments import read_entries
    from roamcast.model.records import CastStep
    from roamcast.model.time import format_instant

    steps = [
        (time_us, node, record)
        for folder in folders
        for time_us, node, record in read_entries(folder)
        if isinstance(record, CastStep) and record.cast == cast
    ]
    steps.sort(key=lambda step: step[:2])
    if not steps:
        raise NotFoundError(f"no journal here tells of a cast {cast[:60]!r}")
    for time_us, node, record in steps:
        at = format_instant(time_us)
        if json:
            told = {"time": at, "node": node, **msgspec.structs.asdict(record)}
            typer.echo(msgspec.json.encode(told).decode())
            continue
        more = f" {record.number} pseudonyms" if record.number else ""
        peer = f" {record.peer}" if record.peer else ""
        typer.echo(f"{at}  {node}  {record.step}{peer}{more}")


def _casting(data: Path | None) -> "Casting":
    from roamcast.client.casting import Casting
    from roamcast.transport.address import find
    from roamcast.transport.http import HttpClient

    return Casting(HttpClient(find(data=data)))


def _expiry(expires: str | None) -> dict[str, Any]:
    from roamcast.commands.token import seconds_of

    if expires is None:
        return {}
    if expires[:-1].isdecimal():
        return {"lifetime_s": float(seconds_of("--expires", expires))}
    return {"expires": expires}


def _print(value: Any, text: str, *, json: bool) -> None:
    import msgspec

    typer.echo(msgspec.json.encode(value).decode() if json else text)


def _show_sent(sent: "CastProgress", *, json: bool) -> None:
    if sent.state == "pending":
        lines = (
            f"{sent.id} waits for a second person's consent until {sent.expires}; nothing is sent\n"
            f"  roamcast consent {sent.id}   by somebody else sends it"
        )
        _print(sent, lines, json=json)
        return
    lines = (
        f"sent {sent.id} ({sent.tense}); it expires at {sent.expires}\n"
        f"  roamcast why {sent.id}      says whom it reached and why\n"
        f"  roamcast cast --cancel {sent.id}   stops it"
    )
    _print(sent, lines, json=json)


def _show_preview(found: "CastPreview", *, json: bool) -> None:
    def about(count: int) -> str:
        return f"about {count}" if count else "too few to be told, perhaps nobody"

    lines = [f"{found.tense}; pseudonyms, of which a person may have several"]
    if found.tense in ("historic", "hybrid"):
        lines.append(f"  were there: {about(found.past.about)}")
        lines += [f"    {one.place}: about {one.about}" for one in found.past.places]
    if found.tense == "present":
        lines.append(f"  are there: {about(found.present.about)}")
        lines += [f"    {one.place}: about {one.about}" for one in found.present.places]
    if found.future is not None:
        lines.append(f"  may come, by who is there now: {about(found.future)}")
        lines += [f"    {one.place}: about {one.about}" for one in found.future_places]
    _print(found, "\n".join(lines), json=json)
