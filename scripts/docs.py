"""Which pages of docs/ follow from the code? This writes them; a test checks that they are current.

`python scripts/docs.py` writes every page, `python scripts/docs.py --check` says which are stale. A
new protocol adds one `Section`; nothing else is written by hand.
"""

import ast
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

import msgspec

from roamcast.channels.client.link_messages import LINK_MESSAGES
from roamcast.channels.client.map_client import LINK_TABLE, LinkState
from roamcast.channels.failover.messages import FAILOVER_MESSAGES
from roamcast.channels.failover.replica_messages import REPLICA_MESSAGES
from roamcast.channels.failover.watchdog import WATCHDOG_TABLE, WatchdogState
from roamcast.channels.reliable.messages import PROTOCOL
from roamcast.channels.reliable.receiver import RECEIVER_TABLE, ReceiverState
from roamcast.channels.reliable.sender import SENDER_TABLE, SenderState
from roamcast.channels.server.messages import MAP_MESSAGES
from roamcast.channels.sessions import messages
from roamcast.channels.sessions.settings import HubSettings
from roamcast.channels.sessions.webhooks import WebhookSettings
from roamcast.identity import rules
from roamcast.live.auth.admission import (
    ANCESTORS_MAX,
    BOUND_LENGTH_MAX,
    GROUPS_MAX,
    LIFETIME_S_MAX,
)
from roamcast.live.config.settings import Settings
from roamcast.live.http.writing import BATCH_MAX
from roamcast.live.links.session import IN_FLIGHT_MAX
from roamcast.live.what_if import office
from roamcast.model.contexts import ATTRIBUTES_MAX
from roamcast.model.events import VIEW_CLASSES_MAX
from roamcast.model.filters.parse import DEPTH_MAX, PATTERN_LENGTH_MAX
from roamcast.model.filters.scan import LENGTH_MAX, PARENTHESES_DEPTH_MAX, TERMS_MAX
from roamcast.model.filters.shapes import VERTICES_MAX
from roamcast.model.wire import FRAME_BYTES_MAX, Reason, Registry, page_of
from roamcast.overlay.casts.settings import CastSettings
from roamcast.overlay.custody.held import PARCEL_TABLE, ParcelState
from roamcast.overlay.filters.states import FILTER_TABLE, FilterState
from roamcast.overlay.handoff.states import (
    ASKED_TABLE,
    HOME_TABLE,
    NEXT_TABLE,
    AskedState,
    HomeState,
    NextState,
)
from roamcast.overlay.homes.choice import LOAD_TABLE, LoadState
from roamcast.overlay.homes.managers import CHANGE_TABLE, ChangeState
from roamcast.overlay.homes.records import SERVING_TABLE, ServingState
from roamcast.overlay.links.messages import LINK_MESSAGES as OVERLAY_LINKS
from roamcast.overlay.links.neighbour import LINKS_TABLE, NeighbourState
from roamcast.overlay.overlay import CARRIED
from roamcast.overlay.topology.discovery import DISCOVERY_MESSAGES, SEARCH_TABLE, SearchState
from roamcast.transport.outward import URL_LENGTH_MAX

ROOT = Path(__file__).resolve().parents[1]

Table = Mapping[tuple[StrEnum, StrEnum], StrEnum]


class Section(NamedTuple):
    """One protocol: its messages, and its machines' tables with the state each begins in."""

    title: str
    says: str
    registry: Registry
    machines: tuple[tuple[str, StrEnum, Table], ...]


