"""Which key seals now, and which still open? The epochs of an ingest's trusted node.

Rotation is for the day a key may have been seen, and for forgetting by calendar: a new epoch seals
with a fresh key, the old keys still open their vids. Destroying an old epoch's key makes all its
vids stand for nobody, for ever. Both happen under the ingest's lock, so no batch straddles them.
"""

import msgspec

from roamcast.errors import InputError
from roamcast.identity.keys import RandomBytes, TrustedKeys, save_keys
from roamcast.pipeline.ingest.state import IngestState


class Epochs(msgspec.Struct, frozen=True):
    """A trusted node's epochs: the one that seals, and those whose vids can be opened."""

    node: str
    current: int
    open: tuple[int, ...]
    destroyed: tuple[int, ...]


def epochs_of(keys: TrustedKeys) -> Epochs:
    """Say which epochs there are, without their keys."""
    destroyed = tuple(n for n in range(1, keys.current + 1) if n not in keys.epochs)
    return Epochs(keys.node, keys.current, tuple(sorted(keys.epochs)), destroyed)


def rotate(state: IngestState, random_bytes: RandomBytes) -> Epochs:
    """Begin the next epoch: vids are sealed with a fresh key, older ones still open."""
    return _save(state, state.keys.rotated(random_bytes))


def destroy(state: IngestState, epoch: int) -> Epochs:
    """Destroy an old epoch's key; there is no way back."""
    if epoch == state.keys.current:
        raise InputError(f"epoch {epoch} seals now: rotate first, then destroy it")
    return _save(state, state.keys.without(epoch))


def _save(state: IngestState, keys: TrustedKeys) -> Epochs:
    save_keys(keys, state.folder / "keys.json")
    state.keys = keys
    return epochs_of(keys)
