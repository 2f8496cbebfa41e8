"""Settings of a service: one TOML file, read into frozen sections with every limit in one place.

A key that the file leaves out has its default. An error names the file and the line of the key; an
unknown key is an error, with the name that was probably meant. docs/configuration.md is generated
from here.
"""

import stat
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from roamcast.channels.failover.watchdog import WatchdogSettings
from roamcast.channels.server.settings import MapSettings, Mode
from roamcast.channels.sessions.settings import HubSettings
from roamcast.errors import SettingsError
from roamcast.identity.policy import PUBLIC
from roamcast.identity.rules import Rule
from roamcast.live.config.casting import CastSection
from roamcast.live.config.events import EventSection
from roamcast.live.config.homes import HomeSection
from roamcast.live.config.identity import Identity, PushSection
from roamcast.live.config.lines import located, read_document
from roamcast.live.config.privacy import Privacy
from roamcast.live.config.problems import (
    cluster_problem,
    is_loopback,
    problem,
    public_key,
)
from roamcast.live.config.sections import Section
from roamcast.live.config.sections import number as _number
from roamcast.live.config.sections import text as _text
from roamcast.model.filters.scan import LENGTH_MAX
from roamcast.model.time import MICROSECONDS
from roamcast.model.wire import FRAME_BYTES_MAX

KIB: Final = 1024
MIB: Final = 1024 * KIB
DAY_S: Final = 86_400
KEY_FILE: Final = "keys.json"
STORE_FILE: Final = "store.sqlite"
REPLICAS_MAX: Final = 16
SUMMARY_BYTES: Final = 16 * KIB
SUMMARY_BYTES_MIN: Final = 128
SUMMARY_BYTES_MAX: Final = 32 * KIB
"""As `overlay.tables.crowd` bounds them; reading settings need not load it."""

SECRET_BYTES_MIN: Final = 32
SECRET_BYTES_MAX: Final = 4_096
_MODES: Final = {"unicast": Mode.UNICAST, "single": Mode.SINGLE, "many": Mode.MANY}


class ServerSection(Section, frozen=True, kw_only=True):
    """Where the service listens and stores its data."""

    host: Annotated[str, _text("address to listen on; any but loopback needs TLS", 255)] = (
        "127.0.0.1"
    )
    port: Annotated[int, _number(0, 65_535, "port for everything; 0 lets the system choose")] = 8080
    data: Annotated[str, _text("folder of the keys, the store and the journal")] = "roamcast-data"
    name: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
            description="name of this service; NATS subjects start with it",
        ),
    ] = "roamcast"
    tls_cert: Annotated[str, _text("PEM file of the certificate and its chain")] = ""
    tls_key: Annotated[str, _text("PEM file of the certificate's private key")] = ""
    places: Annotated[str, _text("GeoJSON file of the hierarchy of places; empty for none")] = ""
    cors_origins: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            max_length=100,
            description="origins whose pages may ask, such as `https://maps.example`; `*` for all",
        ),
    ] = ()
    shutdown_s: Annotated[float, _number(0, 300, "time that open requests have after SIGTERM")] = (
        5.0
    )


