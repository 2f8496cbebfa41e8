"""Metrics: what Prometheus reads, with labels that are never about a person."""

import asyncio
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from roamcast.live.observe.metrics import Metrics
from tests.live.in_process import gate

ROOT = Path(__file__).resolve().parents[3]
NOT_METRICS = {"roamcast_main"}
ELSEWHERE = {"roamcast_journal_total", "roamcast_overlay_steps", "roamcast_trust_total"}
"""Only where there is a journal or a trusted node, or where the service is a node."""

LABELS = {"method", "route", "status", "reason", "kind", "transport", "queue", "what", "le"}


def test_the_page_is_read_by_prometheus_own_parser_and_counts_right() -> None:
    metrics = Metrics()
    metrics.requests.labels("GET", "/count", "200").inc()
    metrics.sockets.labels("session").inc()
    metrics.committed(0.004, 12)
    metrics.watch_queue("store", lambda: 7)
    metrics.watch_held("channels", lambda: 3)
    metrics.cut_off.labels("too slow").inc()
    counts = {"written": 1}
    metrics.watch_counts("links", "What happened on links", lambda: counts)
    counts["goodbye: too slow"] = 4
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(metrics.page().decode())
        for sample in family.samples
    }
    assert samples["roamcast_requests_total", "/count", "200", "GET"] == 1
    assert samples["roamcast_sockets", "session"] == 1
    assert samples["roamcast_queue", "store"] == 7
    assert samples["roamcast_held", "channels"] == 3
    assert samples["roamcast_cut_off_total", "too slow"] == 1
    assert samples["roamcast_links_total", "written"] == 1
    assert samples["roamcast_links_total", "goodbye: too slow"] == 4
    assert samples["roamcast_store_commit_seconds_bucket", "0.005"] == 1
    assert samples["roamcast_store_commit_writes_sum",] == 12


def test_every_metric_is_ours_explained_and_labelled_by_what_the_code_says() -> None:
    metrics = Metrics()
    for family in metrics.registry.collect():
        assert family.name.startswith("roamcast_")
        assert family.documentation
    named = {
        name
        for collector in metrics.registry._collector_to_names
        for name in getattr(collector, "_labelnames", ())
    }
    assert named <= LABELS


def test_two_services_in_one_process_count_apart() -> None:
    one, two = Metrics(), Metrics()
    one.store_failures.inc()
    assert b"roamcast_store_failures_total 1.0" in one.page()
    assert b"roamcast_store_failures_total 0.0" in two.page()


def test_every_metric_is_set_somewhere() -> None:
    source = "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "src" / "roamcast" / "live").rglob("*.py")
        if path.name != "metrics.py"
    )
    ours = [name for name in vars(Metrics()) if not name.startswith("_") and name != "registry"]
    held = {"store_commit_seconds", "store_commit_writes"}  # set by Metrics.committed
    assert "metrics.committed" in source
    unset = [
        name for name in ours if name not in held and not re.search(rf"metrics\.{name}\b", source)
    ]
    assert unset == []


def test_every_metric_that_the_docs_name_is_on_the_page_of_a_service(tmp_path: Path) -> None:
    async def page() -> str:
        async with gate(tmp_path) as asked:
            await asked.ask("GET", "/count")
            await asked.ask("GET", "/count", filter="a =")
            return (await asked.ask("GET", "/metrics")).body.decode()

    written = asyncio.run(page())
    named = {
        name
        for path in (*(ROOT / "docs").glob("*.md"), ROOT / "examples" / "grafana.json")
        for name in re.findall(r"\broamcast_[a-z_]+", path.read_text(encoding="utf-8"))
        if name not in NOT_METRICS
    }
    named = {name.removesuffix("_bucket") for name in named}
    assert named
    assert named - ELSEWHERE < named
    for name in named - ELSEWHERE:
        assert f"# TYPE {name} " in written or f"# TYPE {name.removesuffix('_total')} " in written
    assert 'roamcast_requests_total{method="GET",route="/count",status="200"} 1.0' in written
    assert 'roamcast_requests_total{method="GET",route="/count",status="400"} 1.0' in written
    assert 'roamcast_request_seconds_count{route="/count"} 2.0' in written
    assert 'roamcast_refused_total{reason="Bad Request"} 1.0' in written
