"""`here('floor')` in a filter: the place of that kind in which its consumer is (JIT section 5).

A filter that depends on where its consumer is means something else at each place. For a consumer
that is about to move it is rewritten for all places it may come to, so that it never wants less
there than the consumer will ask for on arrival; on arrival it is narrowed to the true place.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from roamcast.errors import FilterError
from roamcast.model.contexts import parent_path
from roamcast.model.filters import Filter
from roamcast.model.filters.scan import check_length, tokens
from roamcast.model.filters.syntax import Or
from roamcast.model.kinds import quoted

PLACES_MAX: Final = 16
"""Places that one filter is rewritten for; beyond, everything is wanted."""

Level = Callable[[str, str], str | None]
"""A place and a kind → the place of that kind that it lies in, or is."""


def by_kind(kind_of: Callable[[str], str | None]) -> Level:
    """Make a level of the kinds that places have."""

    def level(place: str, kind: str) -> str | None:
        found: str | None = place or None
        while found is not None and kind_of(found) != kind:
            found = parent_path(found)
        return found

    return level


def depends_on_place(text: str) -> bool:
    """Return whether a filter says here()."""
    check_length(text)
    return any(kind for _, _, kind in _heres(text))


def rewritten(text: str, places: Iterable[str], level: Level | None) -> Filter:
    """Parse a filter as it is meant at any of these places; it holds where one of them makes it."""
    if not depends_on_place(text):
        return Filter.parse(text)
    made = list(dict.fromkeys(_at(text, place, level) for place in places))
    if not made:
        raise FilterError("here() needs a place")
    if len(made) > PLACES_MAX:
        return Filter.parse("true")
    filters = [Filter.parse(one) for one in made]
    if len(filters) == 1:
        return filters[0]
    joined = Or(tuple(one.expression for one in filters))
    return Filter(joined, " OR ".join(f"({one})" for one in made))


def _at(text: str, place: str, level: Level | None) -> str:
    """Write a filter as it is meant at one place."""
    out, cursor = "", 0
    for start, end, kind in _heres(text):
        found = None if level is None else level(place, kind)
        if found is None:
            where = f"{place!r} lies in no {kind!r}" if place else "the place is not known"
            raise FilterError(f"here({kind!r}): {where}", position=start + 1)
        out += text[cursor:start] + quoted(found)
        cursor = end
    return out + text[cursor:]


def _heres(text: str) -> Iterator[tuple[int, int, str]]:
    """Find each here('kind'): where it begins and ends, and its kind."""
    found = tokens(text)
    for number, (kind, written, start, _) in enumerate(found):
        if kind != "word" or written.lower() != "here":
            continue
        following = found[number + 1 : number + 4]
        if [one[0] for one in following] == ["open", "text", "close"]:
            yield start, following[2][3], following[1][1][1:-1].replace("''", "'")
