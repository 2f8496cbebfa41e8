"""The node that a service is in the overlay: its key file, its areas, its neighbours.

All hosts of one service are one node, so each needs a copy of `node.key`, as of `keys.json`.
"""

import secrets
from pathlib import Path
from random import SystemRandom
from typing import Final

from roamcast.errors import SettingsError
from roamcast.files import OWNER_ONLY, write_whole
from roamcast.live.config.settings import OverlaySection
from roamcast.model.areas import Area, Patch
from roamcast.model.time import MICROSECONDS
from roamcast.overlay.links.messages import NONCE_BYTES
from roamcast.overlay.links.proof import signer
from roamcast.overlay.links.settings import NeighbourSettings
from roamcast.overlay.overlay import OverlayNode
from roamcast.overlay.tables.areas import Areas

NODE_KEY_FILE: Final = "node.key"
KEY_BYTES: Final = 32
OWN: Final = "own"
"""The name of the broker's own area in the table, beside those of its archive."""

_LIFE_BEGINS_S: Final = 1_577_836_800
"""2020-01-01: seconds since then number the lives of a table until 2088."""


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


def node_of(section: OverlaySection, folder: Path, now: int) -> OverlayNode | None:
    """Make the node of these settings; None where they name none."""
    if not section.node:
        return None
    sign, public_key = signer(private_key(folder))
    areas = Areas(epoch=now // MICROSECONDS - _LIFE_BEGINS_S)
    own = area_of(section)
    if own is not None:
        areas.put(OWN, own)
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
        tables=(areas,),
        public_key=public_key,
    )


def area_of(section: OverlaySection) -> Area | None:
    """Give the area that a node serves; None if it serves every place."""
    return Area((Patch(places=section.areas),)) if section.areas else None
