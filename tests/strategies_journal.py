"""Journals of simulated map services, and plain computations over their entries."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from roamcast.journal.book import Entry, Journal
from roamcast.journal.segments import Segments
from roamcast.model.contexts import Context, context_of
from roamcast.model.records import (
    ContextChanged,
    ContextClosed,
    ContextOpened,
    Delivery,
    Drop,
    QuerySet,
    QueryStep,
    Transmission,
    UpdateMatched,
)
from roamcast.sim.scenario import Narrowing, draw_scenario, narrow, play
from roamcast.sim.workload import find_workload

SIZES = {"clients": 6, "operations": 120, "mode": 0, "compiled": 0, "duration_ms": 4_000}


def simulate(folder: Path, seed: int, **settings: int) -> None:
    """Run a map service under one seed, and write its journal in small segments."""
    make = find_workload("map")
    chosen = Narrowing(settings={**SIZES, **settings})
    journal = Journal(Segments(folder, f"map-{seed}", records_max=700))
    outcome = play(narrow(draw_scenario("map", make, seed), chosen), make, journal)
    journal.close()
    assert not outcome.failed, outcome


def expected_metrics(entries: Iterable[Entry]) -> dict[tuple[str, str], float]:
    """Give (measure, about) → value by counting, for the measures that figures use."""
    held = list(entries)
    brokers = {host for _, host, record in held if isinstance(record, UpdateMatched)}
    clients = {h for _, h, record in held if isinstance(record, Transmission)} - brokers
    found: Counter[tuple[str, str]] = Counter()
    delays = []
    carrying = broker_sent = broker_bytes = heard = updates = matched = on_channel = 0
    for _, host, record in held:
        if isinstance(record, UpdateMatched):
            updates += 1
            matched += record.clients
            found["updates", record.change] += 1
        elif isinstance(record, Transmission):
            found["transmissions", record.message] += 1
            found["bytes sent", record.message] += record.bytes
            if record.channel:
                found["channel transmissions", record.channel] += 1
            if host in brokers:
                broker_sent += 1
                broker_bytes += record.bytes
                heard += record.bytes * record.receivers
                carrying += record.message in ("channel.data", "map.batch")
        elif isinstance(record, Drop):
            found["drops", record.reason] += 1
            found["bytes dropped", record.reason] += record.bytes
        elif isinstance(record, Delivery):
            found["deliveries", ""] += 1
            delays.append(record.delay_us)
        elif isinstance(record, QuerySet):
            on_channel += bool(record.channel)
    ranks = {"p50": 50, "p95": 95, "p99": 99, "max": 100}
    ranked = {("delay, ms", n): np.percentile(delays, rank) / 1_000 for n, rank in ranks.items()}
    ratios = {
        "transmissions per update": carrying / updates,
        "all transmissions per update": broker_sent / updates,
        "clients per update": matched / updates,
        "bytes per broker": broker_bytes / len(brokers),
        "bytes per client": heard / len(clients),
        "share of updates on a set's channel": on_channel / updates,
    }
    return {**found, **ranked, **{(name, ""): value for name, value in ratios.items()}}


def contexts_by_hand(entries: Iterable[Entry]) -> tuple[list[Context], list[Context]]:
    """Follow the journal line by line: the contexts that ended, and those that last."""
    ended: list[Context] = []
    lasting: dict[tuple[str, str], tuple[Context, int, bytes]] = {}
    for time_us, host, record in entries:
        if not isinstance(record, ContextOpened | ContextChanged | ContextClosed):
            continue
        key = (host, record.vid)
        known = lasting.get(key)
        if isinstance(record, ContextClosed):
            end = record.t_d
            del lasting[key]
        elif known is not None and known[2] == record.body:
            continue
        else:
            context = context_of(record.body)
            end = context.t_r
            if known is not None and context.t_r <= known[1]:
                end = time_us
                context = replace(context, t_r=time_us)
            lasting[key] = (context, record.t_r, record.body)
        if known is not None:
            ended.append(replace(known[0], t_d=max(end, known[0].t_r)))
    return ended, [context for context, _, _ in lasting.values()]


Update = tuple[str, int, int]
"""(broker, epoch, number)."""


def wanted_by_hand(entries: Iterable[Entry]) -> dict[Update, dict[str, set[str]]]:
    """Follow the journal line by line: for each update which client wanted it by which filters."""
    asking: dict[tuple[str, int, int], dict[str, str]] = defaultdict(dict)
    found: dict[Update, dict[str, set[str]]] = {}
    for _, host, record in entries:
        if isinstance(record, QueryStep):
            clients = asking[host, record.epoch, record.query]
            if record.step == "placed":
                clients[record.receiver] = record.filter
            else:
                del clients[record.receiver]
        elif isinstance(record, UpdateMatched) and record.matched:
            told: dict[str, set[str]] = defaultdict(set)
            for query in map(int, record.matched.split()):
                for client, text in asking[host, record.epoch, query].items():
                    told[client].add(text)
            found[host, record.epoch, int(record.update)] = dict(told)
    return found
