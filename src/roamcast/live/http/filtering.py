"""Query parameters: the filter, box, time span and attributes of a request as one filter."""

import re
from functools import lru_cache
from typing import Annotated, Final

from litestar.params import Parameter

from roamcast.errors import FilterError, InputError, LimitError
from roamcast.live.config.settings import Limits
from roamcast.live.http.routes import PARAMETERS, Asked
from roamcast.live.http.shapes import CRS84
from roamcast.model import json_text, time
from roamcast.model.contexts import VID_LENGTH_MAX
from roamcast.model.features import NAME_PATTERN, TEXT_LENGTH_MAX
from roamcast.model.filters import Filter

EVERYTHING: Final = "TRUE"
NOTHING: Final = "FALSE"
LANGUAGES: Final = ("cql2-text", "cql-text", "cql2-json")
ANYWHERE: Final = frozenset({"access_token", "bbox-crs", "crs", "f", "filter-crs"})
"""Parameters that no handler declares and that name no attribute."""

_NAME = re.compile(NAME_PATTERN)
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")

# Formats stand where JSON Schema cannot describe the language; patterns only where they are exact.
FilterParameter = Annotated[
    str | None,
    Parameter(
        query="filter",
        description="CQL2 expression that a context must satisfy",
        required=False,
        schema_extra={
            "format": "cql2",
            "examples": ["within(place, 'campus/b35') AND type = 'printer'"],
        },
    ),
]
FilterLanguage = Annotated[
    str | None,
    Parameter(
        query="filter-lang",
        description="cql2-text (the default) or cql2-json",
        required=False,
        schema_extra={"enum": list(LANGUAGES)},
    ),
]
Box = Annotated[
    str | None,
    Parameter(
        query="bbox",
        description="west,south,east,north in degrees",
        required=False,
        schema_extra={"format": "bbox", "examples": ["13,52,14,53"]},
    ),
]
Span = Annotated[
    str | None,
    Parameter(
        query="datetime",
        description="an instant, or start/end with .. for an open end",
        required=False,
        schema_extra={"format": "interval", "examples": ["2026-11-16T00:00:00Z/.."]},
    ),
]
After = Annotated[
    str,
    Parameter(
        description="start after this vid; contexts that come or go shift nothing",
        max_length=VID_LENGTH_MAX,
        required=False,
    ),
]
Position = Annotated[
    str,
    Parameter(
        description="lon,lat in degrees",
        max_length=100,
        schema_extra={"format": "position", "examples": ["13.4,52.5"]},
    ),
]


@lru_cache(maxsize=4_096)
def parsed(text: str) -> Filter:
    """Parse a filter; clients repeat the same few texts."""
    return Filter.parse(text)


def filter_of(request: Asked, limits: Limits) -> Filter:
    """Join what a request asks for into one filter.

    Handlers declare these parameters for the OpenAPI document and read them here, together with the
    attributes, which have no fixed names.
    """
    query = request.query_params
    parts: list[str] = []
    language = query.get("filter-lang", "cql2-text")
    if language not in LANGUAGES:
        raise FilterError(f"filter-lang {language!r} is none of {', '.join(LANGUAGES)}")
    if "filter" in query:
        parts.append(_filter_text(query["filter"], language, limits))
    for name in ANYWHERE | PARAMETERS:
        if len(query.getall(name, [])) > 1:
            raise InputError(f"{name} is given more than once")
    for name in ("crs", "bbox-crs", "filter-crs"):
        if query.get(name, CRS84) != CRS84:
            raise InputError(f"{name} is not {CRS84}, the only one there is")
    if "bbox" in query:
        parts.append(_box(query["bbox"]))
    if "datetime" in query:
        parts.append(_span(query["datetime"]))
    for name, value in query.items():
        if name not in ANYWHERE and name not in PARAMETERS:
            parts.append(_equal(name, value))
    if not parts:
        return parsed(EVERYTHING)
    return parsed(parts[0] if len(parts) == 1 else " AND ".join(f"({part})" for part in parts))


def position_of(text: str) -> tuple[float, float]:
    """Read lon,lat."""
    try:
        lon, lat = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError("to is lon,lat in degrees, such as 13.4,52.5") from None
    if not (abs(lon) <= 180 and abs(lat) <= 90):
        raise InputError("to lies outside the earth: lon within ±180, lat within ±90")
    return lon, lat


def _filter_text(text: str, language: str, limits: Limits) -> str:
    if len(text) > limits.filter_length_max:
        raise LimitError(f"a filter has at most {limits.filter_length_max} characters")
    if language == "cql2-json" and text.lstrip()[:1] in ("{", "t", "f"):
        return Filter.parse(json_text.read(text, FilterError)).text
    return parsed(text).text  # parsed alone, so that an error names the position in what was sent


def _box(text: str) -> str:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError("bbox is four numbers: west,south,east,north") from None
    if len(numbers) == 6:  # with heights, which contexts do not have
        numbers = [*numbers[:2], *numbers[3:5]]
    if len(numbers) != 4 or not all(abs(number) <= 180 for number in numbers):
        raise InputError("bbox is four numbers in degrees: west,south,east,north")
    west, south, east, north = numbers
    if south > north:
        return NOTHING
    if west > east:  # across the date line
        return " OR ".join(
            _rectangle(left, south, right, north) for left, right in ((west, 180.0), (-180.0, east))
        )
    return _rectangle(west, south, east, north)


def _rectangle(west: float, south: float, east: float, north: float) -> str:
    return f"S_INTERSECTS(geometry, BBOX({west!r},{south!r},{east!r},{north!r}))"


def _span(text: str) -> str:
    """An instant, or two with a slash; `..` or nothing leaves an end open."""
    if not text:
        raise InputError("datetime is an instant or a span such as 2026-11-16T00:00:00Z/..")
    first, slash, last = text.partition("/")
    if not slash:
        last = first
    for part in (first, last):
        if part not in ("", ".."):
            time.parse_instant(part)
    low = first if first not in ("", "..") else ".."
    high = last if last not in ("", "..") else ".."
    if low == high == "..":
        return EVERYTHING
    if ".." not in (low, high) and time.parse_instant(low) > time.parse_instant(high):
        return NOTHING
    return f"T_INTERSECTS(time, INTERVAL('{low}','{high}'))"


def _equal(name: str, value: str) -> str:
    if not _NAME.fullmatch(name):
        raise InputError(f"there is no parameter {name[:60]!r}")
    if len(value) > TEXT_LENGTH_MAX:
        raise LimitError(f"the value of {name!r} has at most {TEXT_LENGTH_MAX} characters")
    quoted = "'" + value.replace("'", "''") + "'"
    either = [f'"{name}" = {quoted}']
    if _NUMBER.fullmatch(value):
        either.append(f'"{name}" = {value}')
    if value in ("true", "false"):
        either.append(f'"{name}" = {value.upper()}')
    return " OR ".join(either)
