"""Metrics for Prometheus, none of them about one person.

Labels come from the code: a route's template, a status, a reason, a kind of transport; never a
subject, a vid, a place or a filter. Metrics count the service's work; how many contexts match a
filter is a question for a token with the scope `read`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

Counts = Mapping[str, int]
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
disable_created_metrics()  # type: ignore[no-untyped-call]  # they would say when each label was first seen
_COUNTS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)


class _Counts(Collector):
    """Counts that their owner updates, read at each scrape."""

    def __init__(self, name: str, description: str, counts: Callable[[], Counts]) -> None:
        self._name, self._description, self._counts = name, description, counts

    def describe(self) -> Iterable[CounterMetricFamily]:
        """Give the name and the label."""
        return [CounterMetricFamily(self._name, self._description, labels=("what",))]

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Give every count."""
        family = CounterMetricFamily(self._name, self._description, labels=("what",))
        for what, count in sorted(self._counts().items()):
            family.add_metric([what], count)
        return [family]


class Metrics:
    """The metrics of a service, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, description: str, *labels: str) -> Counter:
            return Counter(f"roamcast_{name}", description, labels, registry=registry)

        self.requests = counter("requests", "HTTP requests answered", "method", "route", "status")
        self.request_seconds = Histogram(
            "roamcast_request_seconds",
            "From a request's head to its answer's",
            ("route",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.refused = counter("refused", "Requests and messages refused", "reason")
        self.sockets = Gauge(
            "roamcast_sockets", "Open connections that stay", ("kind",), registry=registry
        )
        self.frames_received = counter("frames_received", "Messages from sessions")
        self.updates = counter("updates", "Contexts that appeared, changed or left", "kind")
        self.deliveries = counter("deliveries", "Changes handed to connections", "kind")
        self.deliveries_bytes = counter("delivered_bytes", "Their bytes", "kind")
        self.cut_off = counter("cut_off", "Connections ended by the service", "reason")
        self.store_commit_seconds = Histogram(
            "roamcast_store_commit_seconds",
            "A transaction of the store, synced",
            buckets=_SECONDS,
            registry=registry,
        )
        self.store_commit_writes = Histogram(
            "roamcast_store_commit_writes",
            "Writes in one transaction",
            buckets=_COUNTS,
            registry=registry,
        )
        self.store_failures = counter("store_failures", "Transactions the disk refused")
        self._queues = Gauge("roamcast_queue", "What waits now", ("queue",), registry=registry)
        self._held = Gauge(
            "roamcast_held", "What the service holds now", ("what",), registry=registry
        )

    def committed(self, seconds: float, writes: int) -> None:
        """Count a transaction; the store calls this."""
        self.store_commit_seconds.observe(seconds)
        self.store_commit_writes.observe(writes)

    def watch_queue(self, name: str, size: Callable[[], float]) -> None:
        """Read a queue's size at each scrape."""
        self._queues.labels(name).set_function(size)

    def watch_held(self, name: str, size: Callable[[], float]) -> None:
        """Read the number of clients, contexts, subscriptions or channels at each scrape."""
        self._held.labels(name).set_function(size)

    def watch_counts(self, name: str, description: str, counts: Callable[[], Counts]) -> None:
        """Read counts at each scrape; their names must come from the code."""
        self.registry.register(_Counts(f"roamcast_{name}", description, counts))

    def page(self) -> bytes:
        """Write all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
