"""The SDK by its public functions, with channels by UDP multicast in a network of their own."""

from pathlib import Path

import pytest

from roamcast.lab._ams_live import Namespace
from tests.live.members import members, wait_until_equal
from tests.running_service import RunningService

pytestmark = pytest.mark.process

SETTINGS = """
[channels]
udp = "239.192.81.0/29:5081"
udp_interface = "127.0.0.1"
probe_s = 0.1
"""
UPDATES = 500


def test_sessions_in_a_namespace_move_to_udp_and_show_what_the_service_answers(
    tmp_path: Path,
) -> None:
    with Namespace() as network:
        if network.missing:
            pytest.skip(network.missing)
        with RunningService(tmp_path, SETTINGS, network.around) as service:
            given = {
                "url": service.url,
                "interface": "127.0.0.1",
                "members": {
                    name: [service.token(name), "within(place, 'lab')"] for name in ("ada", "bob")
                },
            }
            with members(given, network.around) as process:
                assert process.answer() == "ready"
                process.ask("publish", UPDATES)
                reports = wait_until_equal([process], "udp")
    for one in reports.values():
        assert one["counts"]["udp"]["received"] > 100