SECTIONS = (
    Section(
        "The reliable channel",
        "AMS 6 and 12: one sender, many receivers, nothing lost unannounced "
        "(`channels/reliable/sender.py`, `channels/reliable/receiver.py`, [decision 0023]"
        "(decisions/0023-heals-go-to-everyone-requests-to-the-sender.md)).",
        PROTOCOL,
        (
            ("The sender", SenderState.STEADY, SENDER_TABLE),
            ("The receiver", ReceiverState.JOINING, RECEIVER_TABLE),
        ),
    ),
    Section(
        "The map service",
        "AMS 1 to 17: a server, its clients and their channels, which speak the protocol above, "
        "too (`channels/server/`, `channels/client/`, [channels](channels.md)). A relay "
        "(`channels/relay/`) speaks it as a client to the server and as a server to clients.",
        Registry(MAP_MESSAGES),
        (("The client's link", LinkState.WAITING, LINK_TABLE),),
    ),
    Section(
        "Hosts that may serve",
        "AMS 14 and 15: watchdogs, take-over and the merging of maps "
        "(`channels/failover/`, [channels](channels.md#when-a-server-is-gone)).",
        Registry(FAILOVER_MESSAGES),
        (("The watchdog", WatchdogState.STANDBY, WATCHDOG_TABLE),),
    ),
    Section(
        "Between hosts",
        "What the hosts that may serve say over `/replica` beside the messages above "
        "(`channels/failover/replica_messages.py`, `live/cluster/replicas.py`, [replicas]"
        "(service.md#two-replicas-or-more)).",
        Registry(REPLICA_MESSAGES),
        (),
    ),
    Section(
        "Between nodes",
        "What linked brokers say to each other ([overlay](overlay.md)): the link's own messages, "
        "and the search for neighbours that nobody configured (`overlay/links/`, "
        "`overlay/topology/`).",
        Registry((*OVERLAY_LINKS, *DISCOVERY_MESSAGES)),
        (
            ("The link", NeighbourState.DOWN, LINKS_TABLE),
            ("The search", SearchState.RESTING, SEARCH_TABLE),
        ),
    ),
    Section(
        "Inside frames between nodes",
        "What the overlay's parts say over links: topology, tables, parcels, flows, handoffs, "
        "filters, homes (`overlay/topology/`, `overlay/tables/`, `overlay/custody/`, "
        "`overlay/flows/`, `overlay/handoff/`, `overlay/filters/`, `overlay/homes/`).",
        CARRIED,
        (
            ("The parcel", ParcelState.NEW, PARCEL_TABLE),
            ("The filter", FilterState.ABSENT, FILTER_TABLE),
            ("The load of a broker", LoadState.OPEN, LOAD_TABLE),
            ("The change of a client's home", ChangeState.SETTLED, CHANGE_TABLE),
            ("A consumer with modulators at its home", ServingState.ASKING, SERVING_TABLE),
            ("A consumer at its home (JIT's A1)", HomeState.HOME, HOME_TABLE),
            ("A neighbour that was asked", AskedState.ASKED, ASKED_TABLE),
            ("A virtual consumer (JIT's A2)", NextState.PREPARING, NEXT_TABLE),
        ),
    ),
    Section(
        "Links",
        "A client's WebSocket to the live service, `/link`, carries the two protocols above, each "
        "message in a binary WebSocket message, and these (`channels/client/link_messages.py`, "
        "`live/links/links.py`, [channels](channels.md)).",
        Registry(LINK_MESSAGES),
        (),
    ),
)


def protocol_page() -> str:
    """Write docs/protocol.md: frames, messages, and the machines' states as drawn from tables."""
    reasons = ", ".join(f"`{reason.value}`" for reason in Reason)
    lines = [
        "# The wire protocol",
        "",
        "Written by `make docs` from the registries and tables in the code; do not edit.",
        "",
        "A frame is one byte of protocol version, then one MessagePack array: the message's tag,",
        "then its fields in the order given here. Fields added later stand at the end and have a",
        f"default. A frame has at most {FRAME_BYTES_MAX:,} bytes. What cannot be read is dropped",
        f"with one of these reasons, and nothing else happens: {reasons}.",
        "",
    ]
    for section in SECTIONS:
        lines += [f"## {section.title}", "", section.says, "", page_of(section.registry)]
        for name, first, table in section.machines:
            lines += [f"### {name}'s states", "", *_diagram(first, table), ""]
    lines += _sessions()
    return "\n".join(lines).rstrip() + "\n"


def _sessions() -> list[str]:
    """Write the JSON messages of `WS /session`, from the schemas that `/openapi.json` has."""
    lines = [
        "## Sessions",
        "",
        "`WS /session` carries JSON, one object a message, told apart by `type`",
        "(`channels/sessions/messages.py`, [following](service.md#following)). `/openapi.json` has",
        "the same schemas as `SessionMessage` and `SessionAnswer`.",
        "",
    ]
    _, schemas = msgspec.json.schema_components((messages.Anything, messages.Answer))
    for title, union in (("program", messages.Anything), ("service", messages.Answer)):
        for kind in get_args(union):
            lines += _json_message(title, kind.__struct_config__.tag, schemas[kind.__name__])
    event = _json_message("service", "", schemas[messages.CloudEvent.__name__])
    return [*lines, "### An event of `changes`", *event[1:]]


