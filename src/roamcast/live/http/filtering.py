"""Query parameters: the filter, box, time span and attributes of a request as one filter."""

import re
from typing import Annotated, Final

from litestar.params import Parameter
from msgspec import UNSET, UnsetType

from roamcast.channels.past.asking import EVER
from roamcast.errors import FilterError, InputError, LimitError
from roamcast.live.http.routes import PARAMETERS, Asked, service_of, viewer_of
from roamcast.live.http.shapes import CRS84
from roamcast.model import time
from roamcast.model.contexts import FEATURE_TEXT_LENGTH_MAX, NAME_PATTERN, VID_LENGTH_MAX
from roamcast.model.filters import Filter
from roamcast.model.kinds import quoted

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


def _other_text(request: Asked, *, past: bool) -> str:
    """Write what a request asks for beside its filter as a filter: box, time span, attributes.

    In a question about the past the time span is a window, and no part of the filter.

    Handlers declare these parameters for the OpenAPI document and read them here, together with the
    attributes, which have no fixed names.
    """
    query = request.query_params
    parts: list[str] = []
    for name in ANYWHERE | PARAMETERS:
        if len(query.getall(name, [])) > 1:
            raise InputError(f"{name} is given more than once")
    for name in ("crs", "bbox-crs", "filter-crs"):
        if query.get(name, CRS84) != CRS84:
            raise InputError(f"{name} is not {CRS84}, the only one there is")
    if "bbox" in query:
        parts.append(_box(query["bbox"]))
    if "datetime" in query and not past:
        parts.append(_span(query["datetime"]))
    for name, value in query.items():
        if name not in ANYWHERE and name not in PARAMETERS:
            parts.append(_equal(name, value))
    return parts[0] if len(parts) == 1 else " AND ".join(f"({part})" for part in parts)


async def charged_filter(
    request: Asked, times: int = 1, *, past: tuple[int, int] | None = None
) -> Filter:
    """Read what a request asks for; refuse it if its price exceeds what the subject has.

    `past`: a window of time that begins before now (`window_of`). Then the price is that of
    reading the past, and the window is no part of the filter.
    """
    service = service_of(request)
    wanted = await read_filter(request, past=past is not None)
    if past is None:
        service.charge(viewer_of(request), wanted, times=times)
    else:
        await service.charge_past(viewer_of(request), wanted, past)
    return wanted


async def read_filter(request: Asked, *, past: bool = False) -> Filter:
    """Read what a request asks for at the price of reading it, within what its token may read."""
    service = service_of(request)
    query, reader, subject = request.query_params, service.reader, request.auth.subject
    language = query.get("filter-lang", "cql2-text")
    if language not in LANGUAGES:
        raise FilterError(f"filter-lang {language!r} is none of {', '.join(LANGUAGES)}")
    parts: list[Filter] = []
    if "filter" in query:  # read alone, so that an error names the position in what was sent
        text = query["filter"]
        reader.charge(subject, text)
        as_json = language == "cql2-json" and text.lstrip()[:1] in ("{", "t", "f")
        parts.append(await (reader.read_json(text) if as_json else reader.read(text)))
    other = _other_text(request, past=past) or ("" if parts else EVERYTHING)
    if other:
        reader.charge(subject, other)
        parts.append(await reader.read(other))
    return request.auth.bound(Filter.all_of(parts))


def window_of(request: Asked) -> tuple[int, int] | None:
    """Give the window of a question about the past; None if it is about the present alone."""
    text = request.query_params.get("datetime", "")
    if not text:
        return None
    first, last = _ends(text)
    low = EVER[0] if first is None else first
    if low >= service_of(request).clock():
        return None
    return low, EVER[1] if last is None else last


def hint_of(request: Asked) -> str | UnsetType:
    """Give the hint of a filter that `filter_of` has accepted; its position is in what was sent."""
    query = request.query_params
    if "filter" not in query or query.get("filter-lang") == "cql2-json":
        return UNSET
    known = service_of(request).reader.known(query["filter"])
    return UNSET if known is None else known.hint or UNSET


def position_of(text: str) -> tuple[float, float]:
    """Read lon,lat."""
    try:
        lon, lat = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError("to is lon,lat in degrees, such as 13.4,52.5") from None
    if not (abs(lon) <= 180 and abs(lat) <= 90):
        raise InputError("to lies outside the earth: lon within ±180, lat within ±90")
    return lon, lat


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
    first, last = _ends(text)
    if first is None and last is None:
        return EVERYTHING
    if first is not None and last is not None and first > last:
        return NOTHING
    low, high = (".." if end is None else time.format_instant(end) for end in (first, last))
    return f"T_INTERSECTS(time, INTERVAL('{low}','{high}'))"


def _ends(text: str) -> tuple[int | None, int | None]:
    if not text:
        raise InputError("datetime is an instant or a span such as 2026-11-16T00:00:00Z/..")
    first, slash, last = text.partition("/")
    ends = (first, last if slash else first)
    low, high = (None if end in ("", "..") else time.parse_instant(end) for end in ends)
    return low, high


def _equal(name: str, value: str) -> str:
    if not _NAME.fullmatch(name):
        raise InputError(f"there is no parameter {name[:60]!r}")
    if len(value) > FEATURE_TEXT_LENGTH_MAX:
        raise LimitError(f"the value of {name!r} has at most {FEATURE_TEXT_LENGTH_MAX} characters")
    either = [f'"{name}" = {quoted(value)}']
    if _NUMBER.fullmatch(value):
        either.append(f'"{name}" = {value}')
    if value in ("true", "false"):
        either.append(f'"{name}" = {value.upper()}')
    return " OR ".join(either)
