"""Sightings for tests: few people, places and attributes, so that rules meet often."""

from datetime import UTC, datetime

from hypothesis import strategies as st

from roamcast.identity.agent_settings import AgentSettings, Source
from roamcast.identity.sightings import SOURCES, Sighting

PLACES = ("campus/b35", "campus/b35/2", "campus/b35/2/2104", "campus/b36")
POINTS = ((116.3192, 39.9841), (116.3193, 39.9842), (116.4, 39.9), (-0.1, 51.5))
ATTRIBUTES = (
    None,
    {},
    {"role": "guest"},
    {"role": "host", "age": 5},
    {"age": 5.0, "at": datetime(2026, 1, 1, tzinfo=UTC), "in": True},
)


@st.composite
def sightings(draw: st.DrawFn, people: tuple[str, ...] = ("ann", "bob")) -> Sighting:
    place = draw(st.none() | st.sampled_from(PLACES))
    point = (
        draw(st.sampled_from(POINTS))
        if place is None
        else draw(st.none() | st.sampled_from(POINTS))
    )
    return Sighting(
        draw(st.sampled_from(people)),
        draw(st.sampled_from(SOURCES)),
        draw(st.integers(0, 60)) * 5_000_000,
        place,
        point,
        draw(st.sampled_from(ATTRIBUTES)),
    )


@st.composite
def agent_settings(draw: st.DrawFn) -> AgentSettings:
    sources = {
        name: Source(draw(st.integers(1, 100)), draw(st.sampled_from([5.0, 30.0, 90.0])))
        for name in SOURCES
    }
    return AgentSettings(
        heartbeat_s=draw(st.sampled_from([10.0, 45.0, 300.0])),
        dwell_s=draw(st.sampled_from([0.0, 5.0, 20.0])),
        margin=draw(st.sampled_from([0, 10, 50])),
        **sources,
    )
