"""Every setting is read somewhere: one without an effect would be a promise nobody holds."""

import re
from pathlib import Path

import msgspec
import pytest

from roamcast.live.config.settings import Settings

SOURCE = Path(__file__).resolve().parents[3] / "src" / "roamcast"
READ = {
    "server.host": ("live/service/running.py", "settings.server.host"),
    "server.port": ("live/service/running.py", "settings.server.port"),
    "server.data": ("live/service/running.py", "settings.server.data"),
    "server.name": ("live/cluster/keeper.py", "settings.server.name"),
    "server.tls_cert": ("live/service/running.py", "settings.server.tls_cert"),
    "server.tls_key": ("live/service/running.py", "settings.server.tls_key"),
    "server.places": ("live/service/running.py", "settings.server.places"),
    "server.cors_origins": ("live/http/app.py", "settings.server.cors_origins"),
    "server.shutdown_s": ("live/service/running.py", "settings.server.shutdown_s"),
    "limits.body_bytes_max": ("live/http/app.py", "settings.limits.body_bytes_max"),
    "limits.header_bytes_max": ("live/http/connections.py", "limits.header_bytes_max"),
    "limits.frame_bytes_max": ("live/links/links.py", "limits.frame_bytes_max"),
    "limits.first_bytes_s": ("live/http/connections.py", "limits.first_bytes_s"),
    "limits.body_s": ("live/http/connections.py", "limits.body_s"),
    "limits.idle_s": ("live/service/running.py", "limits.idle_s"),
    "limits.connections_max": ("live/service/service.py", "settings.limits.connections_max"),
    "limits.connections_per_subject_max": (
        "live/service/service.py",
        "settings.limits.connections_per_subject_max",
    ),
    "limits.anonymous_connections_max": (
        "live/http/connections.py",
        "limits.anonymous_connections_max",
    ),
    "limits.anonymous_per_address_max": (
        "live/http/connections.py",
        "limits.anonymous_per_address_max",
    ),
    "limits.requests_per_s": ("live/service/service.py", "settings.limits.requests_per_s"),
    "limits.requests_burst": ("live/service/service.py", "settings.limits.requests_burst"),
    "limits.steps_per_s": ("live/service/service.py", "settings.limits.steps_per_s"),
    "limits.steps_burst": ("live/service/service.py", "settings.limits.steps_burst"),
    "limits.frames_per_s": ("live/links/links.py", "limits.frames_per_s"),
    "limits.frames_burst": ("live/links/links.py", "limits.frames_burst"),
    "limits.subscriptions_per_client_max": (
        "live/service/making.py",
        "limits.subscriptions_per_client_max",
    ),
    "limits.matches_per_subject_max": (
        "live/service/making.py",
        "limits.matches_per_subject_max",
    ),
    "limits.standing_steps_max": (
        "live/config/settings.py",
        "self.limits.standing_steps_max",
    ),
    "limits.publications_per_client_max": (
        "live/service/making.py",
        "limits.publications_per_client_max",
    ),
    "limits.rule_names_per_client_max": (
        "live/service/making.py",
        "limits.rule_names_per_client_max",
    ),
    "limits.filter_length_max": ("live/service/service.py", "settings.limits.filter_length_max"),
    "limits.items_default": ("live/http/features.py", "limits.items_default"),
    "limits.items_max": ("live/http/features.py", "limits.items_max"),
    "limits.nearest_max": ("live/http/features.py", "limits.nearest_max"),
    "limits.context_lifetime_s": ("live/service/making.py", "limits.context_lifetime_s"),
    "limits.context_lifetime_s_max": ("live/service/making.py", "limits.context_lifetime_s_max"),
    "limits.clock_skew_s_max": ("live/http/writing.py", "settings.limits.clock_skew_s_max"),
    "limits.socket_low_bytes": ("live/links/links.py", "limits.socket_low_bytes"),
    "limits.socket_high_bytes": ("live/http/changes.py", "settings.limits.socket_high_bytes"),
    "limits.socket_bytes_max": ("live/links/links.py", "limits.socket_bytes_max"),
    "limits.slow_s_max": ("live/links/links.py", "limits.slow_s_max"),
    "limits.ping_s": ("live/service/running.py", "limits.ping_s"),
    "limits.pong_s": ("live/service/running.py", "limits.pong_s"),
    "channels.udp": ("live/service/running.py", "settings.channels.udp"),
    "channels.udp_interface": ("live/links/groups.py", "channels.udp_interface"),
    "channels.nats": ("live/service/running.py", "settings.channels.nats"),
    "channels.nats_user": ("live/links/groups.py", "channels.nats_user"),
    "channels.nats_password_file": ("live/links/groups.py", "channels.nats_password_file"),
    "channels.probe_s": ("live/service/running.py", "settings.channels.probe_s"),
    "channels.mode": ("live/config/settings.py", "chosen.mode"),
    "channels.subscribers_min": ("live/config/settings.py", "chosen.subscribers_min"),
    "channels.history_max": ("live/config/settings.py", "chosen.history_max"),
    "channels.channels_max": ("live/config/settings.py", "chosen.channels_max"),
    "channels.heartbeat_s": ("live/config/settings.py", "chosen.heartbeat_s"),
    "channels.client_timeout_s": ("live/config/settings.py", "chosen.client_timeout_s"),
    "channels.relays": ("live/service/service.py", "settings.channels.relays"),
    "privacy.default_precision": ("live/config/settings.py", "privacy.default_precision"),
    "privacy.default_viewers": ("live/config/settings.py", "privacy.default_viewers"),
    "privacy.vids": ("live/service/making.py", "settings.privacy.vids"),
    "privacy.grid_s": ("live/service/making.py", "settings.privacy.grid_s"),
    "privacy.crowd_min": ("live/service/making.py", "settings.privacy.crowd_min"),
    "oidc.issuer": ("live/service/service.py", "settings.oidc.issuer"),
    "oidc.audience": ("live/auth/provider.py", "settings.audience"),
    "oidc.scopes": ("live/auth/provider.py", "settings.scopes"),
    "oidc.scope_claim": ("live/auth/provider.py", "settings.scope_claim"),
    "oidc.groups_claim": ("live/auth/provider.py", "settings.groups_claim"),
    "oidc.subject_claim": ("live/auth/provider.py", "settings.subject_claim"),
    "oidc.prefix": ("live/auth/provider.py", "settings.prefix"),
    "oidc.keys_s": ("live/auth/provider.py", "_settings.keys_s"),
    "webhooks.per_subject_max": (
        "live/service/making.py",
        "settings.webhooks.per_subject_max",
    ),
    "webhooks.timeout_s": ("live/service/webhooks.py", "_settings.timeout_s"),
    "webhooks.private_addresses": ("live/service/webhooks.py", "settings.private_addresses"),
    "journal.on": ("live/service/running.py", "settings.journal.on"),
    "journal.transmissions": ("live/service/running.py", "settings.journal.transmissions"),
    "journal.segment_records_max": ("live/observe/journaling.py", "section.segment_records_max"),
    "journal.segment_s_max": ("live/observe/journaling.py", "section.segment_s_max"),
    "journal.retention_days": ("live/observe/journaling.py", "section.retention_days"),
    "durability.writes_waiting_max": (
        "live/service/running.py",
        "settings.durability.writes_waiting_max",
    ),
    "durability.bytes_waiting_max": (
        "live/service/running.py",
        "settings.durability.bytes_waiting_max",
    ),
    "durability.commit_writes_max": (
        "live/service/running.py",
        "settings.durability.commit_writes_max",
    ),
    "past.archive": ("live/service/service.py", "settings.past.archive"),
    "past.store_hours": ("live/service/making.py", "settings.past.store_hours"),
    "past.steps_max": ("live/service/making.py", "settings.past.steps_max"),
    "past.archive_days": ("live/service/service.py", "settings.past.archive_days"),
    "casts.consent_above": ("live/casts/office.py", "_settings.consent_above"),
    "casts.consent_s": ("live/casts/office.py", "_settings.consent_s"),
    "casts.audit_days": ("live/service/service.py", "settings.casts.audit_days"),
    "events.log_s": ("live/service/making.py", "events.log_s"),
    "events.log_bytes_max": ("live/service/making.py", "events.log_bytes_max"),
    "events.bytes_per_s": ("live/service/events.py", "events.bytes_per_s"),
    "events.bytes_burst": ("live/service/events.py", "events.bytes_burst"),
    "events.consumers_max": ("live/service/making.py", "events.consumers_max"),
    "events.sleep_s_max": ("live/service/making.py", "events.sleep_s_max"),
    "events.transitions": ("live/service/making.py", "events.transitions"),
    "events.transitions_least": ("live/service/making.py", "events.transitions_least"),
    "homes.high": ("live/config/homes.py", "self.high"),
    "homes.low": ("live/config/homes.py", "self.low"),
    "homes.latency": ("live/config/homes.py", "self.latency"),
    "homes.bytes": ("live/config/homes.py", "self.bytes"),
    "homes.power": ("live/config/homes.py", "self.power"),
    "homes.gain": ("live/config/homes.py", "self.gain"),
    "homes.hop_ms": ("live/config/homes.py", "self.hop_ms"),
    "homes.dwell_s": ("live/config/homes.py", "self.dwell_s"),
    "homes.delay_s": ("live/config/homes.py", "self.delay_s"),
    "homes.lease_s": ("live/config/homes.py", "self.lease_s"),
    "log.style": ("live/observe/logs.py", "settings.style"),
    "log.level": ("live/observe/logs.py", "settings.level"),
    "cluster.replicas": ("live/service/running.py", "settings.cluster.replicas"),
    "cluster.secret_file": ("live/config/settings.py", "self.secret_file"),
    "cluster.tls_ca": ("live/cluster/link.py", "cluster.tls_ca"),
    "cluster.probe_s": ("live/config/settings.py", "self.probe_s"),
    "cluster.silent_s": ("live/config/settings.py", "self.silent_s"),
    "cluster.stagger_s": ("live/config/settings.py", "self.stagger_s"),
    "cluster.follow_s": ("live/service/service.py", "settings.cluster.follow_s"),
    "identity.node": ("live/service/running.py", "settings.identity.node"),
    "identity.accept": ("live/config/identity.py", "self.accept"),
    "identity.mail": ("live/service/service.py", "settings.identity.mail"),
    "identity.hosts": ("live/auth/registrations.py", "settings.identity.hosts"),
    "identity.key_days": ("live/config/settings.py", "self.identity.key_days"),
    "push.contact": ("live/trust/pushing.py", "settings.contact"),
    "push.services": ("live/trust/pushing.py", "_settings.services"),
    "push.timeout_s": ("live/trust/pushing.py", "_settings.timeout_s"),
    "push.private_addresses": ("live/trust/pushing.py", "_settings.private_addresses"),
    "overlay.node": ("live/overlay/node.py", "section.node"),
    "overlay.areas": ("live/overlay/node.py", "section.areas"),
    "overlay.filters": ("live/overlay/node.py", "section.filters"),
    "overlay.url": ("live/overlay/node.py", "section.url"),
    "overlay.tls_ca": ("live/service/service.py", "settings.overlay.tls_ca"),
    "overlay.hosts": ("live/overlay/node.py", "section.hosts"),
    "overlay.links": ("live/overlay/node.py", "section.links"),
    "overlay.summary_bytes": ("live/overlay/node.py", "section.summary_bytes"),
    "overlay.known": ("live/overlay/node.py", "section.known"),
    "overlay.neighbours": ("live/overlay/node.py", "section.neighbours"),
}
"""Each setting → a module that reads it, and how it is written there."""


def test_the_table_names_every_setting_and_no_other() -> None:
    assert list(READ) == [
        f"{section.name}.{field.name}"
        for section in msgspec.structs.fields(Settings)
        for field in msgspec.structs.fields(section.type)
    ]


@pytest.mark.parametrize("setting", READ)
def test_a_setting_is_read(setting: str) -> None:
    module, written = READ[setting]
    text = (SOURCE / module).read_text(encoding="utf-8")
    assert re.search(rf"\b{re.escape(written)}\b", text), f"{module} does not read {written}"
