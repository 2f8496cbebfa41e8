"""The states of the batch that leaves the log, and what moves it on."""

import enum
from typing import Final


class FeedState(enum.StrEnum):
    """Where the batch is that leaves the log."""

    RESTING = "nothing leaves the log"
    LOOKING = "the log is searched for pieces that may leave"
    NAMING = "the batch is on its way to the disk"
    FEEDING = "the batch is on disk, and on its way to the archive"
    FORGETTING = "the archive has the batch; its steps are being deleted"


class FeedEvent(enum.StrEnum):
    """What moves a batch on."""

    DUE = "it is time to look"
    NONE = "nothing may leave"
    FOUND = "some pieces may leave"
    NAMED = "the batch is on disk"
    LANDED = "the archive has the batch, or there is no archive"
    DELETED = "its steps are gone"
    LACKED = "steps of it never came, and the archive does not have it"


_STATE, _EVENT = FeedState, FeedEvent

FEED_TABLE: Final = {
    (_STATE.RESTING, _EVENT.DUE): _STATE.LOOKING,
    (_STATE.LOOKING, _EVENT.DUE): _STATE.LOOKING,
    (_STATE.LOOKING, _EVENT.NONE): _STATE.RESTING,
    (_STATE.LOOKING, _EVENT.FOUND): _STATE.NAMING,
    (_STATE.NAMING, _EVENT.DUE): _STATE.NAMING,
    (_STATE.NAMING, _EVENT.NAMED): _STATE.FEEDING,
    (_STATE.FEEDING, _EVENT.DUE): _STATE.FEEDING,
    (_STATE.FEEDING, _EVENT.LANDED): _STATE.FORGETTING,
    (_STATE.FEEDING, _EVENT.LACKED): _STATE.RESTING,
    (_STATE.FORGETTING, _EVENT.DUE): _STATE.FORGETTING,
    (_STATE.FORGETTING, _EVENT.DELETED): _STATE.RESTING,
}
