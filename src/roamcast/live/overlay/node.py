"""The node that a service is in the overlay: its key file, its areas, its neighbours.

All hosts of one service are one node, so each needs a copy of `node.key`, as of `keys.json`.
"""

import secrets
from pathlib import Path
from random import SystemRandom
from typing import Final

from roamcast.errors import SettingsError
from roamcast.files import OWNER_ONLY, write_whole
from roamcast.identity.receipts import ReceiptKey
from roamcast.live.config.problems import address_problem, public_key
from roamcast.live.config.settings import OverlaySection, PastSection, Settings
from roamcast.model.time import MICROSECONDS
from roamcast.overlay.filters.planning import FilterSettings
from roamcast.overlay.links.messages import NONCE_BYTES
from roamcast.overlay.links.proof import key_text, signer
from roamcast.overlay.links.settings import NeighbourSettings
from roamcast.overlay.overlay import OverlayNode, OverlaySettings
from roamcast.overlay.tables.feeding import TableSettings, standard_tables
from roamcast.overlay.topology.discovery import DiscoverySettings
from roamcast.overlay.topology.topology import TopologySettings

NODE_KEY_FILE: Final = "node.key"
KEY_BYTES: Final = 32
HOUR_S: Final = 3_600
DAY_S: Final = 24 * HOUR_S
SETTLE_US: Final = 20_000
"""How long changes of the topology are gathered: so much longer readers hear nothing (0310)."""
NEIGHBOURS_FOUND_MAX: Final = 64
"""Neighbours that are not configured, linked or sought."""


def private_key(folder: Path) -> bytes:
    """Read the node's private key, or make one, readable by its owner only."""
    path = folder / NODE_KEY_FILE
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(path, secrets.token_bytes(KEY_BYTES).hex().encode(), mode=OWNER_ONLY)
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read as a node's key: {error}") from None
    if len(key) != KEY_BYTES:
        raise SettingsError(f"{path} is no node's key: it has {len(key)} bytes, not {KEY_BYTES}")
    return key


def public_text(folder: Path) -> str:
    """Give the node's public key as its neighbours set it."""
    return key_text(signer(private_key(folder))[1])


def receipt_key_of(settings: Settings) -> ReceiptKey:
    """Give the name and key that this node signs receipts with, also where it has no neighbours."""
    name = settings.overlay.node or settings.server.name
    return ReceiptKey(name, private_key(Path(settings.server.data)))


def node_of(section: OverlaySection, past: PastSection, folder: Path) -> OverlayNode | None:
    """Make the node of these settings; None where they name none."""
    if not section.node:
        return None
    sign, own_key = signer(private_key(folder))
    filters = section.filters
    retention_s = past.archive_days * DAY_S if past.archive else past.store_hours * HOUR_S
    settings = OverlaySettings(
        topology=TopologySettings(settle_us=SETTLE_US),
        tables=TableSettings(
            crowd_bytes=section.summary_bytes, retention_us=round(retention_s * MICROSECONDS)
        ),
        filters=FilterSettings(int(filters) if filters.isdigit() else filters),  # type: ignore[arg-type]
    )
    neighbours = {
        name: NeighbourSettings(one.public_key(), one.urls)
        for name, one in section.neighbours.items()
    }
    return OverlayNode(
        section.node,
        sign=sign,
        neighbours=neighbours,
        draw=SystemRandom().random,
        nonce=lambda: secrets.token_bytes(NONCE_BYTES),
        settings=settings,
        tables=standard_tables(settings.tables),
        states=True,
        public_key=own_key,
        addresses=tuple(url for url in section.hosts or (section.url,) if _may_dial(url)),
        keys={name: public_key(key) for name, key in section.known.items()},
        discovery=DiscoverySettings(enough=section.links, neighbours_max=NEIGHBOURS_FOUND_MAX),
        may_dial=_may_dial,
        places=section.areas,
        has_past=bool(past.archive) and Path(past.archive).exists(),
        url=section.url,
    )


def _may_dial(url: str) -> bool:
    """Whether nodes are dialled there: by https, unless it is this machine."""
    return address_problem(url) is None
