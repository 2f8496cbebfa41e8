"""How is a service set up? One TOML file, read into frozen sections with every limit in one place.

What a file does not say has its default. A mistake is told with the file and the line of the key,
an unknown key with the name that was probably meant. docs/configuration.md is written from here.
"""

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from roamcast.channels.server.settings import MapSettings, Mode
from roamcast.errors import SettingsError
from roamcast.identity.rules import Precision
from roamcast.live.config.cluster import Cluster, cluster_problem
from roamcast.live.config.cluster import is_loopback as is_loopback
from roamcast.live.config.lines import located, read_document
from roamcast.model.filters.scan import LENGTH_MAX
from roamcast.model.wire import FRAME_BYTES_MAX

KIB: Final = 1024
MIB: Final = 1024 * KIB
DAY_S: Final = 86_400
KEY_FILE: Final = "keys.json"
STORE_FILE: Final = "store.sqlite"
_MODES: Final = {"unicast": Mode.UNICAST, "single": Mode.SINGLE, "many": Mode.MANY}


def _whole(least: int, most: int, says: str) -> msgspec.Meta:
    return msgspec.Meta(ge=least, le=most, description=says)


def _seconds(least: float, most: float, says: str) -> msgspec.Meta:
    return msgspec.Meta(ge=least, le=most, description=says)


def _text(says: str, most: int = 1_024) -> msgspec.Meta:
    return msgspec.Meta(max_length=most, description=says)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""


class ServerSection(Section, frozen=True, kw_only=True):
    """Where the service listens and keeps its data."""

    host: Annotated[str, _text("address to listen on; others than loopback need TLS", 255)] = (
        "127.0.0.1"
    )
    port: Annotated[int, _whole(0, 65_535, "port for everything; 0 lets the system choose")] = 8080
    data: Annotated[str, _text("folder of the keys, the store and the journal")] = "roamcast-data"
    name: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
            description="this service among others; channels on NATS carry it",
        ),
    ] = "roamcast"
    tls_cert: Annotated[str, _text("PEM file of the certificate and its chain")] = ""
    tls_key: Annotated[str, _text("PEM file of the certificate's private key")] = ""
    places: Annotated[str, _text("GeoJSON file of the hierarchy of places, or nothing")] = ""
    shutdown_s: Annotated[float, _seconds(0, 300, "after SIGTERM, requests may take so long")] = 5.0


class Limits(Section, frozen=True, kw_only=True):
    """What one client, and what all together, may ask for."""

    body_bytes_max: Annotated[int, _whole(KIB, 1024 * MIB, "body of a request")] = MIB
    header_bytes_max: Annotated[int, _whole(4 * KIB, MIB, "head of a request")] = 64 * KIB
    frame_bytes_max: Annotated[
        int, _whole(KIB, FRAME_BYTES_MAX, "a WebSocket message from a client")
    ] = MIB
    first_bytes_s: Annotated[
        float, _seconds(0.1, 600, "a connection must have sent its request's head within this")
    ] = 10.0
    body_s: Annotated[float, _seconds(0.1, 3_600, "and the body within this")] = 30.0
    idle_s: Annotated[float, _seconds(1, 3_600, "a connection between two requests")] = 75.0
    connections_max: Annotated[int, _whole(1, 1_000_000, "open connections of all clients")] = (
        10_000
    )
    connections_per_subject_max: Annotated[
        int, _whole(1, 1_000_000, "open WebSocket and SSE connections under one subject")
    ] = 100
    requests_per_s: Annotated[
        float, _seconds(0.01, 1_000_000, "requests of one subject in the long run")
    ] = 1_000.0
    requests_burst: Annotated[int, _whole(1, 1_000_000, "requests of one subject at once")] = 5_000
    frames_per_s: Annotated[
        float, _seconds(0.01, 1_000_000, "messages on one WebSocket in the long run")
    ] = 500.0
    frames_burst: Annotated[int, _whole(1, 1_000_000, "messages on one WebSocket at once")] = 2_000
    subscriptions_per_client_max: Annotated[
        int, _whole(1, 100_000, "subscriptions of one session")
    ] = 1_000
    publications_per_client_max: Annotated[
        int, _whole(1, 1_000_000, "contexts of one session or subject; rule sets of one subject")
    ] = 10_000
    filter_length_max: Annotated[
        int, _whole(16, LENGTH_MAX, "characters of a filter; depth and terms are the language's")
    ] = 16 * KIB
    items_default: Annotated[int, _whole(1, 10_000, "items on a page when nobody says")] = 10
    items_max: Annotated[int, _whole(1, 100_000, "items on a page at most")] = 10_000
    nearest_max: Annotated[int, _whole(1, 10_000, "contexts that `nearest` gives at most")] = 1_000
    context_lifetime_s: Annotated[
        float, _seconds(1, 3_650 * DAY_S, "a context put without a session lasts so long")
    ] = 3_600.0
    context_lifetime_s_max: Annotated[
        float, _seconds(1, 3_650 * DAY_S, "the longest that may be asked for")
    ] = 7.0 * DAY_S
    clock_skew_s_max: Annotated[
        float, _seconds(0, DAY_S, "how far clients' clocks may be off, in tokens and contexts")
    ] = 60.0
    token_lifetime_s: Annotated[
        float, _seconds(1, 366 * DAY_S, "a token's lifetime when nobody says")
    ] = 30.0 * DAY_S
    token_lifetime_s_max: Annotated[float, _seconds(1, 366 * DAY_S, "a token's longest")] = (
        366.0 * DAY_S
    )
    socket_low_bytes: Annotated[
        int, _whole(0, 64 * MIB, "below this a slow client gets every change again")
    ] = 64 * KIB
    socket_high_bytes: Annotated[
        int, _whole(KIB, 64 * MIB, "above this waiting for a client, its changes are coalesced")
    ] = 256 * KIB
    socket_bytes_max: Annotated[int, _whole(KIB, 256 * MIB, "above this it is cut off")] = 4 * MIB
    slow_s_max: Annotated[float, _seconds(0.1, 3_600, "coalesced for longer, it is cut off")] = 30.0
    ping_s: Annotated[float, _seconds(0.1, 3_600, "how often a WebSocket is pinged")] = 20.0
    pong_s: Annotated[float, _seconds(0.1, 3_600, "unanswered for so long, it is closed")] = 20.0


