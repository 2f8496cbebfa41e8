"""`roamcast relay`: serves clients on unicast links, on behalf of a service."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def register(root: typer.Typer) -> None:
    """Add the command to the command line."""
    root.command("relay", rich_help_panel="The service")(relay)


def relay(
    url: Annotated[
        str | None, typer.Argument(help="The service's address; ROAMCAST_URL without one.")
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where clients connect; port 0: any free one.")
    ] = "127.0.0.1:8081",
    token: Annotated[
        str | None,
        typer.Option(
            help="The relay's own token; better in ROAMCAST_TOKEN, which `ps` does not show."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The data folder of a service on this machine.")
    ] = None,
    settings_file: Annotated[
        Path | None,
        typer.Option("--settings", help="A TOML file: TLS, limits, log (docs/configuration.md)."),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="A PEM file with the CA of the service's certificate.")
    ] = None,
    interface: Annotated[
        str, typer.Option(help="Address of the interface that UDP multicast comes by.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
) -> None:
    """Serve clients on unicast links: receive channels once, and filter them for each client.

    Clients connect as to the service, with their own tokens. A relay needs an admin's token, or one
    of a subject named in the service's `channels.relays`. Ctrl-C or SIGTERM ends it cleanly.
    """
    host, port = _where(listen)
    from roamcast.live.config.settings import Settings, load_settings, with_server
    from roamcast.live.observe.logs import configure
    from roamcast.live.relay.app import run
    from roamcast.transport.address import find

    settings = load_settings(settings_file) if settings_file is not None else Settings()
    settings = with_server(settings, host=host, port=port)
    configure(settings.log)
    tls = None
    if ca is not None:
        import ssl

        from roamcast.errors import SettingsError

        try:
            tls = ssl.create_default_context(cafile=str(ca))
        except OSError as error:
            raise SettingsError(f"no certificates can be read: {error}", source=str(ca)) from None

    def started(where: str) -> None:
        if json:
            import msgspec

            typer.echo(msgspec.json.encode({"url": where}))
        else:
            typer.echo(f"The relay is ready at {where}\nCtrl-C ends it.")
        sys.stdout.flush()

    run(find(url, token, data=data), settings, started=started, interface=interface, tls=tls)


def _where(listen: str) -> tuple[str, int]:
    from roamcast.errors import InputError

    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise InputError(f"--listen takes HOST:PORT such as 127.0.0.1:8081, not {listen[:100]!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)