class Limits(Section, frozen=True, kw_only=True):
    """Limits of one client, and of all together."""

    body_bytes_max: Annotated[int, _number(KIB, 1024 * MIB, "body of a request")] = MIB
    header_bytes_max: Annotated[int, _number(4 * KIB, MIB, "head of a request")] = 64 * KIB
    frame_bytes_max: Annotated[
        int, _number(KIB, FRAME_BYTES_MAX, "WebSocket message from a client")
    ] = MIB
    first_bytes_s: Annotated[
        float, _number(0.1, 600, "time for the head of a request to arrive")
    ] = 10.0
    body_s: Annotated[float, _number(0.1, 3_600, "time for the body of a request to arrive")] = 30.0
    idle_s: Annotated[
        float, _number(1, 3_600, "time that a connection may idle between requests")
    ] = 75.0
    connections_max: Annotated[int, _number(1, 1_000_000, "open connections of all clients")] = (
        10_000
    )
    connections_per_subject_max: Annotated[
        int, _number(1, 1_000_000, "open WebSocket and SSE connections under one subject")
    ] = 100
    anonymous_connections_max: Annotated[
        int, _number(1, 1_000_000, "open connections that have shown no token yet, beside those")
    ] = 2_000
    anonymous_per_address_max: Annotated[
        int, _number(1, 1_000_000, "of these, connections from one address")
    ] = 500
    requests_per_s: Annotated[
        float, _number(0.01, 1_000_000, "sustained request rate of one subject")
    ] = 1_000.0
    requests_burst: Annotated[int, _number(1, 1_000_000, "burst of requests of one subject")] = (
        5_000
    )
    steps_per_s: Annotated[
        float, _number(1, 1e12, "sustained work of one subject's questions, in steps (queries.md)")
    ] = 5e6
    steps_burst: Annotated[
        int, _number(10_000, 10**12, "dearest question, and burst of work of one subject, in steps")
    ] = 40_000_000
    frames_per_s: Annotated[
        float, _number(0.01, 1_000_000, "sustained message rate of one WebSocket")
    ] = 500.0
    frames_burst: Annotated[int, _number(1, 1_000_000, "burst of messages of one WebSocket")] = (
        2_000
    )
    subscriptions_per_client_max: Annotated[
        int, _number(1, 100_000, "subscriptions of one session")
    ] = 1_000
    matches_per_subject_max: Annotated[
        int, _number(1, 1_000_000, "subscriptions of one subject that one object may satisfy")
    ] = HubSettings().matches_max
    standing_steps_max: Annotated[
        int, _number(1, 10**12, "steps that one subject's subscriptions may cost every update")
    ] = MapSettings().standing_steps_max
    publications_per_client_max: Annotated[
        int, _number(1, 1_000_000, "contexts of one session or subject; rule sets of one subject")
    ] = 10_000
    rule_names_per_client_max: Annotated[
        int, _number(1, 10_000_000, "viewers and attributes that one subject's rules name in all")
    ] = 20_000
    filter_length_max: Annotated[
        int,
        _number(16, LENGTH_MAX, "characters of a filter; the language limits its depth and terms"),
    ] = 16 * KIB
    items_default: Annotated[int, _number(1, 10_000, "items on a page by default")] = 10
    items_max: Annotated[int, _number(1, 100_000, "most items on a page")] = 10_000
    nearest_max: Annotated[int, _number(1, 10_000, "most contexts that `nearest` returns")] = 1_000
    context_lifetime_s: Annotated[
        float, _number(1, 3_650 * DAY_S, "default lifetime of a context put over HTTP")
    ] = 3_600.0
    context_lifetime_s_max: Annotated[
        float, _number(1, 3_650 * DAY_S, "longest lifetime of a context put over HTTP")
    ] = 7.0 * DAY_S
    clock_skew_s_max: Annotated[
        float, _number(0, DAY_S, "tolerated error of clients' clocks, in tokens and contexts")
    ] = 60.0
    socket_low_bytes: Annotated[
        int,
        _number(
            0, 64 * MIB, "bytes waiting for a client below which it receives every change again"
        ),
    ] = 64 * KIB
    socket_high_bytes: Annotated[
        int,
        _number(KIB, 64 * MIB, "bytes waiting for a client above which its changes are coalesced"),
    ] = 256 * KIB
    socket_bytes_max: Annotated[
        int, _number(KIB, 256 * MIB, "bytes waiting for a link above which it is cut off")
    ] = 4 * MIB
    slow_s_max: Annotated[
        float, _number(0.1, 3_600, "time after which a client that reads nothing is cut off")
    ] = 30.0
    ping_s: Annotated[float, _number(0.1, 3_600, "interval of pings on a WebSocket")] = 20.0
    pong_s: Annotated[
        float, _number(0.1, 3_600, "time for a pong before the WebSocket is closed")
    ] = 20.0


class Channels(Section, frozen=True, kw_only=True):
    """How updates reach many clients at once (docs/channels.md)."""

    udp: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^$|^\d{1,3}(\.\d{1,3}){3}/\d{1,2}:\d{1,5}$",
            description="multicast range and port such as 239.192.0.0/16:5007; empty for none",
        ),
    ] = ""
    udp_interface: Annotated[str, _text("address of the interface for multicast", 64)] = ""
    nats: Annotated[str, _text("address of a NATS server, nats://host:port; empty for none")] = ""
    nats_user: Annotated[str, _text("user of the NATS server", 256)] = ""
    nats_password_file: Annotated[str, _text("file with that user's password")] = ""
    probe_s: Annotated[
        float, _number(0.05, 60, "interval of reachability probes on UDP and NATS")
    ] = 1.0
    mode: Annotated[
        Literal["unicast", "single", "many"],
        msgspec.Meta(
            description="`many` channels, or one of AMS's baselines: `unicast` to each client, a "
            "`single` channel for all"
        ),
    ] = "many"
    subscribers_min: Annotated[
        int, _number(1, 1_000_000, "q: subscribers of a query that earn it a channel")
    ] = MapSettings().subscribers_min
    history_max: Annotated[int, _number(1, 100_000, "m: sets of queries in the history")] = (
        MapSettings().history_max
    )
    channels_max: Annotated[int, _number(1, 100_000, "most channels of one view class")] = (
        MapSettings().channels_max
    )
    heartbeat_s: Annotated[float, _number(0.05, 600, "interval of clients' heartbeats")] = 1.0
    client_timeout_s: Annotated[
        float, _number(0.2, 3_600, "silence after which a client's contexts leave")
    ] = 5.0
    relays: Annotated[
        tuple[str, ...],
        msgspec.Meta(max_length=1_000, description="subjects whose relays may serve other clients"),
    ] = ()


