"""Which contexts does a request ask for? Its filter, box, span and attributes as one filter."""

import re
from functools import lru_cache
from typing import Any, Final

from litestar import Request

from roamcast.errors import FilterError, InputError, LimitError
from roamcast.live.config.settings import Limits
from roamcast.live.http.feature_input import NAME_PATTERN
from roamcast.model import json_text, time
from roamcast.model.filters import Filter

EVERYTHING: Final = "TRUE"
NOTHING: Final = "FALSE"
KNOWN: Final = frozenset(
    {
        "access_token", "after", "bbox", "bbox-crs", "count", "crs", "datetime", "f", "filter",
        "filter-crs", "filter-lang", "limit", "offset", "to",
    }
)  # fmt: skip
VID_PATTERN: Final = "[A-Za-z0-9_~@:+-][A-Za-z0-9_.~@:+-]{0,255}"
"""What a path can name without being taken for another path."""
LANGUAGES: Final = frozenset({"cql2-text", "cql-text", "cql2-json"})
CRS84: Final = "http://www.opengis.net/def/crs/OGC/1.3/CRS84"
_NAME = re.compile(NAME_PATTERN)
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


@lru_cache(maxsize=4_096)
def parsed(text: str) -> Filter:
    """Parse a filter; the same texts come again and again."""
    return Filter.parse(text)


def wanted(request: Request[Any, Any, Any], limits: Limits) -> Filter:
    """Read what a request asks for; unknown parameters are attributes that must be equal."""
    query = request.query_params
    parts: list[str] = []
    language = query.get("filter-lang", "cql2-text")
    if language not in LANGUAGES:
        raise FilterError(f"filter-lang {language!r} is none of {', '.join(sorted(LANGUAGES))}")
    if "filter" in query:
        parts.append(_filter_text(query["filter"], language, limits))
    for name in KNOWN:
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
        if name not in KNOWN:
            parts.append(_equal(name, value))
    if not parts:
        return parsed(EVERYTHING)
    return parsed(parts[0] if len(parts) == 1 else " AND ".join(f"({part})" for part in parts))


def check_vid(vid: str) -> str:
    """Refuse a vid that an address can not carry; programs with a link may use any."""
    if not re.fullmatch(VID_PATTERN, vid):
        raise InputError("a vid in an address has letters, digits and _ . ~ @ : + - alone")
    return vid


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
            _rectangle(one, south, other, north) for one, other in ((west, 180.0), (-180.0, east))
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
    if len(value) > 1_000:
        raise LimitError(f"the value of {name!r} has at most 1000 characters")
    quoted = "'" + value.replace("'", "''") + "'"
    either = [f'"{name}" = {quoted}']
    if _NUMBER.fullmatch(value):
        either.append(f'"{name}" = {value}')
    if value in ("true", "false"):
        either.append(f'"{name}" = {value.upper()}')
    return " OR ".join(either)
