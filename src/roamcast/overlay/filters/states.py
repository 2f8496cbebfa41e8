"""The states of a node's filter (CBM section 3.1), and what moves it on.

A node without an active filter sends everything on, so every mixture of states is correct: a state
costs or spares traffic, it never loses an item. A filter that migrates matches until the one it
became has said that it does (make before break).
"""

import enum
from typing import Final


class FilterState(enum.StrEnum):
    """What a node's filter does."""

    ABSENT = "absent"
    PASSIVE = "passive"
    ACTIVE = "active"
    MIGRATING = "migrating"
    SPAWNING = "spawning"


class FilterEvent(enum.StrEnum):
    """What happens to a filter."""

    ACTIVATE = "it is told to match, or installed"
    PASSIVATE = "it is told to match no longer"
    MIGRATE = "it is told to go to another node"
    SPAWN = "it is told to make another one"
    INSTALLED = "the other node matches now"
    GAVE_UP = "the other node does not answer, or newer orders came"


_STATE, _EVENT = FilterState, FilterEvent

FILTER_TABLE: Final = {
    (_STATE.ABSENT, _EVENT.ACTIVATE): _STATE.ACTIVE,
    (_STATE.ABSENT, _EVENT.PASSIVATE): _STATE.ABSENT,
    (_STATE.PASSIVE, _EVENT.ACTIVATE): _STATE.ACTIVE,
    (_STATE.PASSIVE, _EVENT.PASSIVATE): _STATE.PASSIVE,
    (_STATE.ACTIVE, _EVENT.ACTIVATE): _STATE.ACTIVE,
    (_STATE.ACTIVE, _EVENT.PASSIVATE): _STATE.PASSIVE,
    (_STATE.ACTIVE, _EVENT.MIGRATE): _STATE.MIGRATING,
    (_STATE.ACTIVE, _EVENT.SPAWN): _STATE.SPAWNING,
    (_STATE.MIGRATING, _EVENT.INSTALLED): _STATE.ABSENT,
    (_STATE.MIGRATING, _EVENT.GAVE_UP): _STATE.ACTIVE,
    (_STATE.SPAWNING, _EVENT.SPAWN): _STATE.SPAWNING,
    (_STATE.SPAWNING, _EVENT.MIGRATE): _STATE.MIGRATING,
    (_STATE.SPAWNING, _EVENT.INSTALLED): _STATE.ACTIVE,
    (_STATE.SPAWNING, _EVENT.GAVE_UP): _STATE.ACTIVE,
}

MATCHING: Final = frozenset({FilterState.ACTIVE, FilterState.MIGRATING, FilterState.SPAWNING})
"""The states in which a node matches what passes."""
