"""Settings of what others see of people who set no rules, and how exactly."""

from typing import Annotated, Literal

import msgspec

from roamcast.identity.live_blur import CROWD_MIN_MAX, GRID_S, GRID_S_MAX
from roamcast.identity.rules import Precision
from roamcast.live.config.sections import Section
from roamcast.live.config.sections import number as _number


class Privacy(Section, frozen=True, kw_only=True):
    """What others see of a context whose publisher set no rules."""

    default_precision: Annotated[
        Precision, msgspec.Meta(description="precision; `hidden` shows nothing without rules")
    ] = "exact"
    default_viewers: Annotated[
        tuple[str, ...],
        msgspec.Meta(max_length=1_000, description="viewers: subjects, groups, or `*`"),
    ] = ("*",)
    vids: Annotated[
        Literal["any", "own"],
        msgspec.Meta(
            description="`own`: a vid begins with its publisher's subject and `:`, or has at least "
            "22 random characters, so that nobody takes others' or learns which there are"
        ),
    ] = "any"
    grid_s: Annotated[
        int,
        _number(
            0, GRID_S_MAX, "grid to which shown times of pseudonyms are rounded, outwards; 0: exact"
        ),
    ] = GRID_S
    crowd_min: Annotated[
        int,
        _number(
            0,
            CROWD_MIN_MAX,
            "least contexts that share a shown place of the past; 0: any number",
        ),
    ] = 0
