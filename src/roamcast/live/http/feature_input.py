"""Which context does a client's GeoJSON Feature mean? Filled in where it may be, and checked."""

import re
from typing import Any, Final

from roamcast.errors import ContextError, LimitError
from roamcast.live.config.settings import Limits
from roamcast.model import time
from roamcast.model.contexts import Context, from_feature

TEXT_LENGTH_MAX: Final = 1_000
NUMBER_MAX: Final = 2**53
NAME_PATTERN: Final = r"[^\W\d][\w.-]{0,127}"
"""Attributes are also parameters of addresses."""

VID_PATTERN: Final = r"[^\x00-\x1f\x7f-\x9f\U0010ffff]*"
"""Vids are names in the store, which has no control characters and not the last character."""


def read_feature(feature: Any, now: int, limits: Limits, *, vid: str | None = None) -> Context:
    """Read a Feature to be published now.

    `t_r` is now where it is missing. A clock that is far off is refused: what begins in the future
    or has ended already is not on the map.
    """
    if not isinstance(feature, dict):
        raise ContextError('a context is a GeoJSON object with "type": "Feature"')
    filled = dict(feature)
    if vid is not None and filled.setdefault("id", vid) != vid:
        raise ContextError(f"the Feature's id is not {vid!r}: leave it out, or make them equal")
    properties = filled.get("properties")
    if properties is None:
        properties = {}
    if isinstance(properties, dict) and properties.get("t_r") is None:
        filled["properties"] = {**properties, "t_r": time.format_instant(now)}
    context = from_feature(filled)
    if not re.fullmatch(VID_PATTERN, context.vid):
        raise ContextError("a vid has no control characters")
    for name, value in context.attributes.items():
        if not re.fullmatch(NAME_PATTERN, name):
            raise ContextError(f"{name!r} is no attribute: use letters, digits, _ . -")
        if isinstance(value, str) and len(value) > TEXT_LENGTH_MAX:
            raise LimitError(f"the text of {name!r} has at most {TEXT_LENGTH_MAX} characters here")
        if isinstance(value, int | float) and abs(value) > NUMBER_MAX:
            raise LimitError(f"the number of {name!r} lies within ±{NUMBER_MAX}")
    skew = int(limits.clock_skew_s_max * 1_000_000)
    if context.t_r > now + skew:
        raise ContextError("t_r lies in the future: check this machine's clock")
    if context.t_d is not None:
        raise ContextError("t_d is set: a context on the map still lasts; load past ones instead")
    return context
