"""What does "acknowledged means on disk" cost? Group commit beside one transaction per write.

The peer is plain sqlite3 with the same settings (WAL, synchronous FULL), one transaction per write
and one after the other. Ours is the store as the service uses it: so many clients, each waiting
for the disk before its next write. The last row writes everything in a single transaction: what
the disk could do if nobody waited. All on the same file system, taken in turns; rows are medians.
"""

import asyncio
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from roamcast.lab.report import Claim, Report, Steps
from roamcast.live.store.file import connect
from roamcast.live.store.store import SqliteStore

TITLE = "durability: writes a second with group commit, beside one transaction per write"

VALUE = b"v" * 256
CLIENTS = (1, 10, 100, 1_000)
BAR = 5.0
"""At 100 clients, so many times the writes of one transaction each."""


def grouped(path: Path, clients: int, writes: int) -> tuple[float, float, int]:
    """Let clients write through the store: writes a second, p99 of a write, transactions."""
    waits: list[float] = []
    commits: list[int] = []

    async def client(store: SqliteStore, number: int) -> None:
        for turn in range(writes // clients):
            began = time.perf_counter()
            await store.write(((f"{number}/{turn}", VALUE),))
            waits.append(time.perf_counter() - began)

    async def everyone() -> float:
        store = SqliteStore.open(path, committed=lambda _seconds, count: commits.append(count))
        began = time.perf_counter()
        await asyncio.gather(*(client(store, number) for number in range(clients)))
        seconds = time.perf_counter() - began
        await store.close()
        return seconds

    seconds = asyncio.run(everyone())
    waits.sort()
    return len(waits) / seconds, waits[int(len(waits) * 0.99)], len(commits)


def one_by_one(connection: sqlite3.Connection, writes: int) -> float:
    """Give each write its own transaction: writes a second."""
    began = time.perf_counter()
    for number in range(writes):
        connection.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, 1)", (f"{number}", VALUE))
    return writes / (time.perf_counter() - began)


def at_once(connection: sqlite3.Connection, writes: int) -> float:
    """Give all writes one transaction: writes a second."""
    began = time.perf_counter()
    connection.execute("BEGIN IMMEDIATE")
    entries = ((f"{number}", VALUE, 1) for number in range(writes))
    connection.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", entries)
    connection.execute("COMMIT")
    return writes / (time.perf_counter() - began)


def run(quick: bool, progress: Steps) -> Report:
    turns = 3 if quick else 5
    writes = 4_000 if quick else 20_000
    rates: dict[int, list[float]] = {clients: [] for clients in CLIENTS}
    slow: dict[int, list[float]] = {clients: [] for clients in CLIENTS}
    shared: dict[int, list[float]] = {clients: [] for clients in CLIENTS}
    peers, ceilings = [], []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, progress("turns", turns) as step:
        for turn in range(turns):
            connection = connect(Path(folder) / f"peer-{turn}.db")
            peers.append(one_by_one(connection, writes // 10))
            ceilings.append(at_once(connection, writes))
            connection.close()
            for clients in CLIENTS:
                amount = writes if clients >= 100 else writes // 10
                path = Path(folder) / f"ours-{clients}-{turn}.db"
                rate, p99, commits = grouped(path, clients, amount)
                rates[clients].append(rate)
                slow[clients].append(p99)
                shared[clients].append(amount / commits)
            step(1)
    peer = statistics.median(peers)
    rows: list[dict[str, Any]] = [
        {"measured": "one transaction per write (peer)", "writes_per_s": round(peer), "ratio": 1.0}
    ]
    for clients in CLIENTS:
        ratio = statistics.median(r / p for r, p in zip(rates[clients], peers, strict=True))
        rows.append(
            {
                "measured": f"group commit, {clients:,} clients",
                "writes_per_s": round(statistics.median(rates[clients])),
                "ratio": round(ratio, 2),
                "p99_ms": round(statistics.median(slow[clients]) * 1e3, 2),
                "writes_per_commit": round(statistics.median(shared[clients]), 1),
            }
        )
    everything = round(statistics.median(ceilings))
    rows.append(
        {
            "measured": "one transaction for all (nobody waits)",
            "writes_per_s": everything,
            "ratio": round(everything / peer, 2),
        }
    )
    ours = rows[1 + CLIENTS.index(100)]["ratio"]
    claim = "100 clients that wait for the disk write at least so many times faster than one by one"
    return Report(
        name="durability",
        parameters={"turns": turns, "writes": writes, "value_bytes": len(VALUE)},
        rows=rows,
        claims=[Claim(claim=claim, ours=ours, bar=BAR, held=ours >= BAR)],
    )
