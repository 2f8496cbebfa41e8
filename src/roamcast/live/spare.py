"""How does a service start in no time? A process that has everything loaded and waits for its turn.

Run by the keeper (`live.keeper`), which talks to it by lines over its standard input and output:
the settings make it a service, each further line asks whether it lives, the end of the input means
that the keeper is gone, and then the service goes down, too.
"""

import asyncio
import os
import signal
import sys
from typing import Any

import msgspec


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a spare tells its keeper, one JSON object a line."""

    kind: str
    """`warm`: everything is loaded; `ready`: requests are taken; `alive`: the loop turns."""
    url: str = ""
    token: str = ""


def say(said: Said) -> None:
    """Tell the keeper something."""
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()


async def answer(url: str, token: str) -> None:
    """Answer the keeper's questions in the service's own loop; end when the keeper has."""
    del url, token
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        say(Said("alive"))
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Load everything, wait for the settings, serve."""
    from roamcast.errors import RoamcastError
    from roamcast.live.logs import configure
    from roamcast.live.running import run
    from roamcast.live.settings import Settings
    from roamcast.matching import FilterSet

    FilterSet().warm_up()
    say(Said("warm"))
    with open(0, "rb", buffering=0, closefd=False) as unbuffered:  # what follows is not ours yet
        line = unbuffered.readline()
    if not line:
        return 0
    settings = msgspec.json.decode(line, type=Settings)
    configure(settings.log)
    beside: list[Any] = [answer]
    try:
        run(settings, started=lambda url, token: say(Said("ready", url, token)), beside=beside)
    except RoamcastError as error:
        sys.stderr.write(f"roamcast: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
