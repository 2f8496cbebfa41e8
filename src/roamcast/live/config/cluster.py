"""Which hosts may run the service, and how patient are they with each other? A section of settings.

All hosts can share one file: `roamcast keep --name` says which of them this one is.
"""

import ipaddress
import re
import stat
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec

from roamcast.channels.failover.watchdog import WatchdogSettings
from roamcast.errors import SettingsError

HOSTS_MAX: Final = 16
SECRET_BYTES_MIN: Final = 32
SECRET_BYTES_MAX: Final = 4_096
FRAME_BYTES_MIN: Final = 1024 * 1024
"""Hosts tell each other what they keep in messages of this size."""

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SECOND: Final = 1_000_000


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hosts that may run the service; one does, the others take over (docs/service.md)."""

    hosts: Annotated[
        dict[str, str],
        msgspec.Meta(
            max_length=HOSTS_MAX,
            description='each host\'s name and address, `a = "https://a.example:8443"`, in the '
            "order in which they take over; `server.name` says which of them this one is",
        ),
    ] = msgspec.field(default_factory=dict)
    secret_file: Annotated[
        str,
        msgspec.Meta(
            max_length=1_024,
            description="file by which the hosts recognise each other: the same on all, 32 random "
            "bytes or more, for its owner only",
        ),
    ] = ""
    tls_ca: Annotated[
        str,
        msgspec.Meta(
            max_length=1_024,
            description="PEM file of who signs the hosts' certificates; empty for the system's",
        ),
    ] = ""
    probe_s: Annotated[
        float, msgspec.Meta(ge=0.05, le=60, description="how often the host that serves is asked")
    ] = 0.5
    silent_s: Annotated[
        float, msgspec.Meta(ge=0.2, le=600, description="one that answers nothing so long is gone")
    ] = 3.0
    stagger_s: Annotated[
        float, msgspec.Meta(ge=0.1, le=600, description="each next host waits so much longer")
    ] = 1.0
    follow_s: Annotated[
        float,
        msgspec.Meta(
            ge=0.05,
            le=600,
            description="a host that has not written so long what was acknowledged is left behind",
        ),
    ] = 2.0

    def watchdog(self) -> WatchdogSettings:
        """Give what the watchdog is told."""
        silent_us = round(self.silent_s * _SECOND)
        return WatchdogSettings(
            probe_us=round(self.probe_s * _SECOND),
            silent_us=silent_us,
            stagger_us=round(self.stagger_s * _SECOND),
            rest_us_max=3 * silent_us,
            leave_us=10 * silent_us,
        )

    def secret(self) -> bytes:
        """Read what the hosts recognise each other by."""
        path = Path(self.secret_file)
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise SettingsError("others may read this secret: chmod 600 it", source=str(path))
            secret = path.read_bytes()[: SECRET_BYTES_MAX + 1].strip()
        except OSError as error:
            raise SettingsError(
                f"cannot read the hosts' secret: {error.strerror}", source=str(path)
            ) from None
        if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
            raise SettingsError(
                f"a secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes: "
                "make one with `openssl rand -hex 32`",
                source=str(path),
            )
        return secret


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def cluster_problem(
    cluster: Cluster, name: str | None, frame_bytes_max: int
) -> tuple[tuple[str, ...], str] | None:
    """Find what no field can see alone: (the keys to blame, what to do).

    A file that all hosts share names none of them; the command line does.
    """
    if not cluster.hosts:
        return None
    for host, url in cluster.hosts.items():
        wrong = _host_problem(host, url)
        if wrong:
            return (f"cluster.hosts.{host}", "cluster.hosts"), wrong
    if len(set(cluster.hosts.values())) < len(cluster.hosts):
        return ("cluster.hosts",), "two hosts have the same address"
    if name is not None and name not in cluster.hosts:
        known = ", ".join(cluster.hosts)
        said = f"{name!r} is none of the hosts {known}: say which one this is, with --name"
        return ("server.name", "cluster.hosts"), said
    if not cluster.secret_file:
        keys = ("cluster.secret_file", "cluster.hosts")
        return keys, "hosts recognise each other by a secret: set secret_file in [cluster]"
    if cluster.silent_s < 2 * cluster.probe_s:
        return ("cluster.silent_s", "cluster.probe_s"), "nobody is gone before two probes"
    if frame_bytes_max < FRAME_BYTES_MIN:
        said = f"hosts need messages of {FRAME_BYTES_MIN} bytes"
        return ("limits.frame_bytes_max", "cluster.hosts"), said
    return None


def _host_problem(host: str, url: str) -> str | None:
    if not _NAME.fullmatch(host):
        return "a host's name has letters a-z, digits and - in between"
    parts = urlsplit(url)
    try:
        port_known = parts.port is None or parts.port > 0
    except ValueError:
        port_known = False
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_known:
        return "expected an address such as https://a.example:8443"
    if parts.path or parts.query or parts.fragment or parts.username:
        return "an address is only scheme, host and port"
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        return "hosts that are not on this machine need https"
    return None
