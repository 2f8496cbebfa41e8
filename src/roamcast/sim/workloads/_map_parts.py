"""Parts that the map's workloads share: settings, a reference matcher, rules, a watcher.

`quick_settings` makes timeouts short enough for a run of seconds. `ScanMatcher` asks the reference
evaluator, `Coarse` hides something from some, `Overheard` shows the workload what leaves the
server. `held_by_server` and `held_by_relay` count what is left once everybody is gone.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from roamcast.channels.relay.relay import MapRelay
from roamcast.channels.reliable.settings import ChannelSettings
from roamcast.channels.server.desk import Public
from roamcast.channels.server.map_server import MapServer
from roamcast.channels.server.settings import MapSettings
from roamcast.journal.book import Journal
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.records import Record

_QUICK: Final = MapSettings(
    heartbeat_us=300_000,
    restart_spread_us=200_000,
    tombstones_max=64,
    tombstone_us=1_500_000,
    channel=ChannelSettings(
        sync_interval_us=250_000,
        round_trip_us=25_000,
        retry_us_max=1_000_000,
        ahead_messages_max=64,
    ),
)


def quick_settings(*, receivers: int, buffer: int, sync_us_max: int, **more: Any) -> MapSettings:
    """Give settings under which a run of a few seconds sees timeouts, resends and pages.

    `receivers` is how many share a channel, `buffer` how many messages it can send again, and
    `sync_us_max` the longest time between two of its synchronisations.
    """
    channel = replace(
        _QUICK.channel,
        receivers_expected=receivers,
        buffer_messages_max=buffer,
        sync_interval_us_max=sync_us_max,
    )
    return replace(_QUICK, channel=channel, **more)


class ScanMatcher:
    """The matching of the reference evaluator, filter by filter."""

    def __init__(self) -> None:
        self._filters: dict[str, Filter] = {}

    def add(self, name: str, wanted: Filter) -> None:
        """Add a filter."""
        self._filters[name] = wanted

    def remove(self, name: str) -> None:
        """Remove a filter."""
        del self._filters[name]

    def match_numbers(self, context: Context) -> Any:
        """Give the positions of the filters a context satisfies."""
        held = [at for at, one in enumerate(self._filters.values()) if one.matches(context)]
        return np.array(held, np.int64)

    def name_of(self, number: int) -> str:
        """Name the filter at a position."""
        return list(self._filters)[number]


HOUR_US_MAX: Final = 10_000_000


class Coarse(Public):
    """Some clients see floors instead of rooms, some things by hours, and nothing private."""

    def __init__(self, hour_us: int = HOUR_US_MAX) -> None:
        """`hour_us`: an hour of the simulated day; a run sees a few."""
        self._hour_us = hour_us

    def view_class(self, client: str) -> str:
        """Every third client is a guest."""
        return "guest" if client.endswith(("2", "5")) else ""

    def visible(self, context: Context, view_class: str, now: int) -> Context | None:
        """Cut the place for guests, and hide what is private, or hidden in every other hour."""
        if not view_class:
            return context
        if context.attributes.get("private"):
            return None
        if context.attributes.get("floor_wide") == 1 and now // self._hour_us % 2:
            return None
        place = (context.place or "").rpartition("/")[0]
        return Context(context.vid, place, None, context.attributes, context.t_r)

    def forms(self, context: Context, now: int) -> tuple[str, ...]:
        """Clients and guests have one each."""
        del context, now
        return "", "guest"

    def changes_at(self, context: Context, now: int) -> int | None:
        """The next hour."""
        if context.attributes.get("floor_wide") != 1:
            return None
        return (now // self._hour_us + 1) * self._hour_us

    def restricted(self) -> None:
        """Any object may look otherwise to guests."""


class Overheard(Journal):
    """A journal that also shows each record to the workload."""

    def __init__(self, inner: Journal, hear: Callable[[int, str, Record], None]) -> None:
        super().__init__()
        self._inner = inner
        self._hear = hear

    def write(self, time_us: int, host: str, record: Record) -> None:
        """Write it down, and show it."""
        self._inner.write(time_us, host, record)
        self._hear(time_us, host, record)

    def __len__(self) -> int:
        return len(self._inner)

    def digest(self) -> str:
        """Give the inner journal's digest."""
        return self._inner.digest()

    def tail(self, count: int) -> list[str]:
        """Give the inner journal's last lines."""
        return self._inner.tail(count)


def held_by_relay(relay: MapRelay) -> dict[str, int]:
    """Count what a relay keeps for its clients; nothing once all of them have left."""
    down = relay.down
    clients = down.desk.clients.values()
    return {
        "objects": len(down.map),
        "publications": len(down.contexts.owners) + len(relay.up.published),
        "queries": down.subscriptions.records,
        "queries asked": len(down.subscriptions.upward) + len(relay.up.wanted),
        "outboxes": sum(not client.outbox.idle for client in clients),
        "channels": len(relay.up.watching.tuner.channels),
    }


def held_by_server(server: MapServer) -> dict[str, int]:
    """Count what a server keeps for its clients; nothing once all of them have left."""
    held = {
        "objects": len(server.map),
        "guests": len(server.merging.guests),
        "queries": server.subscriptions.records,
        "carousels": len(server.subscriptions.carousels),
    }
    for client in server.desk.clients.values():
        held[f"outbox of {client.name}"] = 0 if client.outbox.idle else 1
    for view in server.dissemination.classes.values():
        single = view.single is not None
        held[f"records of {view.name!r}"] = len(view.table)
        held[f"history of {view.name!r}"] = len(view.history)
        held[f"channels of {view.name!r}"] = view.pool.used - single
        held[f"wide-area groups of {view.name!r}"] = view.wide_pool.used
        held[f"streams of {view.name!r}"] = len(view.streams) - single
    return held
