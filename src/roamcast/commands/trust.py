"""`roamcast trust`: run a trusted node as its own process."""

import sys
from pathlib import Path
from typing import Annotated

import typer

DATA = Path("trust-data")


def register(root: typer.Typer) -> None:
    """Add the command to the command line."""
    root.command("trust", rich_help_panel="The service")(trust)


def trust(
    settings_file: Annotated[
        Path | None,
        typer.Option("--settings", help="Settings, a TOML file (docs/configuration.md)."),
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="Name of the node, which its vids carry.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int, typer.Option(help="Port; 0 lets the system choose.")] = 8090,
    data: Annotated[Path, typer.Option(help="Folder of its keys and database.")] = DATA,
    key: Annotated[
        bool, typer.Option("--key", help="Print the public key of the node in --data; make one.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
) -> None:
    """Run a trusted node: it knows who people are, and never where they are or what is said.

    People draw their vids from it and read their mail there. Services accept its credentials by the
    lines that it prints, and deposit mail with a token of the scope `deposit`. Ctrl-C or SIGTERM
    ends it cleanly.
    """
    if key:
        _show_key(data)
        return
    import msgspec

    from roamcast.live.config.settings import Settings, load_settings, with_server
    from roamcast.live.observe.logs import configure
    from roamcast.live.trust.app import run

    settings = load_settings(settings_file) if settings_file is not None else Settings()
    settings = with_server(settings, host=host, port=port, data=str(data))
    if node is not None:
        identity = msgspec.structs.replace(settings.identity, node=node)
        settings = msgspec.structs.replace(settings, identity=identity)
    _check(settings.identity.node)
    configure(settings.log)

    def started(greeting: dict[str, str]) -> None:
        if json:
            typer.echo(msgspec.json.encode(greeting))
        else:
            typer.echo(_text(greeting, data))
        sys.stdout.flush()

    run(settings, started=started)


def _show_key(data: Path) -> None:
    from roamcast.identity.credentials import public_key
    from roamcast.live.trust.host import KEY_FILE, load_private
    from roamcast.overlay.links.proof import key_text

    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    typer.echo(key_text(public_key(load_private(data / KEY_FILE))))


def _check(node: str) -> None:
    from roamcast.errors import SettingsError
    from roamcast.live.config.settings import parse_settings

    if not node:
        raise SettingsError("a trusted node needs a name: --node trust.example.org")
    parse_settings(f'[identity]\nnode = "{node}"', "--node")


def _text(greeting: dict[str, str], data: Path) -> str:
    name, url = greeting["node"], greeting["url"]
    return (
        f"The trusted node {name} is ready at {url}\n\n"
        "Let a service accept its people, and deposit their mail, in its settings:\n"
        "  [identity]\n"
        '  node = ""\n'
        f'  accept = {{ "{name}" = "{greeting["key"]}" }}\n'
        f'  [identity.mail."{name}"]\n'
        f'  url = "{url}"\n'
        '  token_file = "deposit.token"\n\n'
        "Make that token, and one for a person:\n"
        f"  roamcast token --data {data} --subject broker --scope deposit > deposit.token\n"
        f"  roamcast token --data {data} --subject ada --scope subscribe\n\n"
        "Ctrl-C ends it."
    )