class Channels(Section, frozen=True, kw_only=True):
    """How updates reach many clients at once (docs/channels.md)."""

    udp: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^$|^\d{1,3}(\.\d{1,3}){3}/\d{1,2}:\d{1,5}$",
            description="multicast range and port such as 239.192.0.0/16:5007; empty for none",
        ),
    ] = ""
    udp_interface: Annotated[str, _text("address of the interface that sends and joins", 64)] = ""
    nats: Annotated[str, _text("address of a NATS server, nats://host:port; empty for none")] = ""
    nats_user: Annotated[str, _text("user of the NATS server", 256)] = ""
    nats_password_file: Annotated[str, _text("file with that user's password")] = ""
    probe_s: Annotated[
        float, _seconds(0.05, 60, "how often UDP and NATS are probed for clients that listen")
    ] = 1.0
    mode: Annotated[
        Literal["unicast", "single", "many"],
        msgspec.Meta(description="AMS's baselines: everybody alone, one channel for all; or many"),
    ] = "many"
    subscribers_min: Annotated[
        int, _whole(1, 1_000_000, "q: so many subscribers of a query earn a channel")
    ] = MapSettings().subscribers_min
    history_max: Annotated[int, _whole(1, 100_000, "m: remembered sets of queries")] = (
        MapSettings().history_max
    )
    channels_max: Annotated[int, _whole(1, 100_000, "channels of each view class")] = (
        MapSettings().channels_max
    )
    heartbeat_s: Annotated[float, _seconds(0.05, 600, "clients say so often that they live")] = 1.0
    client_timeout_s: Annotated[
        float, _seconds(0.2, 3_600, "unheard for so long, a client's contexts leave")
    ] = 5.0
    relays: Annotated[
        tuple[str, ...],
        msgspec.Meta(max_length=1_000, description="subjects whose relays may ask for many others"),
    ] = ()


class Privacy(Section, frozen=True, kw_only=True):
    """What others see of a context whose publisher set no rules."""

    default_precision: Annotated[
        Precision, msgspec.Meta(description="how precisely; `hidden` shows nothing without rules")
    ] = "exact"
    default_viewers: Annotated[
        tuple[str, ...], msgspec.Meta(max_length=1_000, description="who: names, groups, or `*`")
    ] = ("*",)


class JournalKeeping(Section, frozen=True, kw_only=True):
    """What is handed to the pipeline."""

    on: Annotated[bool, msgspec.Meta(description="whether a journal is written at all")] = True
    transmissions: Annotated[
        bool, msgspec.Meta(description="whether it says what left by links and channels")
    ] = True
    segment_records_max: Annotated[int, _whole(1, 65_536, "records in a segment")] = 65_536
    segment_s_max: Annotated[float, _seconds(1, DAY_S, "age at which a segment is closed")] = 300.0


class Durability(Section, frozen=True, kw_only=True):
    """What waits for the disk; acknowledged means on disk, always."""

    writes_waiting_max: Annotated[
        int, _whole(1, 10_000_000, "writes that may wait; more are refused")
    ] = 100_000
    bytes_waiting_max: Annotated[int, _whole(KIB, 4096 * MIB, "and their bytes")] = 64 * MIB
    commit_writes_max: Annotated[
        int, _whole(1, 1_000_000, "writes that go to disk in one transaction")
    ] = 10_000


class LogKeeping(Section, frozen=True, kw_only=True):
    """What is logged, to stderr; never who or where anybody is."""

    style: Annotated[
        Literal["plain", "json"], msgspec.Meta(description="for people, or an object a line")
    ] = "plain"
    level: Annotated[
        Literal["debug", "info", "warning", "error"], msgspec.Meta(description="the least told")
    ] = "info"


