"""`roamcast inbox`: read the mail of a person, opened with their own keys."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roamcast.commands._service import DataOption, JsonOption, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from roamcast.client.inbox import MailInbox, OpenedMail
    from roamcast.transport.address import ServiceAddress

DATA = Path("roamcast-data")


def register(root: typer.Typer) -> None:
    """Add the command to the command line."""
    root.command("inbox", rich_help_panel="The map")(inbox)


def inbox(
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more mail.")] = False,
    person: Annotated[
        str | None,
        typer.Option("--as", help="Person of the service on this machine, such as visitor-0001."),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="Key store of the person; by default one in their home.")
    ] = None,
    trust: Annotated[
        str | None, typer.Option(help="Address of the trusted node; by default the service.")
    ] = None,
    language: Annotated[str, typer.Option(help="Language of alerts that have several.")] = "en",
    cap: Annotated[
        bool, typer.Option("--cap", help="Print alerts as they came, CAP 1.2, and nothing else.")
    ] = False,
    keep: Annotated[bool, typer.Option(help="Show the same mail again next time.")] = True,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Read your mail: sealed at the service, forwarded by the trusted node, opened here.

    The token has your name and goes to the trusted node. Its address and the token come from
    ROAMCAST_URL and ROAMCAST_TOKEN, or from the data folder of a service on this machine.
    """

    def shown(mail: "OpenedMail") -> str:
        if cap:
            return _as_cap(mail)
        return _as_json(mail, language) if json else _as_text(mail, language)

    quiet = json or cap
    run(_show(inbox_of(data, person, keys, trust), shown, follow=follow, keep=keep, quiet=quiet))


def inbox_of(
    data: Path | None, person: str | None, keys: Path | None, trust: str | None
) -> "MailInbox":
    """Open a person's inbox: their key store, and the way to their trusted node."""
    from roamcast.client.inbox import MailInbox
    from roamcast.client.own_vids import keys_path
    from roamcast.identity.key_store import KeyStore, store_of
    from roamcast.transport.driver import wall_clock
    from roamcast.transport.http import HttpClient

    address = trusted_address(data, person, trust)
    if person is not None and keys is None:
        keys = store_of((data or DATA) / "people", person)
    store = KeyStore.open(keys or keys_path(address))
    return MailInbox(store, HttpClient(address), wall_clock())


def trusted_address(data: Path | None, person: str | None, trust: str | None) -> "ServiceAddress":
    """Find the trusted node, with a token that has the person's name."""
    from roamcast.transport.address import ServiceAddress, check_url, find

    address = find(data=data)
    if person is not None:
        address = ServiceAddress(address.url, _token_of(data or DATA, person))
    return address if trust is None else ServiceAddress(check_url(trust), address.token)


def _token_of(folder: Path, person: str) -> str:
    """Make a token for a person, as who owns the data folder may."""
    import time

    from roamcast.errors import MissingError
    from roamcast.live.auth.admission import TokenKeys
    from roamcast.live.config.settings import KEY_FILE

    if not (folder / KEY_FILE).is_file():
        raise MissingError(f"--as needs the service's own data folder: {folder} has no keys")
    now = time.time_ns() // 1000
    return TokenKeys.open(folder).issue(person, ("subscribe",), lifetime_s=86_400, now=now)


async def _show(
    inbox: "MailInbox",
    shown: "Callable[[OpenedMail], str]",
    *,
    follow: bool,
    keep: bool,
    quiet: bool,
) -> None:
    import sys

    count = 0
    async for mail in inbox.mails(follow=follow, keep=keep):
        text = shown(mail)
        if text:
            typer.echo(text)
            sys.stdout.flush()
        count += 1
    if not count and not quiet:
        typer.echo("no mail")


def _as_cap(mail: "OpenedMail") -> str:
    from roamcast.model.alerts import MEDIA_TYPE

    letter = mail.letter
    return letter.payload.decode("utf-8", "replace") if letter.media_type == MEDIA_TYPE else ""


def _as_json(mail: "OpenedMail", language: str) -> str:
    import msgspec

    from roamcast.model.time import format_instant

    told = {
        "cast": mail.cast,
        "sender": mail.sender,
        "kind": mail.kind,
        "text": mail.text_in(language),
        "media_type": mail.letter.media_type,
        "reason": mail.letter.reason,
        "receipt": mail.receipt,
        "signed_by": mail.letter.node,
        "doubt": mail.doubt,
        "expires": format_instant(mail.letter.expires_us) if mail.letter.expires_us else None,
        "arrived": format_instant(mail.arrived_us),
        "vid": mail.vid,
        "problem": mail.problem,
    }
    return msgspec.json.encode(told).decode()


def _as_text(mail: "OpenedMail", language: str) -> str:
    from roamcast.model.time import format_instant

    arrived = format_instant(mail.arrived_us).partition(".")[0].rstrip("Z").replace("T", " ")
    lines = [f"{arrived} UTC  from {mail.sender}  ({mail.kind or 'text'})  {mail.cast}"]
    lines.append(f"  {mail.problem or mail.text_in(language)}")
    if mail.receipt:
        signed = f"signed by {mail.letter.node}" if not mail.doubt else mail.doubt
        lines.append(f"  you get this because {mail.receipt}  ({signed})")
        lines.append(f"  stop such messages: roamcast reach --stop {shlex.quote(mail.sender)}")
    return "\n".join(lines)
