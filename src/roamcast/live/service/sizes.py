"""What `/metrics` reads of a service at each scrape: how much it holds, and what has happened."""

from collections.abc import Callable, Mapping, Sized

from roamcast.broker import Broker
from roamcast.live.observe.journaling import Journaling
from roamcast.live.observe.metrics import Metrics
from roamcast.live.overlay.metrics import watch_overlay
from roamcast.model.records import HandoffStep, OverlayStep


def step_name(record: OverlayStep | HandoffStep) -> str:
    """Say what happened in which layer; a consumer comes `attached`, prepared for, or `normal`."""
    layer = record.layer if isinstance(record, OverlayStep) else "handoff"
    return f"{layer}: {record.step}"


def watch_sizes(
    metrics: Metrics,
    broker: Broker,
    *,
    writes: Callable[[], int],
    tickets: Sized,
    followers: Mapping[str, int],
    overlay_steps: Mapping[str, int],
    journal: Journaling | None,
) -> None:
    """Let a scrape read the sizes of a broker, its queues and its counts."""
    for what in ("contexts", "clients", "sessions", "queries", "channels", "bands", "followers"):
        metrics.watch_held(what, lambda what=what: broker.held()[what])  # type: ignore[misc]
    metrics.watch_queue("disk", writes)
    metrics.watch_queue("tickets", lambda: len(tickets))
    metrics.watch_queue("followers", lambda: broker.held()["entries behind"])
    metrics.watch_counts("followers", "What happened to hosts that follow", lambda: followers)
    metrics.watch_counts(
        "changes",
        "Changes for sessions that later ones replaced",
        lambda: {"coalesced": broker.held()["coalesced"]},
    )
    if broker.overlay_view() is not None:
        watch_overlay(metrics, broker, overlay_steps)
    if journal is not None:
        metrics.watch_counts("journal", "Records of the journal", lambda: journal.counts)
