"""After thousands of updates over a bad network every client's view equals the service's.

`roamcast serve` and eight members with the SDK, in processes of their own. Channels go by UDP
multicast between network namespaces that lose, delay, reorder and double datagrams, or by a real
NATS server that is killed and started again in the middle. Half of the members are staff and see
what the others may not.
"""

import re
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.live import namespaces
from tests.live.certificates import write_certificate
from tests.live.members import DEADLINE_S, OBJECTS, PRIVATE, members, wait_until_equal
from tests.live.namespaces import RELAY_FROM, RELAY_TO, SERVER, Namespaces
from tests.nats_server import BINARY, MISSING, NatsServer
from tests.nursery import ROOT
from tests.processes import Child
from tests.running_service import RunningService

pytestmark = pytest.mark.process

UPDATES = [800, pytest.param(10_000, marks=pytest.mark.soak)]
PORT = 5_007
RANGE = "239.192.77.0/29"
ADDRESSES = [f"239.192.77.{number}" for number in range(8)]
WANTED = {
    "ada": "within(place, 'lab')",
    "bob": "within(place, 'lab')",
    "cleo": "place = 'lab/1/a' OR place = 'lab/2/b'",
    "dan": "place = 'lab/1/a'",
    "eve": "within(place, 'lab')",
    "finn": "within(place, 'lab')",
    "gil": "place = 'lab/1/a'",
    "hana": "type = 'person' AND within(place, 'lab/2')",
}
STAFF = ("ada", "cleo", "eve", "gil")
HALVES = [("ada", "bob", "cleo", "dan"), ("eve", "finn", "gil", "hana")]
SETTINGS = """
[limits]
requests_per_s = 10_000
[channels]
probe_s = 0.25
"""


def of_half(service: RunningService, names: tuple[str, ...]) -> dict[str, Any]:
    return {
        name: [service.token(name, groups=("staff",) if name in STAFF else ()), WANTED[name]]
        for name in names
    }


def publish_all(processes: list[Child], updates: int) -> None:
    for process in processes:
        assert process.answer() == "ready"
    for process in processes:
        process.ask("publish", updates // len(WANTED))


def check_all(processes: list[Child], way: str, updates: int) -> dict[str, Any]:
    wait_until_equal(processes, way)  # who was asked first may have answered before the last update
    reports = wait_until_equal(processes, way)
    everything = len(WANTED) * OBJECTS
    hidden = len(WANTED) * PRIVATE
    assert len(reports["ada"]["shown"]) == everything
    assert len(reports["bob"]["shown"]) == everything - hidden
    for one in reports.values():
        assert one["counts"][way]["received"] > updates // 100
    return reports


@pytest.mark.slow
@pytest.mark.parametrize("updates", UPDATES)
@pytest.mark.skipif(bool(namespaces.missing()), reason=namespaces.missing() or "ready")
def test_udp_multicast_that_loses_delays_reorders_and_doubles(updates: int, tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path, SERVER)
    settings = f"""
[server]
host = "{SERVER}"
tls_cert = "{certificate}"
tls_key = "{key}"
{SETTINGS}
udp = "{RANGE}:{PORT}"
udp_interface = "{SERVER}"
"""
    with ExitStack() as stack:
        network = stack.enter_context(Namespaces(len(HALVES)))
        places = [network.around(f"client{number}") for number in range(len(HALVES))]
        namespaces.drop(network.around("relay"), f"udp dport {PORT}", 2)  # everybody's loss
        for around in places:
            namespaces.drop(around, f"udp dport {PORT}", 8)  # and everyone's own
        script = str(ROOT / "tests" / "live" / "bad_network.py")
        command = (sys.executable, script, RELAY_FROM, RELAY_TO, str(PORT), *ADDRESSES)
        around = network.around("relay")
        relay = stack.enter_context(Child(*command, around=around, commands=True))
        assert relay.answer() == "ready"
        service = RunningService(tmp_path, settings, network.around("server"))
        service.token()  # beyond loopback it demands that keys were made
        stack.enter_context(service)
        given = {"url": service.url, "certificate": str(certificate)}
        processes = []
        for around, address, names in zip(places, network.client_addresses, HALVES, strict=True):
            half = {**given, "interface": address, "members": of_half(service, names)}
            processes.append(stack.enter_context(members(half, around)))
        publish_all(processes, updates)
        check_all(processes, "udp", updates)
        for around in places:
            assert namespaces.dropped(around) > updates // 100
        counts = relay.ask("counts")
        assert min(counts[what] for what in ("forwarded", "late", "twice")) > updates // 100, counts
        deaf, others = processes[:1], processes[1:]
        namespaces.drop(places[0], f"udp dport {PORT}", 100)
        for process in processes:
            process.ask("publish", OBJECTS)
        for _ in range(2):  # the second time everything was published before the first question
            wait_until_equal(deaf, "socket")
            wait_until_equal(others, "udp")


@pytest.mark.slow
@pytest.mark.parametrize("updates", UPDATES)
@pytest.mark.skipif(BINARY is None, reason=MISSING)
def test_nats_that_is_killed_and_started_again_in_the_middle(updates: int, tmp_path: Path) -> None:
    with ExitStack() as stack:
        nats = stack.enter_context(NatsServer(tmp_path))
        settings = f'{SETTINGS}\nnats = "{nats.url}"\n'
        service = stack.enter_context(RunningService(tmp_path, settings))
        processes = []
        for names in HALVES:
            half = {"url": service.url, "members": of_half(service, names)}
            processes.append(stack.enter_context(members(half)))
        publish_all(processes, updates)
        wait_for_updates(service, updates // 3)
        nats.kill()
        wait_for_updates(service, updates // 2)
        nats.start()
        check_all(processes, "nats", updates)
        assert updates_of(service) >= updates


def updates_of(service: RunningService) -> float:
    text = service.ask("GET", "/metrics", service.operator).body.decode()
    found = re.findall(r"^roamcast_updates_total\{[^}]*\} (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


def wait_for_updates(service: RunningService, updates: int) -> None:
    end = time.monotonic() + DEADLINE_S
    while updates_of(service) < updates:
        assert time.monotonic() < end, "the updates stopped"
        time.sleep(0.05)