class OidcSection(Section, frozen=True, kw_only=True):
    """An identity provider (OpenID Connect) whose tokens count beside the service's own."""

    issuer: Annotated[
        str, _text("its issuer, `https://id.example/realm`, as its tokens name it; empty for none")
    ] = ""
    audience: Annotated[str, _text("audience that its tokens must name", 256)] = "roamcast"
    scopes: Annotated[
        dict[str, Literal["read", "publish", "subscribe", "cast", "deposit", "admin"]],
        msgspec.Meta(
            max_length=100,
            description='its scopes or roles and what each grants here, `"map:read" = "read"`; '
            "others grant nothing",
        ),
    ] = msgspec.field(default_factory=dict)
    scope_claim: Annotated[str, _text("claim that holds the scopes", 256)] = "scope"
    groups_claim: Annotated[str, _text("claim that holds the groups", 256)] = "groups"
    subject_claim: Annotated[str, _text("claim that names the subject", 256)] = "sub"
    prefix: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^[a-z0-9]{1,20}:$",
            description="what its subjects and groups begin with here, and in rules",
        ),
    ] = "oidc:"
    keys_s: Annotated[float, _number(10, DAY_S, "age at which its keys are fetched again")] = 300.0


class WebhookSection(Section, frozen=True, kw_only=True):
    """Webhooks: changes posted to those who cannot hold a connection."""

    per_subject_max: Annotated[int, _number(0, 1_000, "webhooks of one subject; 0: none")] = 20
    timeout_s: Annotated[float, _number(0.1, 60, "time for a receiver to connect and answer")] = (
        10.0
    )
    private_addresses: Annotated[
        bool,
        msgspec.Meta(
            description="whether receivers may be on loopback and private networks, and use http"
        ),
    ] = False


class JournalSection(Section, frozen=True, kw_only=True):
    """The journal, which the pipeline reads."""

    on: Annotated[bool, msgspec.Meta(description="whether a journal is written")] = True
    transmissions: Annotated[
        bool, msgspec.Meta(description="whether it records what links and channels send")
    ] = True
    segment_records_max: Annotated[int, _number(1, 65_536, "most records in a segment")] = 65_536
    segment_s_max: Annotated[float, _number(1, DAY_S, "age at which a segment is closed")] = 300.0
    retention_days: Annotated[
        float, _number(0, 3_660, "age at which a segment is deleted; 0: none is")
    ] = 90.0


class PastSection(Section, frozen=True, kw_only=True):
    """What the service remembers of its map, and for how long."""

    archive: Annotated[
        str,
        _text("folder or URI of an archive that this service feeds; without one the past is "
              "forgotten after store_hours"),
    ] = ""  # fmt: skip
    store_hours: Annotated[
        float, _number(0.001, 24 * 366, "time that an ended context stays in the store")
    ] = 24.0
    steps_max: Annotated[
        int, _number(1_000, 100_000_000, "changes in the store; beyond it the oldest leave early")
    ] = 1_000_000
    archive_days: Annotated[
        float, _number(0, 36_600, "age at which a context leaves the archive; 0: none does")
    ] = 0.0


class Durability(Section, frozen=True, kw_only=True):
    """Bounds of the queue before the disk; acknowledged always means on disk."""

    writes_waiting_max: Annotated[
        int, _number(1, 10_000_000, "writes that may wait for the disk; more are refused")
    ] = 100_000
    bytes_waiting_max: Annotated[
        int, _number(KIB, 4096 * MIB, "bytes that may wait for the disk; more are refused")
    ] = 64 * MIB
    commit_writes_max: Annotated[int, _number(1, 1_000_000, "most writes in one transaction")] = (
        10_000
    )


