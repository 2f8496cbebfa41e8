"""`roamcast keep`: the live service under a watchdog that restarts it."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer


def register(root: typer.Typer) -> None:
    """Add the command to the command line."""
    root.command("keep", rich_help_panel="The service")(keep)


def keep(
    settings_file: Annotated[
        Path | None, typer.Option("--settings", help="A TOML file (docs/configuration.md).")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 lets the system choose.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder for keys, store and journal.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Which of [cluster.replicas] this one is.")
    ] = None,
    spare: Annotated[
        bool, typer.Option(help="Keep a second process loaded, so that a restart is immediate.")
    ] = True,
    json: Annotated[
        bool, typer.Option("--json", help="Print the address as JSON, at every start.")
    ] = False,
) -> None:
    """Run the service under a watchdog, which restarts it if it exits or stops answering.

    Takes the options of `roamcast serve`. Ctrl-C or SIGTERM end both. With several hosts in the
    settings, the service runs on one of them, and another takes over if that host fails.
    """
    import asyncio

    import msgspec

    from roamcast.live.cluster.keeper import Keeper
    from roamcast.live.config.settings import (
        Settings,
        check_cluster,
        check_listening,
        load_settings,
        with_server,
    )
    from roamcast.live.observe.logs import configure

    settings = load_settings(settings_file) if settings_file is not None else Settings()
    folder = None if data is None else str(data)
    settings = with_server(settings, host=host, port=port, data=folder, name=name)
    check_cluster(settings)
    check_listening(settings.server)
    configure(settings.log)

    def ready(url: str, token: str, pid: int) -> None:
        said = msgspec.json.encode({"url": url, "token": token, "pid": pid}).decode()
        say(said if json else f"Roamcast is ready at {url}, under a watchdog; Ctrl-C ends it")

    async def run() -> None:
        await Keeper(settings, ready=ready, spare=spare).run()

    asyncio.run(run())


def say(line: str) -> None:
    """Print a line; whether somebody still reads it is no reason to end a service."""
    with suppress(OSError):
        typer.echo(line)
        sys.stdout.flush()
