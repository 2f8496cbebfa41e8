"""Sightings: what is one, what is not, and why."""

import h3
import pytest
from hypothesis import given

from roamcast.errors import InputError, LimitError
from roamcast.identity import attributes
from roamcast.identity.sightings import (
    ATTRIBUTES_LENGTH_MAX,
    LINE_LENGTH_MAX,
    PERSON_LENGTH_MAX,
    check_person,
    decode,
    decode_attributes,
)
from roamcast.identity.whereabouts import Whereabouts
from roamcast.model.buildings import building
from roamcast.model.places import Places
from tests.strategies_sightings import sightings

GOOD = '"person":"ann","source":"badge","time":"2026-11-15T09:00:00Z"'


def test_a_sighting_is_read_from_json() -> None:
    found = decode(f'{{{GOOD},"lon":1,"lat":2.5,"attributes":{{"age":5}}}}')
    assert (found.person, found.point, found.attributes) == ("ann", (1.0, 2.5), {"age": 5})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "JSON object"),
        ('{"source":"badge"}', "person is missing"),
        ('{"person":5}', "person is not text"),
        ('{"person":"ann","source":"smell"}', "source is not one of"),
        ('{"person":"ann","source":"gps","time":5}', "RFC 3339"),
        ('{"person":"ann","source":"gps","time":"2026-11-15T09:00:00"}', "RFC 3339"),
        (f"{{{GOOD}}}", "needs a place"),
        (f'{{{GOOD},"place":5}}', "place is not text"),
        (f'{{{GOOD},"place":"a//b"}}', "not a place"),
        (f'{{{GOOD},"lon":5}}', "two numbers"),
        (f'{{{GOOD},"lon":500,"lat":5}}', "WGS84"),
        (f'{{{GOOD},"lon":true,"lat":5}}', "two numbers"),
        (f'{{{GOOD},"place":"a","attributes":5}}', "JSON object"),
        (f'{{{GOOD},"place":"a","attributes":{{"x":[1]}}}}', "is none of"),
        (f'{{{GOOD},"place":"a","attributes":{{"vid":"me"}}}}', "reserved"),
    ],
)
def test_a_malformed_sighting_is_refused_with_its_reason(line: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        decode(line)


def test_limits_hold_at_the_limit_and_not_beyond() -> None:
    assert check_person("a" * PERSON_LENGTH_MAX)
    with pytest.raises(LimitError):
        check_person("a" * (PERSON_LENGTH_MAX + 1))
    fitting = '{"a":"' + "x" * (ATTRIBUTES_LENGTH_MAX - 8) + '"}'
    assert decode_attributes(fitting)
    with pytest.raises(LimitError):
        decode_attributes(fitting + " ")
    with pytest.raises(LimitError):
        decode(" " * (LINE_LENGTH_MAX + 1))


@given(sightings())
def test_attributes_come_back_from_their_canonical_text(row) -> None:  # type: ignore[no-untyped-def]
    said = row.attributes or {}
    found = attributes.from_text(attributes.to_text(said))
    assert found == said
    assert [type(found[name]) for name in said] == [type(value) for value in said.values()]


def test_a_point_becomes_its_deepest_place_and_a_place_its_centre() -> None:
    places = Places(building("b35", 2))
    room = places.of_kind("office")[0]
    whereabouts = Whereabouts(places)
    centre = places.centre(room)
    assert whereabouts.locate(None, centre)[0] == places.deepest(centre)
    assert whereabouts.locate(room, None) == (room, centre)
    assert whereabouts.locate("elsewhere", None) == ("elsewhere", None)
    text, point = whereabouts.locate(None, (10.0, 50.0))
    assert (text[0], point) == ("/", (10.0, 50.0))


@pytest.mark.parametrize("resolution", [0, 15])
def test_a_place_is_a_cell_of_the_resolution(resolution: int) -> None:
    place, _ = Whereabouts(None, resolution).locate(None, (8.4, 49.0))
    assert h3.get_resolution(place.rpartition("/")[2]) == resolution


@pytest.mark.parametrize("resolution", [-1, 16])
def test_a_resolution_that_h3_does_not_have_is_refused(resolution: int) -> None:
    with pytest.raises(InputError):
        Whereabouts(None, resolution)
