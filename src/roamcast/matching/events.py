"""Encoding of one context for the kernel: numbers, keys and tokens of the columns filters use."""

from typing import Any

from roamcast.matching.vocabulary import PropertyColumns, Vocabulary
from roamcast.model import kinds, time
from roamcast.model.contexts import Context
from roamcast.model.filters.atoms import T_D, T_R

Event = tuple[list[float], list[int], list[int]]
"""Alternating columns and numbers; tokens; alternating columns and keys."""


def encode(vocabulary: Vocabulary, context: Context) -> Event:
    """Encode a context with the vocabulary; attributes that no filter mentions are left out."""
    numbers: list[float] = []
    tokens: list[int] = []
    other: list[int] = []
    properties = vocabulary.properties
    for name, value in context.attributes.items():
        known = properties.get(name)
        if known is None:
            continue
        kind = type(value)
        if kind is str:
            token = known.text_tokens.get(value)
            if token is not None:
                tokens.append(token)
        else:
            # ints and floats are what they are compared as: the table is not asked on this path
            plain = kind is int or kind is float
            number: Any = value if plain else kinds.scalar(value, "number")
            if number is not None and known.number >= 0:
                numbers += (known.number, number)
                if known.number_tokens:
                    token = known.number_tokens.get(number)
                    if token is not None:
                        tokens.append(token)
        if known.special:
            _special(vocabulary, known, value, other, tokens)
    _frame(vocabulary, context, numbers, other, tokens)
    return numbers, tokens, other


def _frame(
    vocabulary: Vocabulary,
    context: Context,
    numbers: list[float],
    other: list[int],
    tokens: list[int],
) -> None:
    """Add the properties beside the attributes: place, vid, time and point."""
    properties = vocabulary.properties
    for name, value in (("place", context.place), ("vid", context.vid)):
        known = properties.get(name)
        if known is not None and value is not None:
            token = known.text_tokens.get(value)
            if token is not None:
                tokens.append(token)
            if known.special:
                _special(vocabulary, known, value, other, tokens)
    known = properties.get(T_R)
    if known is not None and known.instant >= 0:
        other += (known.instant, context.t_r)
    known = properties.get(T_D)
    if known is not None and known.instant >= 0:
        other += (known.instant, context.end)
    if context.point is None:
        return
    if vocabulary.longitude >= 0:
        longitude, latitude = context.point
        numbers += (vocabulary.longitude, longitude, vocabulary.latitude, latitude)
    known = properties.get("geometry")
    if known is not None and known.presence >= 0:
        other += (known.presence, 1)


def _special(
    vocabulary: Vocabulary, known: PropertyColumns, value: Any, other: list[int], tokens: list[int]
) -> None:
    """Add columns for comparisons beyond equality: order, place, boolean, instant, presence."""
    if known.presence >= 0:
        other += (known.presence, 1)
    if isinstance(value, str):
        if known.order >= 0:
            other += (known.order, known.texts.label(value, vocabulary.labels))
        if known.within_tokens:
            tokens += places_of(known, value)
        if known.instant >= 0:
            instant = time.as_instant(value)
            if instant is not None:
                other += (known.instant, instant)
        return
    kind = kinds.kind_of(value)
    assert kind is not None
    if kind.compared == "boolean" and known.boolean >= 0:
        truth: Any = kind.scalar(value)
        other += (known.boolean, truth)
        if truth in known.truth_tokens:
            tokens.append(known.truth_tokens[truth])
    elif kind.compared == "instant" and known.instant >= 0:
        moment: Any = kind.scalar(value)
        other += (known.instant, moment)


def places_of(known: PropertyColumns, path: str) -> list[int]:
    """Return the tokens of the places that contain a path, from the path itself upwards."""
    found = []
    end = len(path)
    while end >= 0:
        token = known.within_tokens.get(path[:end])
        if token is not None:
            found.append(token)
        end = path.rfind("/", 0, end)
    return found
