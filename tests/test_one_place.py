"""A wire message and an effect are each added in one place.

As a maintainer would: the package is copied and one edit is made to the copy.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "roamcast"

MESSAGE = '''class Farewell(Message, frozen=True, tag="map.farewell", gc=False):
    """Server to a watchdog: this host goes down on purpose."""


'''
MESSAGE_PROGRAM = """
from roamcast.channels.failover.messages import FAILOVER_PROTOCOL, Farewell
from roamcast.channels.failover.replica_messages import REPLICA_PROTOCOL
from roamcast.model.wire import page_of

for protocol in (FAILOVER_PROTOCOL, REPLICA_PROTOCOL):
    assert protocol.decode(protocol.encode(Farewell())) == Farewell()
    assert "map.farewell" in page_of(protocol)
"""

EFFECT_PROGRAM = """
import asyncio, sys
from pathlib import Path

from roamcast.broker import Broker
from roamcast.live.auth.admission import TokenKeys
from roamcast.live.config.settings import Settings
from roamcast.live.observe.metrics import Metrics
from roamcast.live.service.service import Service
from roamcast.live.store.store import SqliteStore
from roamcast.model.machine import Input, Start


async def main(folder):
    disk = SqliteStore.open(folder / "store.db")
    service = Service(Settings(), disk=disk, keys=TokenKeys.open(folder), metrics=Metrics())
    service.broker.receive = lambda given, now: [Start("lamp", 7)]
    try:
        service.driver.give(Input())
    except AssertionError as error:
        print("refused:", error)
    await service.stop()


asyncio.run(main(Path(sys.argv[1])))
"""


def run(folder: Path, program: str) -> str:
    script = folder / "program.py"
    script.write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(PACKAGE, tmp_path / "roamcast", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.mark.process
def test_a_wire_message_is_a_struct_in_its_protocols_module(copied: Path) -> None:
    path = copied / "roamcast" / "channels" / "failover" / "messages.py"
    text = path.read_text(encoding="utf-8")
    assert text.count("FAILOVER_MESSAGES: Final") == 1
    path.write_text(
        text.replace("FAILOVER_MESSAGES: Final", MESSAGE + "FAILOVER_MESSAGES: Final"), "utf-8"
    )
    run(copied, MESSAGE_PROGRAM)


@pytest.mark.process
def test_an_effect_is_a_line_in_the_drivers_table(copied: Path) -> None:
    assert "nobody carries Start" in run(copied, EFFECT_PROGRAM)
    path = copied / "roamcast" / "live" / "service" / "service.py"
    text = path.read_text(encoding="utf-8")
    line = "                SteppedDown: lambda _: self.on_over(),\n"
    assert text.count(line) == 1
    added = '                Start: lambda effect: print("started", effect.part, effect.epoch),\n'
    text = text.replace(line, line + added)
    text = text.replace("    Send,\n    Store,\n)", "    Send,\n    Start,\n    Store,\n)", 1)
    path.write_text(text, encoding="utf-8")
    assert "started lamp 7" in run(copied, EFFECT_PROGRAM)
