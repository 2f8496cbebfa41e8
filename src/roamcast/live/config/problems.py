"""What is wrong with settings that no field can check alone: the keys to blame, and what to do."""

import base64
import ipaddress
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from roamcast.errors import InputError, SettingsError
from roamcast.model.service_areas import check_areas

if TYPE_CHECKING:
    from roamcast.live.config.homes import HomeSection
    from roamcast.live.config.identity import Identity
    from roamcast.live.config.settings import Cluster, OverlaySection, Settings

REPLICA_FRAME_BYTES: Final = 1024 * 1024
"""Replicas copy the store in messages of this size."""

TRUSTED_NAME_MAX: Final = 103
"""A vid with the name of its node is a subject, of 128 characters at most."""

PUBLIC_KEY_BYTES: Final = 32
_TRUSTED: Final = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(\.(?!-)[a-z0-9-]{1,63}(?<!-))*")
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ORIGIN: Final = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?")

Problem = tuple[tuple[str, ...], str]
"""The keys to blame, and what to do."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def problem(settings: "Settings") -> Problem | None:
    """Check what no field can check alone."""
    server, limits, channels = settings.server, settings.limits, settings.channels
    ordered = (
        ("items_default", "items_max"),
        ("socket_low_bytes", "socket_high_bytes"),
        ("socket_high_bytes", "socket_bytes_max"),
        ("context_lifetime_s", "context_lifetime_s_max"),
    )
    for low, high in ordered:
        less, more = getattr(limits, low), getattr(limits, high)
        if less > more:
            keys = (f"limits.{low}", f"limits.{high}")
            return keys, f"{low} ({less:g}) must not be more than {high} ({more:g})"
    if bool(server.tls_cert) != bool(server.tls_key):
        named = "tls_cert" if server.tls_cert else "tls_key"
        return (f"server.{named}",), "tls_cert and tls_key go together: set both or none"
    if not is_loopback(server.host) and not server.tls_cert:
        return ("server.host",), (
            f"refusing to listen on {server.host} without TLS: "
            "set tls_cert and tls_key, or listen on 127.0.0.1"
        )
    for origin in server.cors_origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            return ("server.cors_origins",), f"{origin[:60]!r} is no origin: scheme://host[:port]"
    if settings.oidc.issuer and (wrong := _issuer_problem(settings.oidc.issuer)):
        return ("oidc.issuer",), wrong
    if channels.client_timeout_s < 2 * channels.heartbeat_s:
        keys = ("channels.client_timeout_s", "channels.heartbeat_s")
        return keys, "client_timeout_s must be at least two heartbeats"
    if channels.udp and (wrong := _udp_problem(channels.udp)):
        return ("channels.udp",), wrong
    if channels.nats and not channels.nats.startswith(("nats://", "tls://")):
        return ("channels.nats",), "expected an address such as nats://127.0.0.1:4222"
    misnamed = _identity_problem(settings.identity) or _overlay_problem(settings.overlay)
    if misset := misnamed or _homes_problem(settings.homes):
        return misset
    # A file that all replicas share names none of them; the command line does, with --name.
    name = None if server.name == type(server)().name else server.name
    return cluster_problem(settings.cluster, name, limits.frame_bytes_max)


def _issuer_problem(issuer: str) -> str | None:
    parts = urlsplit(issuer)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        return "expected an address such as https://id.example/realm"
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        return "an issuer beyond this machine needs https"
    return None


def _homes_problem(homes: "HomeSection") -> Problem | None:
    if homes.low > homes.high:
        keys = ("homes.low", "homes.high")
        return keys, f"low ({homes.low:g}) must not be more than high ({homes.high:g})"
    if not (homes.latency or homes.bytes or homes.power):
        return ("homes.latency",), "a home is chosen for something: latency, bytes or power"
    return None


def _identity_problem(identity: "Identity") -> Problem | None:
    for name in filter(None, (identity.node, *identity.accept)):
        if len(name) > TRUSTED_NAME_MAX or not _TRUSTED.fullmatch(name):
            wrong = f"{name[:60]!r} is not a domain name of at most {TRUSTED_NAME_MAX} characters"
            return ("identity.accept", "identity.node"), wrong
    try:
        identity.accepted()
    except SettingsError as error:
        return ("identity.accept",), str(error)
    for name, mail in identity.mail.items():
        key = f"identity.mail.{name}"
        if name not in identity.accept:
            return (key, "identity.mail"), f"{name[:60]!r} is not in accept: whose key is it?"
        misplaced = address_problem(mail.url)
        if misplaced:
            return (f"{key}.url", key), misplaced
    return None


def public_key(text: str) -> bytes:
    """Read a public key as settings write it."""
    kind, _, encoded = text.partition(":")
    try:
        key = base64.b64decode(encoded, validate=True)
    except ValueError:
        key = b""
    if kind != "ed25519" or len(key) != PUBLIC_KEY_BYTES:
        raise SettingsError("a public key is ed25519: and 44 characters of base64")
    return key


def _udp_problem(udp: str) -> str | None:
    span, _, port = udp.rpartition(":")
    try:
        network = ipaddress.IPv4Network(span)
    except ValueError as error:
        return f"not a range of addresses: {error}"
    if not network.is_multicast:
        return f"{span} is not within 224.0.0.0/4, the multicast range"
    if not 0 < int(port) < 65_536:
        return f"port {port} does not exist"
    return None


def _overlay_problem(overlay: "OverlaySection") -> Problem | None:
    if overlay.neighbours and not overlay.node:
        return ("overlay.node", "overlay.neighbours"), "a node with neighbours needs a name"
    try:
        check_areas(overlay.areas)
    except InputError as error:
        return ("overlay.areas",), str(error)
    if wrong := _known_problem(overlay):
        return wrong
    for name, neighbour in overlay.neighbours.items():
        key = f"overlay.neighbours.{name}"
        if name == overlay.node or not _NAME.fullmatch(name):
            return (key,), "a neighbour has a name of its own: small letters, digits and hyphens"
        try:
            neighbour.public_key()
        except SettingsError as error:
            return (f"{key}.key", key), str(error)
        for url in neighbour.urls:
            if misplaced := address_problem(url):
                return (f"{key}.urls", key), misplaced
    return None


def _known_problem(overlay: "OverlaySection") -> Problem | None:
    if overlay.known and not overlay.node:
        return ("overlay.node", "overlay.known"), "a node that others may link with needs a name"
    for name, known in overlay.known.items():
        if not _NAME.fullmatch(name):
            return ("overlay.known",), f"no node's name: {name!r}"
        try:
            public_key(known)
        except SettingsError as error:
            return (f"overlay.known.{name}", "overlay.known"), str(error)
    for url in overlay.hosts:
        if wrong := address_problem(url):
            return ("overlay.hosts",), wrong
    return None


def cluster_problem(cluster: "Cluster", name: str | None, frame_bytes_max: int) -> Problem | None:
    """Say what is wrong with the replicas of a service, or with its being one of them."""
    if not cluster.replicas:
        return None
    for replica, url in cluster.replicas.items():
        wrong = _replica_problem(replica, url)
        if wrong:
            return (f"cluster.replicas.{replica}", "cluster.replicas"), wrong
    if len(set(cluster.replicas.values())) < len(cluster.replicas):
        return ("cluster.replicas",), "two replicas have the same address"
    if name is not None and name not in cluster.replicas:
        known = ", ".join(cluster.replicas)
        wrong = f"{name!r} is none of the replicas {known}: name this one with --name"
        return ("server.name", "cluster.replicas"), wrong
    if not cluster.secret_file:
        keys = ("cluster.secret_file", "cluster.replicas")
        return keys, "replicas share a secret: set secret_file in [cluster]"
    if cluster.silent_s < 2 * cluster.probe_s:
        return ("cluster.silent_s", "cluster.probe_s"), "silent_s must be at least two probes"
    if frame_bytes_max < REPLICA_FRAME_BYTES:
        wrong = f"replicas need messages of {REPLICA_FRAME_BYTES} bytes"
        return ("limits.frame_bytes_max", "cluster.replicas"), wrong
    return None


def _replica_problem(replica: str, url: str) -> str | None:
    if not _NAME.fullmatch(replica):
        return "a replica's name has letters a-z, digits and - in between"
    return address_problem(url)


def address_problem(url: str) -> str | None:
    """Say what is wrong with the address of another host."""
    expected = "expected an address such as https://a.example:8443"
    try:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.port == 0:
            return expected
    except ValueError:
        return expected
    if parts.path or parts.query or parts.fragment or parts.username:
        return "an address has scheme, host and port only"
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        return "hosts beyond this machine need https"
    return None
