"""Who may cast where: places, priorities and the past that a token grants; all else is refused."""

from pathlib import Path

import pytest

from roamcast.errors import ForbiddenError, InputError
from roamcast.live.auth.admission import NarrowerToken, TokenKeys
from roamcast.live.auth.authority import (
    AREAS_MAX,
    CastAuthority,
    check_area,
    check_priority,
    check_zones,
    checked,
)
from roamcast.model.filters import Filter
from roamcast.model.time import parse_instant

NOW = parse_instant("2026-11-17T12:00:00Z")
HQ = CastAuthority(("hq", "lab/2"))
PAST = "overlaps(time, INTERVAL('{}T10:00:00Z', '{}T11:00:00Z'))"


def day(text: str) -> str:
    return PAST.format(text, text)


@pytest.mark.parametrize(
    "text",
    [
        "within(place, 'hq')",
        "within(place, 'hq/3') AND type = 'person'",
        "within(place, 'hq/3') OR within(place, 'lab/2/9')",
        f"within(place, 'hq/3') AND {day('2026-11-10')}",
        f"within(place, 'hq/3') AND {day('2026-12-10')}",
    ],
)
def test_what_stays_within_the_granted_places_and_time_may_be_sent(text: str) -> None:
    check_area(HQ, Filter.parse(text), NOW)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("type = 'person'", "names no place, and only administrators cast to the whole world"),
        ("within(place, 'hq') OR type = 'person'", "names no place"),
        ("NOT within(place, 'hq')", "names no place"),
        ("s_within(geometry, BBOX(9, 48, 10, 49))", "a box is no place"),
        ("within(place, 'lab')", "lab is not granted: your token has hq, lab/2"),
        ("within(place, 'hq2')", "hq2 is not granted"),
        ("within(place, 'hq') OR within(place, 'lab/1')", "lab/1 is not granted"),
        (f"within(place, 'hq') AND {day('2026-10-01')}", "further back than the 14 days"),
        (
            "within(place, 'hq') AND t_before(time, TIMESTAMP('2026-11-16T00:00:00Z'))",
            "further back than the 14 days",
        ),
    ],
)
def test_what_may_match_beyond_them_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(ForbiddenError, match=why) as told:
        check_area(HQ, Filter.parse(text), NOW)
    assert "\n" not in str(told.value)


def test_a_token_without_an_area_casts_nowhere() -> None:
    with pytest.raises(ForbiddenError, match="grants no area"):
        check_area(CastAuthority(), Filter.parse("within(place, 'hq')"), NOW)


def test_a_priority_above_the_highest_is_refused() -> None:
    check_priority(HQ, "notice")
    with pytest.raises(ForbiddenError, match="up to notice, not emergency"):
        check_priority(HQ, "emergency")


def test_a_moment_without_a_time_zone_is_refused() -> None:
    check_zones("during(time, INTERVAL('2026-11-10T15:00:00+01:00', '2026-11-10T17:00:00Z'))")
    for text in ("'2026-11-10T15:00:00'", "'2026-11-10 15:00'", "'2026-11-10t15:00:00.5'"):
        with pytest.raises(InputError, match="has no time zone"):
            check_zones(f"t_before(time, TIMESTAMP({text}))")


def test_a_token_carries_its_authority_and_a_narrower_one_has_no_more(tmp_path: Path) -> None:
    keys = TokenKeys.open(tmp_path)
    authority = checked(["campus/b35"], "warning", 3_600)
    token = keys.issue("ann", ("cast",), lifetime_s=60, now=NOW, cast=authority)
    grant = keys.check(token, NOW)
    assert grant.cast == CastAuthority(("campus/b35",), "warning", 3_600)
    _, narrower = keys.narrowed(grant, NarrowerToken(lifetime_s=30), NOW)
    assert narrower.cast == grant.cast
    plain = keys.check(keys.issue("bob", ("read",), lifetime_s=60, now=NOW), NOW)
    assert plain.cast.areas == ()


@pytest.mark.parametrize(
    ("areas", "priority", "why"),
    [
        (["/hq"], "notice", "path"),
        (["hq"], "highest", "is no priority"),
        (["hq"] * (AREAS_MAX + 1), "notice", "at most 64 areas"),
    ],
)
def test_an_authority_that_cannot_be_is_refused(areas: list[str], priority: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        checked(areas, priority, 1)
