"""Metrics: what Prometheus reads, with labels that are never about a person."""

from prometheus_client.parser import text_string_to_metric_families

from roamcast.live.observe.metrics import Metrics

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
    metrics.watch_counts("links", "What happened on links", counts)
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
    one.coalesced.inc()
    assert b"roamcast_coalesced_total 1.0" in one.page()
    assert b"roamcast_coalesced_total 0.0" in two.page()