class Settings(Section, frozen=True, kw_only=True):
    """A whole file."""

    server: ServerSection = ServerSection()
    limits: Limits = Limits()
    channels: Channels = Channels()
    privacy: Privacy = Privacy()
    journal: JournalKeeping = JournalKeeping()
    durability: Durability = Durability()
    log: LogKeeping = LogKeeping()
    cluster: Cluster = Cluster()

    @property
    def seats(self) -> tuple[str, ...]:
        """The hosts that may serve, in their order; this one alone without a cluster."""
        return tuple(self.cluster.hosts) or (self.server.name,)

    def map_settings(self) -> MapSettings:
        """Give what the map's machines are told."""
        chosen = self.channels
        return MapSettings(
            mode=_MODES[chosen.mode],
            subscribers_min=chosen.subscribers_min,
            history_max=chosen.history_max,
            channels_max=chosen.channels_max,
            heartbeat_us=round(chosen.heartbeat_s * 1_000_000),
            client_timeout_us=round(chosen.client_timeout_s * 1_000_000),
            publications_max=self.limits.publications_per_client_max,
            stamp_ahead_us_max=round(self.limits.clock_skew_s_max * 1_000_000),
        )


def load_settings(path: Path) -> Settings:
    """Read a file; what it does not say has its default."""
    return parse_settings(*read_document(path))


def parse_settings(text: str, source: str = "settings") -> Settings:
    """Read a file's text, or say what is wrong in which line."""
    return located(text, source, Settings, _problem)


def with_server(settings: Settings, **said: Any) -> Settings:
    """Replace parts of the server's section by what the command line said, and check again."""
    given = {name: value for name, value in said.items() if value is not None}
    section = msgspec.to_builtins(msgspec.structs.replace(settings.server, **given))
    try:
        server = msgspec.convert(section, ServerSection)
    except msgspec.ValidationError as error:
        raise SettingsError(str(error)) from None
    return msgspec.structs.replace(settings, server=server)


def check_cluster(settings: Settings) -> None:
    """Refuse a host that is none of those it should work with, or cannot recognise them."""
    wrong = cluster_problem(settings.cluster, settings.server.name, settings.limits.frame_bytes_max)
    if wrong is not None:
        raise SettingsError(wrong[1])
    if settings.cluster.hosts:
        settings.cluster.secret()


def check_secured(server: ServerSection) -> None:
    """Refuse to listen where others could reach us, unless TLS is there."""
    for name in filter(None, (server.tls_cert, server.tls_key)):
        if not Path(name).is_file():
            raise SettingsError(f"there is no file {name}: tls_cert and tls_key name PEM files")
    if not is_loopback(server.host) and not (server.tls_cert and server.tls_key):
        raise SettingsError(
            f"refusing to listen on {server.host} without TLS: "
            "set tls_cert and tls_key in [server], or listen on 127.0.0.1"
        )


def check_listening(server: ServerSection) -> None:
    """Refuse to listen where others could reach us, unless TLS and keys are there."""
    check_secured(server)
    if not is_loopback(server.host) and not (Path(server.data) / KEY_FILE).is_file():
        raise SettingsError(
            f"refusing to listen on {server.host} without keys: "
            f"make them with `roamcast token --data {server.data}`"
        )


_Wrong = tuple[tuple[str, ...], str]


def _problem(settings: Settings) -> _Wrong | None:
    """Find what no field can see alone: (the keys to blame, what to do)."""
    server, limits, channels = settings.server, settings.limits, settings.channels
    ordered = (
        ("items_default", limits.items_default, "items_max", limits.items_max),
        (
            "socket_low_bytes",
            limits.socket_low_bytes,
            "socket_high_bytes",
            limits.socket_high_bytes,
        ),
        (
            "socket_high_bytes",
            limits.socket_high_bytes,
            "socket_bytes_max",
            limits.socket_bytes_max,
        ),
        (
            "context_lifetime_s",
            limits.context_lifetime_s,
            "context_lifetime_s_max",
            limits.context_lifetime_s_max,
        ),
        (
            "token_lifetime_s",
            limits.token_lifetime_s,
            "token_lifetime_s_max",
            limits.token_lifetime_s_max,
        ),
    )
    for low, less, high, more in ordered:
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
    if channels.client_timeout_s < 2 * channels.heartbeat_s:
        keys = ("channels.client_timeout_s", "channels.heartbeat_s")
        return keys, "clients time out no sooner than after two heartbeats"
    if channels.udp and (wrong := _udp_problem(channels.udp)):
        return ("channels.udp",), wrong
    if channels.nats and not channels.nats.startswith(("nats://", "tls://")):
        return ("channels.nats",), "expected an address such as nats://127.0.0.1:4222"
    host = None if server.name == ServerSection().name else server.name
    return cluster_problem(settings.cluster, host, limits.frame_bytes_max)


def _udp_problem(said: str) -> str | None:
    span, _, port = said.rpartition(":")
    try:
        network = ipaddress.IPv4Network(span)
    except ValueError as error:
        return f"no range of addresses: {error}"
    if not network.is_multicast:
        return f"{span} is not within 224.0.0.0/4, where multicast lives"
    if not 0 < int(port) < 65_536:
        return f"port {port} does not exist"
    return None