class LogSection(Section, frozen=True, kw_only=True):
    """The log on stderr; it never says who or where anybody is."""

    style: Annotated[
        Literal["plain", "json"],
        msgspec.Meta(description="lines for people, or one JSON object a line"),
    ] = "plain"
    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        msgspec.Meta(description="lowest level that is logged"),
    ] = "info"


class Cluster(Section, frozen=True, kw_only=True):
    """The replicas of the service: one serves, the others stand by (docs/service.md)."""

    replicas: Annotated[
        dict[str, str],
        msgspec.Meta(
            max_length=REPLICAS_MAX,
            description='each replica\'s name and address, `a = "https://a.example:8443"`, in the '
            "order in which they take over; `server.name` is the name of this one",
        ),
    ] = msgspec.field(default_factory=dict)
    secret_file: Annotated[
        str,
        msgspec.Meta(
            max_length=1_024,
            description="file of the secret that replicas share: the same on all, at least 32 "
            "random bytes, readable by its owner only",
        ),
    ] = ""
    tls_ca: Annotated[
        str,
        msgspec.Meta(
            max_length=1_024,
            description="PEM file of the CA of the replicas' certificates; empty for the system's",
        ),
    ] = ""
    probe_s: Annotated[
        float, _number(0.05, 60, "interval of probes of the replica that serves")
    ] = 0.5
    silent_s: Annotated[
        float, _number(0.2, 600, "silence after which a replica counts as gone")
    ] = 3.0
    stagger_s: Annotated[
        float, _number(0.1, 600, "extra delay of each later replica before it takes over")
    ] = 1.0
    follow_s: Annotated[
        float,
        _number(0.05, 600, "time for a replica to store a write before it is left behind"),
    ] = 2.0

    def watchdog(self) -> WatchdogSettings:
        """Give the settings of the watchdog."""
        silent_us = round(self.silent_s * MICROSECONDS)
        return WatchdogSettings(
            probe_us=round(self.probe_s * MICROSECONDS),
            silent_us=silent_us,
            stagger_us=round(self.stagger_s * MICROSECONDS),
            rest_us_max=3 * silent_us,
            leave_us=10 * silent_us,
        )

    def secret(self) -> bytes:
        """Read the secret that replicas share."""
        path = Path(self.secret_file)
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise SettingsError(
                    "other users can read this secret: chmod 600 it", source=str(path)
                )
            secret = path.read_bytes()[: SECRET_BYTES_MAX + 1].strip()
        except OSError as error:
            raise SettingsError(
                f"cannot read the replicas' secret: {error.strerror}", source=str(path)
            ) from None
        if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
            raise SettingsError(
                f"the secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes: "
                "make one with `openssl rand -hex 32`",
                source=str(path),
            )
        return secret


class NeighbourSection(Section, frozen=True, kw_only=True):
    """A node that this one links with."""

    key: Annotated[str, _text("its public key, `ed25519:…`, as `roamcast brokers` prints it", 100)]
    urls: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            max_length=REPLICAS_MAX,
            description="addresses of its hosts; without one it is awaited, and not dialled",
        ),
    ] = ()

    def public_key(self) -> bytes:
        """Give the key's bytes."""
        return public_key(self.key)


class OverlaySection(Section, frozen=True, kw_only=True):
    """This service as a node among others (docs/overlay.md)."""

    node: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$",
            description="name of this node; empty for a service on its own",
        ),
    ] = ""
    areas: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            max_length=64, description="places that it serves, or polygons in WKT; none for all"
        ),
    ] = ()
    filters: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^(all|paying|[0-9]{1,6})$",
            description="nodes that match what passes: `all`, those that are `paying`, or how many",
        ),
    ] = "all"
    url: Annotated[str, _text("where people reach this service; others are sent there")] = ""
    tls_ca: Annotated[str, _text("PEM file of who signs the neighbours' certificates")] = ""
    hosts: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            max_length=REPLICAS_MAX,
            description="where nodes that find this one dial it; without any at `url`",
        ),
    ] = ()
    links: Annotated[
        int, _number(0, 32, "links to have: with fewer it asks neighbours for their neighbours")
    ] = 2
    summary_bytes: Annotated[
        int,
        _number(
            SUMMARY_BYTES_MIN,
            SUMMARY_BYTES_MAX,
            "bytes in which neighbours learn who is here: fewer are coarser, and change less often",
        ),
    ] = SUMMARY_BYTES
    known: Annotated[
        dict[str, str],
        msgspec.Meta(
            max_length=1000,
            description="nodes that may link with this one, and their keys; found or calling",
        ),
    ] = msgspec.field(default_factory=dict)
    neighbours: Annotated[
        dict[str, NeighbourSection],
        msgspec.Meta(max_length=100, description="tables `[overlay.neighbours.NAME]`: see below"),
    ] = msgspec.field(default_factory=dict)


