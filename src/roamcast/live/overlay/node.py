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
from roamcast.live.config.settings import OverlaySection, Settings
from roamcast.overlay.filters.planning import FilterSettings
from roamcast.overlay.links.messages import NONCE_BYTES
from roamcast.overlay.links.proof import signer
from roamcast.overlay.links.settings import NeighbourSettings
from roamcast.overlay.overlay import OverlayNode, OverlaySettings
from roamcast.overlay.tables.feeding import standard_tables

NODE_KEY_FILE: Final = "node.key"
KEY_BYTES: Final = 32


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


def receipt_key_of(settings: Settings) -> ReceiptKey:
    """Give the name and key that this node signs receipts with, also where it has no neighbours."""
    name = settings.overlay.node or settings.server.name
    return ReceiptKey(name, private_key(Path(settings.server.data)))


def node_of(section: OverlaySection, folder: Path) -> OverlayNode | None:
    """Make the node of these settings; None where they name none."""
    if not section.node:
        return None
    sign, public_key = signer(private_key(folder))
    filters = section.filters
    settings = OverlaySettings(
        filters=FilterSettings(int(filters) if filters.isdigit() else filters)  # type: ignore[arg-type]
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
        public_key=public_key,
        places=section.areas,
        url=section.url,
    )
