"""Figure 8 of OO: what a broker sends to pass on changes of the topology, against the period.

The paper gives no size of an item. So its 2.4 Kbps at 50 s is turned into the size that our count
of items implies, and beside it stand the bytes of our own frames for the same items.
"""

from pathlib import Path
from typing import Any

from roamcast.channels.reliable.messages import Data
from roamcast.lab import _oo as oo
from roamcast.lab._cbm import lines
from roamcast.lab.report import Claim, Report, Steps
from roamcast.model.wire import Registry
from roamcast.overlay.links.messages import LINK_MESSAGES, LinkFrame
from roamcast.overlay.topology.items import LinkItem
from roamcast.overlay.topology.messages import ITEMS_MAX, TOPOLOGY_MESSAGES, TopologyItems

TITLE = "OO figure 8: bandwidth of topology updates a broker against the update period"

PERIODS_S, PERIODS_QUICK_S = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100), (10, 50, 100)
AT_S = 50
PAPER_KBPS = 2.4
LEAST_BYTES = 8
"""Two names of a byte, a sequence number of four, a flag: an item cannot be much smaller."""


def run(quick: bool, progress: Steps) -> Report:
    """Count the items that brokers send at every period."""
    seeds = oo.SEEDS_QUICK if quick else oo.SEEDS
    periods = PERIODS_QUICK_S if quick else PERIODS_S
    item_bytes, message_bytes = frame_bytes()
    items: dict[int, list[float]] = {period: [] for period in periods}
    frames: dict[int, list[float]] = {period: [] for period in periods}
    with progress("seeds", seeds * len(periods)) as step:
        for seed in range(seeds):
            walked = oo.trace(seed)
            for period in periods:
                found = oo.run_brokers(walked, seed, period)
                items[period].append(found.items_s)
                sent = found.items_s * item_bytes + found.messages_s * message_bytes
                frames[period].append(sent * 8 / 1000)
                step(1)
    at_fifty = sum(items[AT_S]) / seeds
    implied = PAPER_KBPS * 1000 / 8 / at_fifty
    rows: list[dict[str, Any]] = []
    for period in periods:
        case = {"period s": period}
        rows.append(oo.row(case, "items a second", items[period]))
        implied_kbps = [count * implied * 8 / 1000 for count in items[period]]
        rows.append(oo.row(case, "Kbps at the implied size", implied_kbps))
        rows.append(oo.row(case, "Kbps of our frames", frames[period]))
    parameters = oo.parameters(
        seeds,
        brokers=oo.BROKERS,
        **{
            "implied bytes an item": round(implied, 1),
            "our bytes an item": item_bytes,
            "our bytes a message": message_bytes,
        },
    )
    return Report("oo-8", parameters, rows, _claims(rows, implied, item_bytes))


def frame_bytes() -> tuple[int, int]:
    """Give the bytes of a link's two items in our frames, and of a message around its items."""
    ends = [("n12", "n34"), ("n34", "n12")]
    pair = tuple(LinkItem(one, other, 1_700_000_000, 100, True) for one, other in ends)
    items = Registry(TOPOLOGY_MESSAGES)
    most = TopologyItems(pair * (ITEMS_MAX // 2))
    each = (len(items.encode(most)) - len(items.encode(TopologyItems(())))) // (ITEMS_MAX // 2)
    inside = items.encode(TopologyItems(()))
    frame = LinkFrame(2**60, 1_000, Data("overlay", 1_700_000_000, 1_000, inside))
    return each, len(Registry(LINK_MESSAGES).encode(frame))


def _claims(rows: list[dict[str, Any]], implied: float, item_bytes: int) -> list[Claim]:
    counts = [r["ours"] for r in rows if r["quantity"] == "items a second"]
    ours = next(r["ours"] for r in rows
                if r["quantity"] == "Kbps of our frames" and r["period s"] == AT_S)  # fmt: skip
    return [
        Claim("2.4 Kbps at 50 s with this size of an item, in bytes", round(implied, 1),
              LEAST_BYTES <= implied <= item_bytes, paper="not given",
              note="the size that our count of items implies; two names, a number and a flag fit"),
        Claim("the longer the period, the fewer items", [round(count, 1) for count in counts],
              counts == sorted(counts, reverse=True), paper="falling"),
        Claim("our frames at 50 s, Kbps", round(ours, 1), ours <= PAPER_KBPS, bar=PAPER_KBPS,
              note=f"{item_bytes} bytes a link: two ends, each with both names, epoch and number"),
    ]  # fmt: skip


def draw(report: Report, path: Path) -> None:
    """Draw both sizes against the period."""
    series: dict[str, list[tuple[float, float, float]]] = {}
    for one in report.rows:
        if "Kbps" in one["quantity"]:
            point = (one["period s"], one["ours"], one["error"])
            series.setdefault(one["quantity"], []).append(point)
    lines(path, series, title="Topology updates a broker (OO figure 8)",
          across="update period, s", up="Kbps")  # fmt: skip
