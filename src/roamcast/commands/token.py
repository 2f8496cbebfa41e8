"""`roamcast token`: make and revoke tokens of a service, and rotate the keys that sign them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from roamcast.live.auth.admission import TokenKeys

app = typer.Typer(help="Make a token for the service; revoke tokens, rotate keys.")

DataOption = Annotated[
    Path | None, typer.Option("--data", envvar="ROAMCAST_DATA", help="The service's data folder.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
DATA = Path("roamcast-data")
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def register(root: typer.Typer) -> None:
    """Add the group to the command line."""
    root.add_typer(app, name="token", rich_help_panel="The service")


@app.callback(invoke_without_command=True)
def make(
    context: typer.Context,
    subject: Annotated[str, typer.Option(help="Owner of the token: a person or a program.")] = "me",
    scope: Annotated[
        list[str] | None,
        typer.Option(help="read, publish, subscribe, cast, deposit or admin; repeat for several."),
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(help="Group for privacy rules; repeat for several.")
    ] = None,
    lifetime: Annotated[str, typer.Option(help="Lifetime, such as 90s, 15m, 8h or 30d.")] = "30d",
    cast_area: Annotated[
        list[str] | None,
        typer.Option(help="Place to which it may cast; repeat for several. Adds the scope cast."),
    ] = None,
    priority_max: Annotated[
        str, typer.Option(help="Highest priority: routine, notice, warning or emergency.")
    ] = "notice",
    past: Annotated[str, typer.Option(help="How far back its casts may reach, as 14d.")] = "14d",
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print a token for the service of this data folder."""
    if context.invoked_subcommand is not None:
        context.obj = data
        return
    import msgspec

    from roamcast.live.auth.authority import NOWHERE, checked
    from roamcast.model.time import format_instant

    folder, seconds = data or DATA, seconds_of("--lifetime", lifetime)
    authority = checked(cast_area or [], priority_max, seconds_of("--past", past))
    authority = authority if cast_area else NOWHERE
    known = _has_keys(folder)
    keys, now = _keys(folder)
    scopes = scope or ["read", "publish", "subscribe"]
    scopes = [*scopes, "cast"] if cast_area and "cast" not in scopes else scopes
    token = keys.issue(subject, scopes, group or [], lifetime_s=seconds, now=now, cast=authority)
    if not known:  # the keys may come first: a service beyond loopback does not start without
        typer.echo(
            f"there is no service in {folder} yet: made keys for it; "
            f"only `roamcast serve --data {folder}` will accept this token",
            err=True,
        )
    if not json:
        typer.echo(token)
        return
    grant = keys.check(token, now)
    printed = {
        "token": token,
        "id": grant.token_id,
        "subject": grant.subject,
        "scopes": grant.scopes,
        "groups": sorted(grant.groups),
        "expires": format_instant(grant.expires_us),
        "cast_areas": grant.cast.areas,
    }
    typer.echo(msgspec.json.encode(printed).decode())


@app.command("rotate")
def rotate(
    context: typer.Context,
    at_once: Annotated[bool, typer.Option(help="Also end every existing token at once.")] = False,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Sign with a new key; existing tokens stay valid until they expire."""
    keys, now = _existing(data or context.obj)
    _print("key", keys.rotate(now, at_once=at_once), json=json)


@app.command("revoke")
def revoke(
    context: typer.Context,
    token: Annotated[str, typer.Argument(help="The token, or its id.")],
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Refuse a token from now on, and end its open connections."""
    keys, now = _existing(data or context.obj)
    _print("revoked", keys.revoke(token, now), json=json)


def _keys(folder: Path) -> "tuple[TokenKeys, int]":
    import time

    from roamcast.live.auth.admission import TokenKeys

    return TokenKeys.open(folder), time.time_ns() // 1000


def _has_keys(folder: Path) -> bool:
    from roamcast.live.config.settings import KEY_FILE

    return (folder / KEY_FILE).is_file()


def _existing(folder: Path | None) -> "tuple[TokenKeys, int]":
    """Open the keys of a service; there is nothing to rotate or revoke where there are none."""
    from roamcast.errors import MissingError

    folder = folder or DATA
    if not _has_keys(folder):
        raise MissingError(f"there is no service in {folder}: name its data folder with --data")
    return _keys(folder)


def _print(name: str, value: str, *, json: bool) -> None:
    import msgspec

    typer.echo(msgspec.json.encode({name: value}).decode() if json else f"{name} {value}")


def seconds_of(option: str, text: str) -> int:
    """Read a time such as 8h."""
    from roamcast.errors import InputError

    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not number.isdecimal():
        raise InputError(f"{option} takes a number with s, m, h or d such as 8h, not {text!r}")
    return int(number) * _UNITS[unit]
