"""The flood watch's medium: one queue for all, hop by hop; and the figure with real processes."""

import pytest

from roamcast.lab import _flood_bed, oo_15
from roamcast.lab._flood import TOPOLOGIES, Medium, hops_between
from roamcast.lab.report import Steps


def packet(source, to, size=1_000):
    return (source, to, 0, bytes(size))


def test_topologies_are_those_of_the_paper():
    ways = {name: [hops_between(name, *way) for way in ("ab", "bc", "ac")] for name in TOPOLOGIES}
    assert ways == {
        "A-B-C": [1, 1, 2],
        "A-B-C-A": [1, 1, 1],
        "A-C-B": [2, 1, 1],
        "B-A-C": [1, 2, 1],
    }
    for name, hops in _flood_bed.HOPS.items():
        assert sum(ways[name][:2]) == hops


def test_everybody_waits_in_one_queue_and_each_hop_takes_its_time():
    medium = Medium(1_000_000)  # a packet takes a millisecond for each hop
    medium.topology = "B-A-C"
    medium.put(packet("b", "c"), 0)
    medium.put(packet("a", "c"), 0)
    assert medium.take(999) == []
    assert medium.take(2_000) == [("a", "c", 1, bytes(1_000))]  # it came before the second hop
    assert medium.take(3_000) == [("b", "c", 2, bytes(1_000))]
    assert medium.busy_us == 3_000
    assert medium.wait_s(3_000) is None


def test_arrays_come_as_often_as_the_load_says():
    times = _flood_bed.arrivals(0.75, 0.1, 1_000.0, 1)
    assert len(times) == 2_500
    assert times == sorted(times)


@pytest.mark.process
@pytest.mark.soak
def test_the_figure_runs_in_namespaces_of_its_own():
    if _flood_bed.missing():
        pytest.skip(_flood_bed.missing())
    report = oo_15.run(True, Steps(show=False))
    assert all(claim.held for claim in report.claims[1:]), report.claims
