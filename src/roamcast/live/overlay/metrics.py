"""Metrics of a node: its links, what it knows of others, tables and parcels; no names."""

from collections.abc import Callable, Mapping

from roamcast.broker import Broker
from roamcast.live.observe.metrics import Metrics
from roamcast.overlay.overlay import OverlayView


def watch_overlay(metrics: Metrics, broker: Broker, steps: Mapping[str, int]) -> None:
    """Read a node's sizes, and count the steps of its layers, at each scrape."""

    def watch(what: str, size: Callable[[OverlayView], float]) -> None:
        def now() -> float:
            view = broker.overlay_view()
            return 0 if view is None else size(view)

        metrics.watch_held(what, now)

    watch("neighbours", lambda view: len(view.links))
    watch("neighbours linked", lambda view: sum(link.state == "up" for link in view.links))
    watch("nodes in reach", lambda view: len(view.graph))
    watch("frames for neighbours", lambda view: sum(link.waiting for link in view.links))
    watch("parcels", lambda view: view.held.get("custody: parcels", (0, 0))[0])
    watch(
        "table entries",
        lambda view: sum(held for name, (held, _) in view.held.items() if name.endswith(".heard")),
    )
    metrics.watch_counts("overlay_steps", "Steps of the overlay's layers", lambda: steps)
