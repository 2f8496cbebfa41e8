"""`roamcast serve`: run the live service, optionally with a simulated campus."""

import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def register(root: typer.Typer) -> None:
    """Add the command to the command line."""
    root.command("serve", rich_help_panel="The service")(serve)


def serve(
    settings_file: Annotated[
        Path | None,
        typer.Option("--settings", help="Settings, a TOML file (docs/configuration.md)."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 lets the system choose.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of keys, store and journal.")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Add a simulated campus.")] = False,
    brokers: Annotated[
        int, typer.Option(help="With --demo: so many nodes, one for each building.")
    ] = 1,
    people: Annotated[int, typer.Option(help="People on the simulated campus.")] = 300,
    json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
) -> None:
    """Run the service: maps and standing queries over HTTP, WebSocket, SSE, UDP and NATS.

    It listens on loopback unless TLS is configured, prints its address and a token when it is
    ready, and stops cleanly on Ctrl-C or SIGTERM.
    """
    from roamcast.errors import SettingsError
    from roamcast.live.config.settings import Settings, load_settings, with_server
    from roamcast.live.observe.logs import configure

    settings = load_settings(settings_file) if settings_file is not None else Settings()
    settings = with_server(settings, host=host, port=port, data=None if data is None else str(data))
    if settings.cluster.replicas:
        raise SettingsError("[cluster] names replicas: start each of them with `roamcast keep`")
    configure(settings.log)
    if brokers != 1:
        _serve_brokers(settings, brokers, people, port=port, demo=demo, json=json)
        return
    from roamcast.live.service.running import run

    beside: list[Any] = []
    places = None
    if demo:
        settings = _with_archive(settings)
        from roamcast.commands._demo import campus

        # Without a trusted node in this service everybody is published by one program.
        keys_in = Path(settings.server.data) if settings.identity.node else None
        places, move = campus(people, keys_in)
        beside.append(move)

    def started(url: str, token: str) -> None:
        _print_address(url, token, settings.server.data, demo=demo, json=json)

    run(settings, started=started, beside=beside, places=places)


def _serve_brokers(
    settings: Any, count: int, people: int, *, port: int | None, demo: bool, json: bool
) -> None:
    """Run several nodes as processes."""
    from roamcast.commands import _demo_brokers as several
    from roamcast.errors import SettingsError

    if not demo:
        raise SettingsError("--brokers needs --demo: each node of your own has its own settings")
    data = settings.server.data

    def show(nodes: Any) -> None:
        first = nodes[0]
        typer.echo(f"{count} brokers, linked with each other:\n{several.listed(nodes)}\n")
        _print_address(first.url, first.token, data, demo=True, json=False)

    def describe(nodes: Any) -> None:
        import msgspec

        first = nodes[0]
        told = {"url": first.url, "token": first.token, "nodes": several.described(nodes)}
        typer.echo(msgspec.json.encode(told))
        sys.stdout.flush()

    if port is None:
        ports = [settings.server.port]
    else:
        ports = [port + number for number in range(count)] if port else []
    several.run(
        Path(data), count, ports, people,
        first_ready=None if json else show, all_ready=describe if json else None,
    )  # fmt: skip


def _with_archive(settings: Any) -> Any:
    """Let the demo's past go into an archive after an hour, unless the settings say otherwise."""
    from msgspec.structs import replace

    if settings.past.archive:
        return settings
    place = str(Path(settings.server.data) / "archive")
    return replace(settings, past=replace(settings.past, archive=place, store_hours=1.0))


def _program() -> str:
    return "roamcast" if shutil.which("roamcast") else sys.argv[0]


def _print_address(url: str, token: str, data: str, *, demo: bool, json: bool) -> None:
    """Print the address, a token and commands to try."""
    if json:
        import msgspec

        typer.echo(msgspec.json.encode({"url": url, "token": token}))
        sys.stdout.flush()
        return
    program = _program()
    where = "" if data == "roamcast-data" else f" --data {data}"
    example = "within(place, 'campus/b1')" if demo else "true"
    casts = _cast_commands(program, where) if demo else ""
    tour = f"  {program} tour{where}\n" if demo else ""
    typer.echo(
        f"Roamcast is ready at {url}\n"
        f"token: {token}\n\n"
        f"Open {url} in a browser, and give it the token.\n\n"
        "Or try, in another terminal:\n"
        f"{tour}"
        f'  {program} who --where "{example}"{where}\n'
        f'  {program} watch --where "{example}"{where}\n'
        f'  curl -N -H "Authorization: Bearer {token}" {url}/changes\n'
        f"{casts}\n"
        "Ctrl-C stops it."
    )
    sys.stdout.flush()


def _cast_commands(program: str, where: str) -> str:
    """Give a cast to who has been somewhere since now, and whose inbox may show it."""
    import time

    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    during = f"overlaps(time, INTERVAL('{since}', '$(date -u +%FT%TZ)'))"
    return (
        "In a minute, write to everybody who has been on the campus since now, and read it:\n"
        f"  {program} cast --where \"within(place, 'campus') AND {during}\" "
        f'"You were here, and nobody knows who you are"{where}\n'
        f"  {program} inbox --as visitor-0001{where}\n"
    )