def _json_message(sender: str, tag: str, schema: dict[str, Any]) -> list[str]:
    lines = [f"### `{tag}`, from the {sender}", "", inspect.cleandoc(schema["description"]), ""]
    rows = [
        f"| `{name}` | {_json_type(field)} | {field.get('description', '')} |"
        for name, field in schema["properties"].items()
        if not (tag and name == "type")
    ]
    return [*lines, "| field | type | says |", "|---|---|---|", *rows, ""]


def _json_type(field: dict[str, Any]) -> str:
    """Name a field's JSON type with its limits and its default."""
    if "$ref" in field:
        return field["$ref"].rpartition("/")[2]
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if "type" not in field:
        return " or ".join(map(_json_type, field["anyOf"]))
    name = field["type"]
    if name == "array" and "prefixItems" in field:
        name = f"list of {len(field['prefixItems'])} {_json_type(field['prefixItems'][0])}"
    elif name == "array":
        name = f"list of {_json_type(field['items'])}"
    signs = {"minimum": "≥", "maximum": "≤", "minLength": "length ≥", "maxLength": "length ≤"}
    limits = [f"{sign} {field[limit]:,}" for limit, sign in signs.items() if limit in field]
    default = [f"default `{json.dumps(field['default'])}`"] if "default" in field else []
    return ", ".join([name, *limits, *default])


def _diagram(first: StrEnum, table: Table) -> list[str]:
    """Draw a machine's table as a Mermaid state diagram."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first.name}"]
    lines += [f"    {state.name}: {state.value}" for state in type(first)]
    lines += [
        f"    {state.name} --> {following.name}: {event.value}"
        for (state, event), following in table.items()
    ]
    return [*lines, "```"]


def configuration_page() -> str:
    """Write docs/configuration.md: every section and key with its default and its limits."""
    lines = [
        "# Configuration",
        "",
        "Written by `make docs` from `live/config/settings.py`; do not edit.",
        "",
        "One TOML file, `roamcast serve --settings roamcast.toml`. A key that it leaves out has",
        "the default given here. With a mistake, such as an unknown key, the service does not",
        "start, and one line names the file, the line and the key. Sizes are in bytes, times in",
        "seconds.",
        "",
        "The service listens on loopback only, unless `tls_cert` and `tls_key` are set and keys",
        "exist (`roamcast token` makes them). The filter language has further, fixed limits",
        "([filters](filters.md)).",
        "",
    ]
    example = ["```toml"]
    for section in msgspec.structs.fields(Settings):
        lines += [f"## `[{section.name}]`", "", inspect.cleandoc(section.type.__doc__), ""]
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        example += [f"[{section.name}]"]
        for field in msgspec.structs.fields(section.type):
            kind, said = _setting(field.type)
            default = "{}" if field.default is msgspec.NODEFAULT else _toml(field.default)
            lines.append(f"| `{field.name}` | {kind} | `{default}` | {said} |")
            example.append(f"{field.name} = {default}")
        lines.append("")
        example.append("")
    lines += _limits()
    lines += ["## All of it", "", "A file that changes nothing:", "", *example[:-1], "```"]
    return "\n".join(lines) + "\n"


FILTER_LIMITS = {
    "filter.length": LENGTH_MAX,
    "filter.terms": TERMS_MAX,
    "filter.depth": DEPTH_MAX,
    "filter.parentheses": PARENTHESES_DEPTH_MAX,
    "filter.pattern": PATTERN_LENGTH_MAX,
    "filter.vertices": VERTICES_MAX,
}
"""Limits of the language; no setting changes them."""


FIXED_LIMITS = {
    "batch.features_max": BATCH_MAX,
    "broker.view_classes_max": VIEW_CLASSES_MAX,
    "casts.candidates_max": CastSettings().candidates_max,
    "casts.union_max": CastSettings().union_max,
    "casts.update_max": CastSettings().update_max,
    "casts.waiting_per_sender_max": CastSettings().sender_max,
    "rules.rules_max": rules.RULES_MAX,
    "rules.viewers_max": rules.VIEWERS_MAX,
    "rules.viewer_length_max": rules.VIEWER_LENGTH_MAX,
    "rules.attributes_max": ATTRIBUTES_MAX,
    "session.sessions_max": HubSettings().sessions_max,
    "session.publications_waiting_max": IN_FLIGHT_MAX,
    "session.subscriptions_a_message_max": messages.SUBSCRIPTIONS_A_MESSAGE_MAX,
    "token.filter_length_max": BOUND_LENGTH_MAX,
    "token.ancestors_max": ANCESTORS_MAX,
    "token.groups_max": GROUPS_MAX,
    "token.lifetime_s_max": LIFETIME_S_MAX,
    "webhook.webhooks_max": WebhookSettings().webhooks_max,
    "webhook.waiting_max": WebhookSettings().waiting_max,
    "webhook.events_max": WebhookSettings().events_max,
    "webhook.url_length_max": URL_LENGTH_MAX,
    "what_if.changes_max": office.STEPS_MAX,
    "what_if.bytes_max": office.BYTES_MAX,
    "what_if.answer_s_max": office.ANSWER_S_MAX,
}


def limits() -> dict[str, Any]:
    """Name every limit with its default: of the settings, of the language, of some requests."""
    found = {
        f"{section.name}.{field.name}": field.default
        for section in msgspec.structs.fields(Settings)
        if section.name in ("limits", "durability", "webhooks")
        for field in msgspec.structs.fields(section.type)
        if type(field.default) is not bool
    }
    return found | FILTER_LIMITS | FIXED_LIMITS


def limit_tests() -> dict[str, str]:
    """Find the test of each limit, by the mark `limit`."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.limit(" not in text:
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.limit":
                        where = f"{path.relative_to(ROOT).as_posix()}::{node.name}"
                        found |= {ast.literal_eval(name): where for name in mark.args}
    return found


