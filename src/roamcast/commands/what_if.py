"""`roamcast what-if`: replay a journal with another setting, and count the differences."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roamcast.commands._service import JsonOption

if TYPE_CHECKING:
    from roamcast.live.what_if.comparing import TriedSettings, WhatIfAnswer
    from roamcast.live.what_if.timeline import Window


def register(root: typer.Typer) -> None:
    """Add the command to the command line."""
    root.command("what-if", rich_help_panel="Files and archives")(what_if)


def what_if(
    journal: Annotated[Path, typer.Argument(help="A folder with one broker's journal.")],
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            help="A setting to try: limit_bytes, default_precision, subscribers_min, history_max.",
        ),
    ],
    where: Annotated[str, typer.Option(help="What the watcher asks for, in CQL2.")] = "true",
    begin: Annotated[
        str, typer.Option("--from", help="When the watcher opens the map; else the first record.")
    ] = "",
    end: Annotated[str, typer.Option("--to", help="Until when; else the last record.")] = "",
    places: Annotated[
        Path | None, typer.Option(help="GeoJSON file of the places, for default_precision.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Replay a journal with another setting: what a watcher would have been sent, both ways.

    A real broker lives the time again, once as it was and once with what --set says. The journal
    has what everybody might see, and does not say who has rules of their own: default_precision
    counts for everybody here. `POST /what-if` and the map page ask a running service.
    """
    import msgspec

    from roamcast.channels.server.settings import MapSettings
    from roamcast.errors import InputError
    from roamcast.journal.segments import read_entries, segments_of
    from roamcast.live.what_if.channels import ThresholdSetting, check_segments
    from roamcast.live.what_if.comparing import ReplayTask, answer
    from roamcast.live.what_if.timeline import from_entries
    from roamcast.model.filters import Filter

    tried = _tried(settings)
    Filter.parse(where)  # a mistake is told before anything is read
    segments = segments_of(journal)
    if not segments:
        raise InputError("no journal segments there", source=str(journal))
    if tried.thresholds:
        check_segments(segments)
    entries = list(read_entries(journal))
    hosts = sorted({host for _, host, _ in entries})
    if len(hosts) != 1:
        raise InputError(
            f"the journals of {len(hosts)} hosts: give one broker's", source=str(journal)
        )
    window = _window(entries, begin, end)
    force = MapSettings()
    task = ReplayTask(
        window,
        where,
        from_entries(entries, window),
        tried,
        ThresholdSetting(force.subscribers_min, force.history_max),
        places=b"" if places is None else _read(places),
        segments=[str(path) for path in segments],
    )
    found = answer(task)
    if json:
        typer.echo(msgspec.json.encode(found))
    else:
        _print(found)


def _tried(settings: list[str]) -> "TriedSettings":
    import msgspec

    from roamcast.errors import InputError
    from roamcast.live.what_if.comparing import TriedSettings

    given: dict[str, Any] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set is NAME=VALUE, such as limit_bytes=2000, not {text!r}")
        given[name] = int(value) if value.isdigit() else value
    try:
        return msgspec.convert(given, TriedSettings).check()
    except msgspec.ValidationError as error:
        raise InputError(f"--set: {error}") from None


def _window(entries: list[Any], begin: str, end: str) -> "Window":
    from roamcast.errors import InputError
    from roamcast.model.time import parse_instant

    first = parse_instant(begin) if begin else entries[0][0]
    last = parse_instant(end) if end else entries[-1][0]
    if first >= last:
        raise InputError("--from lies before --to")
    return first, last


def _read(path: Path) -> bytes:
    from roamcast.errors import MissingError

    try:
        return path.read_bytes()
    except OSError as error:
        raise MissingError(f"{path}: {error.strerror}") from None


def _print(found: "WhatIfAnswer") -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table("", "as it was", "as it would have been")
    rows: list[tuple[str, str]] = [
        ("messages to the watcher", "frames"),
        ("bytes", "bytes"),
        ("states in them", "updates"),
        ("contexts shown", "contexts"),
        ("contexts on the map, mean", "mean_contexts"),
        ("from a change to its message, mean ms", "mean_wait_ms"),
        ("the longest, ms", "wait_ms_max"),
    ]
    for name, field in rows:
        shown.add_row(name, *(f"{getattr(one, field):,.10g}" for one in (found.was, found.would)))
    if found.channels is not None:
        both = (found.channels.was, found.channels.would)
        for name, field in (
            ("transmissions on links", "transmissions"),
            ("announcements of channels", "announcements"),
            ("channels at once", "channels_max"),
        ):
            shown.add_row(name, *(f"{getattr(one, field):,}" for one in both))
    Console().print(shown)
    apart = found.differences
    typer.echo(
        f"the maps differed for {apart.seconds:,.1f} s, in {apart.mean_contexts:,.1f} contexts on"
        f" average and {apart.contexts_max:,} at most; {found.steps:,} changes replayed"
    )
