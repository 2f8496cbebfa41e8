"""How does a service start in no time? A process that has everything loaded and waits for its turn.

Run by the keeper (`keeper.py`), which talks to it by lines over its standard input and output:
an order makes it a service, each further line is a probe that its machine answers, the end of the
input means that the keeper is gone, and then the service goes down, too.
"""

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import TYPE_CHECKING

import msgspec

from roamcast.live.config.settings import Settings

if TYPE_CHECKING:
    from roamcast.channels.failover.messages import Alive
    from roamcast.live.service.service import Service


class SpareOrder(msgspec.Struct, frozen=True):
    """What makes a spare the service."""

    settings: Settings
    epoch: int


class SpareReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a spare tells its keeper, one JSON object a line."""

    kind: str
    """`warm`: everything is loaded; `ready`: requests are taken; `alive`: the loop turns."""
    url: str = ""
    token: str = ""
    epoch: int = 0
    newest: int = 0
    """The newest epoch that the service has heard of."""


def say(report: SpareReport) -> None:
    """Tell the keeper something."""
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


async def answer(service: "Service") -> None:
    """Let the service's machine answer the keeper's probes; end when the keeper has."""
    from roamcast.channels.failover.messages import Probe
    from roamcast.model.machine import Received

    def report_alive(alive: "Alive") -> None:
        say(SpareReport("alive", epoch=alive.epoch, newest=alive.newest))

    service.replicas.on_alive = report_alive
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        service.give(Received(service.settings.server.name, Probe()))
    os.kill(os.getpid(), signal.SIGTERM)


def load() -> None:
    """Import what a service needs, and load the compiled code."""
    from litestar import Litestar

    from roamcast.matching import FilterSet
    from roamcast.matching.live import questions

    import_module("roamcast.live.service.running")
    import_module("uvloop")
    Litestar(logging_config=None)  # the first application imports a hundred modules
    FilterSet().warm_up()
    questions.warm_up()
    # Looking through all of this takes as long as the rest of a start (`Collector`).
    gc.collect()
    gc.freeze()


def gently(work: Callable[[], None], niceness: int) -> None:
    """Do something at a lower priority, so that what this machine serves comes first.

    Linux has priorities for each thread: this one's ends with it. A process that lowered its own
    could not raise it again without being root.
    """

    def do() -> None:
        if sys.platform == "linux":  # elsewhere a thread has none, and its number means another
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
        work()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(do).result()


def main(niceness: int) -> int:
    """Load everything at this priority, wait for the order, serve."""
    gently(load, niceness)
    from roamcast.errors import RoamcastError
    from roamcast.live.observe.logs import configure
    from roamcast.live.service.running import run

    say(SpareReport("warm"))
    with open(0, "rb", buffering=0, closefd=False) as unbuffered:  # what follows is not ours yet
        line = unbuffered.readline()
    if not line:
        return 0
    order = msgspec.json.decode(line, type=SpareOrder)
    configure(order.settings.log)
    try:
        run(
            order.settings,
            started=lambda url, token: say(SpareReport("ready", url, token)),
            attend=answer,
            epoch=order.epoch,
        )
    except RoamcastError as error:
        sys.stderr.write(f"roamcast: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
