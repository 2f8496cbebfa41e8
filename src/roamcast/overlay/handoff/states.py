"""States of a consumer at its home (JIT's A1), of the neighbours asked, and at the next (A2)."""

import enum
from typing import Final


class HomeState(enum.StrEnum):
    """A consumer at its current node."""

    HOME = "home"
    BORDER = "border"
    STILL = "still"
    LEAVING = "leaving"
    GONE = "gone"


class HomeEvent(enum.StrEnum):
    """What moves it."""

    INSIDE = "it is in a place without a border"
    CROSSING = "it is in a border place, and moves"
    RESTED = "it stayed in a border place longer than T"
    LEFT = "its session is over"
    RETURNED = "its session begins again here"
    ARRIVED = "another node says that it is there"
    EXPIRED = "it did not come back"


_S, _E = HomeState, HomeEvent
HOME_TABLE: Final = {
    (_S.HOME, _E.INSIDE): _S.HOME,
    (_S.HOME, _E.CROSSING): _S.BORDER,
    (_S.BORDER, _E.CROSSING): _S.BORDER,
    (_S.BORDER, _E.INSIDE): _S.HOME,
    (_S.BORDER, _E.RESTED): _S.STILL,
    (_S.STILL, _E.CROSSING): _S.BORDER,
    (_S.STILL, _E.INSIDE): _S.HOME,
    (_S.HOME, _E.LEFT): _S.LEAVING,
    (_S.BORDER, _E.LEFT): _S.LEAVING,
    (_S.STILL, _E.LEFT): _S.LEAVING,
    (_S.LEAVING, _E.LEFT): _S.LEAVING,
    (_S.HOME, _E.RETURNED): _S.HOME,
    (_S.BORDER, _E.RETURNED): _S.HOME,
    (_S.STILL, _E.RETURNED): _S.HOME,
    (_S.LEAVING, _E.RETURNED): _S.HOME,
    (_S.HOME, _E.ARRIVED): _S.GONE,
    (_S.BORDER, _E.ARRIVED): _S.GONE,
    (_S.STILL, _E.ARRIVED): _S.GONE,
    (_S.LEAVING, _E.ARRIVED): _S.GONE,
    (_S.LEAVING, _E.EXPIRED): _S.GONE,
}


class AskedState(enum.StrEnum):
    """A neighbour that a consumer may cross to, as its home sees it."""

    ASKED = "asked"
    ENABLED = "enabled"
    SENT = "sent"
    STANDING = "standing"


class AskedEvent(enum.StrEnum):
    """What moves it."""

    ENABLE = "the neighbour has a virtual consumer"
    FORWARD = "it was sent what the consumer wants"
    STOOD = "its routes stand"


_AS, _AE = AskedState, AskedEvent
ASKED_TABLE: Final = {
    (_AS.ASKED, _AE.ENABLE): _AS.ENABLED,
    (_AS.ENABLED, _AE.FORWARD): _AS.SENT,
    (_AS.SENT, _AE.ENABLE): _AS.ENABLED,
    (_AS.STANDING, _AE.ENABLE): _AS.ENABLED,
    (_AS.SENT, _AE.STOOD): _AS.STANDING,
    (_AS.SENT, _AE.FORWARD): _AS.SENT,
    (_AS.STANDING, _AE.FORWARD): _AS.STANDING,
    (_AS.STANDING, _AE.STOOD): _AS.STANDING,
}


class NextState(enum.StrEnum):
    """A virtual consumer at a node that its consumer may come to."""

    PREPARING = "preparing"
    STANDING = "standing"
    HOME = "home"
    NONE = "none"


class NextEvent(enum.StrEnum):
    """What moves it."""

    FORWARD = "its home says what it wants"
    STOOD = "its routes stand"
    ARRIVED = "its consumer is here"
    CANCEL = "its home says that it will not come"
    EXPIRED = "its lease is over"


_NS, _NE = NextState, NextEvent
NEXT_TABLE: Final = {
    (_NS.PREPARING, _NE.FORWARD): _NS.PREPARING,
    (_NS.PREPARING, _NE.STOOD): _NS.STANDING,
    (_NS.STANDING, _NE.STOOD): _NS.STANDING,
    (_NS.STANDING, _NE.FORWARD): _NS.PREPARING,
    (_NS.PREPARING, _NE.ARRIVED): _NS.HOME,
    (_NS.STANDING, _NE.ARRIVED): _NS.HOME,
    (_NS.PREPARING, _NE.CANCEL): _NS.NONE,
    (_NS.STANDING, _NE.CANCEL): _NS.NONE,
    (_NS.PREPARING, _NE.EXPIRED): _NS.NONE,
    (_NS.STANDING, _NE.EXPIRED): _NS.NONE,
}
