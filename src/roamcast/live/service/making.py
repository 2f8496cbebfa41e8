"""The broker that a service's settings ask for."""

from collections.abc import Callable, Collection
from pathlib import Path

from roamcast.broker import Broker
from roamcast.channels.failover.epochs import epoch_at
from roamcast.channels.failover.replication import ReplicationSettings
from roamcast.channels.past.settings import PastSettings
from roamcast.channels.sessions.publications import PublicationSettings
from roamcast.channels.sessions.settings import HubSettings
from roamcast.channels.sessions.webhooks import WebhookSettings
from roamcast.errors import InputError
from roamcast.identity.live_blur import LiveBlur
from roamcast.identity.rules import Viewer
from roamcast.live.config.settings import Settings, default_rules
from roamcast.live.store.store import SqliteStore
from roamcast.model.filters import Filter
from roamcast.model.filters.here import by_kind
from roamcast.model.places import Places
from roamcast.model.time import MICROSECONDS
from roamcast.model.transitions import Transitions, read_transitions
from roamcast.overlay.consumers.settings import EventSettings
from roamcast.overlay.flows.settings import FlowSettings
from roamcast.overlay.handoff.handoff import HandoffNode
from roamcast.overlay.handoff.settings import HandoffSettings, Surroundings
from roamcast.overlay.overlay import OverlayNode


def event_settings(settings: Settings, places: Places | None) -> EventSettings:
    """Give the settings of the event plane."""
    events = settings.events
    sleep_us = int(events.sleep_s_max * MICROSECONDS)
    return EventSettings(
        flows=FlowSettings(
            log_age_us=int(events.log_s * MICROSECONDS),
            log_bytes_max=events.log_bytes_max,
            consumers_max=events.consumers_max,
        ),
        handoff=HandoffNode(
            Surroundings(lambda _: ()),
            HandoffSettings(sleep_us=sleep_us, consumers_max=events.consumers_max),
            level=None if places is None else by_kind(lambda path: _kind_of(places, path)),
        ),
        homes=settings.homes.settings(),
        subscriptions_per_session_max=settings.limits.subscriptions_per_client_max,
        queue_bytes_max=settings.limits.socket_high_bytes,
        sleep_us_max=sleep_us,
        transitions=_transitions(events.transitions),
        transitions_least=events.transitions_least,
    )


def _transitions(file: str) -> Transitions:
    if not file:
        return Transitions()
    try:
        return read_transitions(Path(file).read_bytes())
    except OSError as error:
        raise InputError(f"can not be read: {error.strerror}", source=file) from None
    except InputError as error:
        raise error.located(file) from None


def _kind_of(places: Places, path: str) -> str | None:
    return places[path].kind if path in places else None


def broker_of(
    settings: Settings,
    disk: SqliteStore,
    *,
    now: int,
    epoch: int | None,
    places: Places | None,
    trusted_nodes: Collection[str],
    node: OverlayNode | None,
    charge: Callable[[Viewer, Filter, int], None],
) -> Broker:
    """Make the broker of a service from what its disk has."""
    limits = settings.limits
    return Broker(
        settings.server.name,
        epoch=epoch or epoch_at(now, 0, 0),
        now=now,
        load=disk.load,
        stamp=disk.stamp,
        map_settings=settings.map_settings(),
        hub_settings=HubSettings(
            sessions_max=limits.connections_max,
            subscriptions_per_session_max=limits.subscriptions_per_client_max,
            matches_max=limits.matches_per_subject_max,
            slow_us_max=int(limits.slow_s_max * MICROSECONDS),
        ),
        publication_settings=PublicationSettings(
            publications_per_owner_max=limits.publications_per_client_max,
            rule_names_per_owner_max=limits.rule_names_per_client_max,
            lifetime_us_default=int(limits.context_lifetime_s * MICROSECONDS),
            lifetime_us_max=int(limits.context_lifetime_s_max * MICROSECONDS),
        ),
        replication_settings=ReplicationSettings(
            follow_us=int(settings.cluster.follow_s * MICROSECONDS)
        ),
        webhook_settings=WebhookSettings(per_owner_max=settings.webhooks.per_subject_max),
        past_settings=PastSettings(
            archive=bool(settings.past.archive),
            store_us=int(settings.past.store_hours * 3_600 * MICROSECONDS),
            steps_max=settings.past.steps_max,
        ),
        event_settings=event_settings(settings, places),
        default_rules=default_rules(settings),
        own_vids=settings.privacy.vids == "own",
        places=places,
        replicas=settings.seats,
        trusted_nodes=trusted_nodes,
        overlay=node,
        charge=charge,
        blur=LiveBlur(settings.privacy.grid_s, settings.privacy.crowd_min),
    )