def _limits() -> list[str]:
    lines = [
        "## Limits and their tests",
        "",
        "For a size or a number the test takes what is at the limit and refuses what is one past",
        "it (`items_max` is lowered instead, as OGC API wants). For a time (`…_s`) on a running",
        "service, a rate or a default it shows the effect. Limits of `filter`, `batch`, `broker`,",
        "`casts`, `rules`, `session`, `token`, `webhook` and `what_if` are fixed.",
        "",
        "| limit | default | test |",
        "|---|---|---|",
    ]
    tests = limit_tests()
    rows = [
        f"| `{name}` | {_toml(value).replace('_', ',')} | `{tests.get(name, 'none')}` |"
        for name, value in limits().items()
    ]
    return [*lines, *rows, ""]


def _setting(annotated: Any) -> tuple[str, str]:
    """Name a setting's type with its limits, and what it says."""
    kind, meta = get_args(annotated)
    name = {int: "whole number", float: "number", str: "text", bool: "`true` or `false`"}.get(kind)
    if get_origin(kind) is tuple:
        name = "list of texts"
    elif get_origin(kind) is dict:
        name = "table of texts"
    elif name is None:
        name = " or ".join(f"`{choice}`" for choice in get_args(kind))
    if meta.ge is not None:
        name += f", {meta.ge:,} to {meta.le:,}"
    return name, meta.description.replace("|", "\\|")


def _toml(value: Any) -> str:
    """Write a default as TOML does; a whole number of seconds without its decimals."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value:_.0f}" if value == int(value) else f"{value}"


PAGES: Mapping[str, Callable[[], str]] = {
    "docs/protocol.md": protocol_page,
    "docs/configuration.md": configuration_page,
}


def stale() -> list[str]:
    """Name the pages that differ from what the code says."""
    return [
        name
        for name, page in PAGES.items()
        if not (ROOT / name).is_file() or (ROOT / name).read_text(encoding="utf-8") != page()
    ]


def main() -> int:
    """Write the pages, or with --check only say which ones would change."""
    changed = stale()
    if "--check" in sys.argv[1:]:
        sys.stderr.writelines(f"{name} is stale: run `make docs`\n" for name in changed)
        return 1 if changed else 0
    for name in changed:
        (ROOT / name).write_text(PAGES[name](), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