class Settings(Section, frozen=True, kw_only=True):
    """A whole file."""

    server: ServerSection = ServerSection()
    limits: Limits = Limits()
    channels: Channels = Channels()
    privacy: Privacy = Privacy()
    oidc: OidcSection = OidcSection()
    webhooks: WebhookSection = WebhookSection()
    journal: JournalSection = JournalSection()
    durability: Durability = Durability()
    past: PastSection = PastSection()
    casts: CastSection = CastSection()
    events: EventSection = EventSection()
    homes: HomeSection = HomeSection()
    log: LogSection = LogSection()
    cluster: Cluster = Cluster()
    identity: Identity = Identity()
    push: PushSection = PushSection()
    overlay: OverlaySection = OverlaySection()

    @property
    def seats(self) -> tuple[str, ...]:
        """The names of all replicas in their order; this service's alone without a cluster."""
        return tuple(self.cluster.replicas) or (self.server.name,)

    def vid_key_us(self) -> int:
        """Give how long after its credential a vid's past may be asked, in microseconds.

        Its context may be on the map for a lifetime, and then in the store or the archive.
        """
        past, days = self.past, self.identity.key_days
        kept_days = (past.archive_days or days) if past.archive else past.store_hours / 24
        kept_s = kept_days * DAY_S + self.limits.context_lifetime_s_max
        return round(min(kept_s, days * DAY_S) * MICROSECONDS)

    def map_settings(self) -> MapSettings:
        """Give the settings of the map's machines."""
        chosen = self.channels
        return MapSettings(
            mode=_MODES[chosen.mode],
            subscribers_min=chosen.subscribers_min,
            history_max=chosen.history_max,
            channels_max=chosen.channels_max,
            heartbeat_us=round(chosen.heartbeat_s * MICROSECONDS),
            client_timeout_us=round(chosen.client_timeout_s * MICROSECONDS),
            publications_max=self.limits.publications_per_client_max,
            standing_steps_max=self.limits.standing_steps_max,
            stamp_ahead_us_max=round(self.limits.clock_skew_s_max * MICROSECONDS),
        )


def load_settings(path: Path) -> Settings:
    """Read a settings file."""
    return parse_settings(*read_document(path))


def parse_settings(text: str, source: str = "settings") -> Settings:
    """Read the text of a settings file; an error names the line."""
    return located(text, source, Settings, problem)


def default_rules(settings: Settings) -> tuple[Rule, ...]:
    """Give the rules of contexts whose publisher set none."""
    privacy = settings.privacy
    if privacy.default_precision == "exact" and privacy.default_viewers == ("*",):
        return PUBLIC
    return (Rule(viewers=privacy.default_viewers, precision=privacy.default_precision, past=True),)


def with_server(settings: Settings, **options: Any) -> Settings:
    """Replace keys of `[server]` by command-line options, and check them again."""
    given = {name: value for name, value in options.items() if value is not None}
    section = msgspec.to_builtins(msgspec.structs.replace(settings.server, **given))
    try:
        server = msgspec.convert(section, ServerSection)
    except msgspec.ValidationError as error:
        raise SettingsError(str(error)) from None
    return msgspec.structs.replace(settings, server=server)


def check_cluster(settings: Settings) -> None:
    """Refuse a replica that the settings do not list, or that has no secret."""
    wrong = cluster_problem(settings.cluster, settings.server.name, settings.limits.frame_bytes_max)
    if wrong is not None:
        raise SettingsError(wrong[1])
    if settings.cluster.replicas:
        settings.cluster.secret()


def check_secured(server: ServerSection) -> None:
    """Refuse to listen beyond loopback without TLS."""
    for name in filter(None, (server.tls_cert, server.tls_key)):
        if not Path(name).is_file():
            raise SettingsError(f"there is no file {name}: tls_cert and tls_key name PEM files")
    if not is_loopback(server.host) and not (server.tls_cert and server.tls_key):
        raise SettingsError(
            f"refusing to listen on {server.host} without TLS: "
            "set tls_cert and tls_key in [server], or listen on 127.0.0.1"
        )


def check_listening(server: ServerSection) -> None:
    """Refuse to listen beyond loopback without TLS and keys."""
    check_secured(server)
    if not is_loopback(server.host) and not (Path(server.data) / KEY_FILE).is_file():
        raise SettingsError(
            f"refusing to listen on {server.host} without keys: "
            f"make them with `roamcast token --data {server.data}`"
        )
