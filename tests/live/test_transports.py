"""After 10,000 updates over a bad network every client's view equals the server's.

A map server and eight clients in processes of their own. Groups go by UDP multicast between network
namespaces that lose, delay, reorder and double datagrams, or by a real NATS server that is killed
and started again in the middle. Some clients are of another view class and see less.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.live import namespaces
from tests.live.namespaces import RELAY_FROM, RELAY_TO, SERVER, Namespaces
from tests.live.processes import ROOT, Process, harness, wait_until_equal
from tests.nats_server import BINARY, MISSING, NatsServer

UPDATES = 10_000
PORT = 5_007
RANGE = "239.192.77.0/29"
ADDRESSES = [f"239.192.77.{number}" for number in range(8)]
WANTED = {
    "client-0": "within(place, 'lab')",
    "client-1": "within(place, 'lab')",
    "client-2": "within(place, 'lab')",  # a guest: sees floors, and nothing private
    "client-3": "place = 'lab/1/a' OR place = 'lab/2/b'",
    "client-4": "place = 'lab/1/a'",
    "client-5": "within(place, 'lab')",  # a guest, too
    "client-6": "type = 'person'",
    "client-7": "type = 'person' AND within(place, 'lab/2')",
}
HALVES = [dict(list(WANTED.items())[:4]), dict(list(WANTED.items())[4:])]


def publish_all(clients: list[Process]) -> None:
    for process in clients:
        process.ask("publish", UPDATES // len(WANTED))


@pytest.mark.slow
@pytest.mark.skipif(bool(namespaces.missing()), reason=namespaces.missing() or "ready")
def test_udp_multicast_that_loses_delays_reorders_and_doubles() -> None:
    with ExitStack() as stack:
        network = stack.enter_context(Namespaces(len(HALVES)))
        places = [network.around(f"client{number}") for number in range(len(HALVES))]
        namespaces.drop(network.around("relay"), f"udp dport {PORT}", 2)  # everybody's loss
        for around in places:
            namespaces.drop(around, f"udp dport {PORT}", 8)  # and everyone's own
        script = str(ROOT / "tests" / "live" / "relay.py")
        command = (script, RELAY_FROM, RELAY_TO, str(PORT), *ADDRESSES)
        relay = stack.enter_context(Process(*command, around=network.around("relay")))
        udp = {"udp": f"{RANGE}:{PORT}"}
        given: dict[str, Any] = {"host": SERVER, "interface": SERVER, **udp}
        server = stack.enter_context(harness("server", given, network.around("server")))
        assert relay.answer() == "ready"
        port = server.answer()["port"]
        clients = []
        for around, address, wanted in zip(places, network.client_addresses, HALVES, strict=True):
            given = {"host": SERVER, "port": port, "interface": address, "clients": wanted}
            clients.append(stack.enter_context(harness("clients", given, around)))
        for process in clients:
            process.answer()
        publish_all(clients)
        said, reports = wait_until_equal(server, clients, WANTED, UPDATES, "udp")
        for around in places:
            assert namespaces.dropped(around) > 100
        counts = relay.ask("counts")
        assert min(counts[what] for what in ("forwarded", "late", "twice")) > 100, counts
        assert said["channels"] > 0
        assert min(report["counts"]["udp"]["received"] for report in reports.values()) > 100


@pytest.mark.slow
@pytest.mark.skipif(BINARY is None, reason=MISSING)
def test_nats_that_is_killed_and_started_again_in_the_middle(tmp_path: Path) -> None:
    with ExitStack() as stack:
        nats = stack.enter_context(NatsServer(tmp_path))
        given: dict[str, Any] = {"host": "127.0.0.1", "nats": nats.url}
        server = stack.enter_context(harness("server", given))
        port = server.answer()["port"]
        clients = []
        for wanted in HALVES:
            given = {"host": "127.0.0.1", "port": port, "clients": wanted}
            clients.append(stack.enter_context(harness("clients", given)))
        for process in clients:
            process.answer()
        publish_all(clients)
        wait_for_updates(server, UPDATES // 3)
        nats.kill()
        wait_for_updates(server, UPDATES // 2)
        nats.start()
        said, reports = wait_until_equal(server, clients, WANTED, UPDATES, "nats")
        assert said["ways"][0]["sent"] > 100
        assert min(report["counts"]["nats"]["received"] for report in reports.values()) > 100


def wait_for_updates(server: Process, updates: int) -> None:
    while server.ask("views", {})["updates"] < updates:
        pass
