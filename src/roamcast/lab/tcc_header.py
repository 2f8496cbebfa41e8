"""TCC IV-A: how many receivers, and how many vids, the messages of vid resolution carry.

The paper counts trusted nodes and finds headers small, for there are few of those. A message also
carries the vids it is about. Routers split them along with receivers (our errata): a link carries
the vids of the trusted nodes beyond it. Bytes are those of our own names and vids.
"""

from pathlib import Path
from typing import Any

import numpy as np

from roamcast.identity.pseudonyms import OPAQUE_LENGTH
from roamcast.lab import _tcc as tcc
from roamcast.lab.report import Claim, Report, Steps
from roamcast.model.casts import PAYLOAD_BYTES_MAX
from roamcast.sim.hops.counting import POLICIES
from roamcast.sim.hops.routers import Setting

TITLE = "TCC IV-A: receivers and vids in the messages that resolve vids"

NAME_BYTES = len("trust-123.example.org")
VID_BYTES = OPAQUE_LENGTH
"""The receiver's name is in the header once, so a vid needs only its opaque part."""


def run(quick: bool, progress: Steps) -> Report:
    """Average what a message carries over the runs."""
    runs = tcc.RUNS_QUICK if quick else tcc.RUNS
    found = tcc.historic(runs, progress)
    rows = [_row(edge, policy, found[edge, policy]) for edge in tcc.EDGES for policy in POLICIES]
    parameters = tcc.parameters(runs) | {
        "bytes of a receiver": NAME_BYTES,
        "bytes of a vid": VID_BYTES,
    }
    return Report("tcc-header", parameters, rows, _claims(rows))


def _row(edge: float, policy: str, rows: list[tcc.Row]) -> dict[str, Any]:
    def a_message(name: str) -> list[float]:
        return tcc.of_runs(rows, lambda row: row[name] / row["resolves"])

    receivers, vids = a_message("receivers"), a_message("vids")
    unsplit = float(np.mean(a_message("vids_unsplit")))
    mean_bytes = NAME_BYTES * float(np.mean(receivers)) + VID_BYTES * float(np.mean(vids))
    return {
        "edge": edge,
        "policy": policy,
        **tcc.spread("receivers", receivers),
        "receivers_max": max(row["receivers_max"] for row in rows),
        "vids": float(np.mean(vids)),
        "vids_max": max(row["vids_max"] for row in rows),
        "vids_unsplit": unsplit,
        "header_bytes": mean_bytes,
        "vids_in_answers": float(
            np.mean(tcc.of_runs(rows, lambda row: row["answer_vids"] / max(1, row["answers"])))
        ),
    }


def _claims(rows: list[dict[str, Any]]) -> list[Claim]:
    widest = {row["policy"]: row for row in rows if row["edge"] == tcc.WIDEST}
    most = widest["FBTH"]
    names = NAME_BYTES * most["receivers_max"]
    whole = names + VID_BYTES * most["vids_max"]
    return [
        Claim("receivers of FBTH's largest message at 0.25", most["receivers_max"],
              most["receivers_max"] <= Setting().trusted, paper="at most the trusted nodes",
              note=f"{most['receivers']:.1f} a message; NH {widest['NH']['receivers']:.1f}"),
        Claim("bytes of its receivers, against a payload of 100 KB", names,
              names < PAYLOAD_BYTES_MAX / 10, paper="small compared to the message data"),
        Claim("bytes of its receivers and vids", whole, whole < PAYLOAD_BYTES_MAX / 10,
              paper="small compared to the message data",
              note="the vids are the header: a real cast pages them"),
        Claim("vids a message at 0.25, FBTH, split along with receivers", most["vids"],
              most["vids"] < most["vids_unsplit"] / 2, bar=most["vids_unsplit"],
              note="the bar: all of the cast's vids in each message"),
    ]  # fmt: skip


def draw(report: Report, path: Path) -> None:
    """Draw receivers a message against the edge, one line per policy."""
    title = "Trusted nodes in the header of a message, mean over its links (TCC IV-A)"
    tcc.draw_bars(path, report.rows, "receivers", title, "receivers a message")
