"""The user agent: its rules against a plain reading of them, live against columnar."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import InputError
from roamcast.identity import agent_core as core
from roamcast.identity import attributes
from roamcast.identity.agent import Closed, Opened, SightingRefused, UserAgent, bits
from roamcast.identity.agent_settings import DURATION_MAX, AgentSettings, Source
from roamcast.identity.sightings import SOURCES, Sighting
from roamcast.identity.whereabouts import Whereabouts
from tests.strategies_sightings import agent_settings, sightings

S = 1_000_000
LATER = 10**15


def ordered(rows: list[Sighting]) -> list[Sighting]:
    return sorted(rows, key=lambda row: (row.person, row.time))


def run_live(rows: list[Sighting], chosen: AgentSettings) -> list[tuple[str, Any]]:
    """Every context of every person, in the order the live agents closed them."""
    agents: dict[str, UserAgent] = {}
    closed = []
    for row in rows:
        agent = agents.setdefault(row.person, UserAgent(row.person, chosen))
        effects = agent.receive(row, row.time)
        closed += [(row.person, e.stay) for e in effects if isinstance(e, Closed)]
    for person, agent in agents.items():
        closed += [(person, e.stay) for e in agent.advance(LATER) if isinstance(e, Closed)]
    return closed


def test_a_person_never_seen_has_no_time_no_place_and_no_point() -> None:
    state = np.full(core.STATE_WIDTH, 7)
    core.clear(state)
    reports = [core.REPORT + n * core.REPORT_WIDTH for n in range(len(SOURCES))]
    points = [core.LON, core.LAT, core.CANDIDATE_LON, core.CANDIDATE_LAT]
    points += [one + at for one in reports for at in (core.REPORT_LON, core.REPORT_LAT)]
    times = [core.SEEN, *(one + core.REPORT_TIME for one in reports)]
    right = np.zeros(core.STATE_WIDTH, np.int64)
    right[points], right[times] = core.NO_POINT, core.NEVER
    assert state.tolist() == right.tolist()


def test_who_is_seen_is_marked_as_the_ingestion_looks_for_it() -> None:
    agent = UserAgent("ann", AgentSettings())
    agent.receive(Sighting("ann", "wifi", S, "hq/1"), S)
    assert agent._state[core.OPEN] == 1


def run_scan(rows: list[Sighting], chosen: AgentSettings) -> list[tuple[str, Any]]:
    """The same through one columnar scan; keys are numbered as an Arrow dictionary would."""
    people = sorted({row.person for row in rows})
    texts: dict[str, int] = {}
    columns = []
    for row in rows:
        text, point = Whereabouts().locate(row.place, row.point)
        said = row.attributes
        if said is None:
            key = core.UNSAID
        elif not said:
            key = core.NONE
        else:
            key = texts.setdefault(attributes.to_text(said), len(texts) + 1)
        place = texts.setdefault(text, len(texts) + 1)
        columns.append((row.time, SOURCES.index(row.source), place, *bits(point), key))
    table = np.array(columns, dtype=np.int64).reshape(-1, 6)
    states = np.empty((len(people), core.STATE_WIDTH), dtype=np.int64)
    for state in states:
        core.clear(state)
    whose_rows = np.array([people.index(row.person) for row in rows], dtype=np.int64)
    room = 2 * len(rows) + len(people)
    closed = np.empty((room, core.CLOSED_WIDTH), np.int64)
    whose, answers = np.empty(room, np.int64), np.empty(len(rows), np.int64)
    vector = chosen.vector()
    count = core.scan(whose_rows, table, states, vector, closed, whose, answers)
    count += core.expire_all(states, vector, LATER, closed[count:], whose[count:])
    reader = UserAgent("x", chosen)
    reader._texts = {number: text for text, number in texts.items()}
    return [(people[whose[n]], reader._stay(closed[n])) for n in range(count)]


def by_person(found: list[tuple[str, Any]]) -> dict[str, list[Any]]:
    grouped: dict[str, list[Any]] = {}
    for person, stay in found:
        grouped.setdefault(person, []).append(stay)
    return grouped


@given(st.lists(sightings(), max_size=60), agent_settings())
@settings(max_examples=150)
def test_the_scan_over_columns_equals_the_live_agent_event_by_event(
    rows: list[Sighting], chosen: AgentSettings
) -> None:
    rows = ordered(rows)
    assert by_person(run_scan(rows, chosen)) == by_person(run_live(rows, chosen))


class PlainAgent:
    """The rules of agent_core's first page, read word by word, with dictionaries."""

    def __init__(self, chosen: AgentSettings) -> None:
        self.chosen = chosen
        self.stays: list[tuple[int, int, str, Any]] = []
        self.reset()

    def reset(self) -> None:
        self.heard: dict[str, tuple[int, str, Any]] = {}
        self.now: dict[str, Any] | None = None
        self.seen = -1
        self.candidate: tuple[str, int] | None = None

    def fresh(self, source: str, time: int) -> bool:
        limit: Source = getattr(self.chosen, source)
        return source in self.heard and time - self.heard[source][0] <= limit.fresh_s * S

    def support(self, place: str, time: int) -> int:
        total = 0
        for source, (when, where, _) in self.heard.items():
            trust: Source = getattr(self.chosen, source)
            fresh = int(trust.fresh_s * S)
            if where == place and self.fresh(source, time):
                total += trust.reliability * (fresh - (time - when)) // fresh
        return total

    def cut(self, until: int) -> None:
        assert self.now is not None
        if until > self.now["since"]:
            self.stays.append((self.now["since"], until, self.now["place"], self.now["said"]))
            self.now["since"] = until

    def end(self) -> None:
        if self.now is not None:
            self.stays.append((self.now["since"], self.seen, self.now["place"], self.now["said"]))
        self.reset()

    def sight(self, row: Sighting) -> None:
        time = row.time
        where, _ = Whereabouts().locate(row.place, row.point)
        if self.now is not None and time - self.seen > self.chosen.heartbeat_s * S:
            self.end()
        before = self.heard.get(row.source, (0, "", {}))[2]
        self.heard[row.source] = (time, where, before if row.attributes is None else row.attributes)
        self.seen = time
        if self.now is None:
            self.now = {"since": time, "place": where, "said": None}
        else:
            self.place(time, row.source)
        said = {s: self.heard[s][2] for s in SOURCES if self.fresh(s, time) and self.heard[s][2]}
        if self.now["said"] is None:
            self.now["said"] = said
        elif [attributes.to_text(x) + s for s, x in self.now["said"].items()] != [
            attributes.to_text(x) + s for s, x in said.items()
        ]:
            self.cut(time)
            self.now["said"] = said

    def place(self, time: int, sighted: str) -> None:
        assert self.now is not None
        turn = SOURCES.index(sighted)
        others = [
            self.heard[s][1]
            for s in SOURCES[turn:] + SOURCES[:turn]
            if self.fresh(s, time) and self.heard[s][1] != self.now["place"]
        ]
        best = max(others, key=lambda place: self.support(place, time), default=None)
        held = self.support(self.now["place"], time)
        margin = self.chosen.margin
        strength = 0 if best is None else self.support(best, time)
        if best is None or strength == 0 or not (held == 0 or strength > held + margin):
            self.candidate = None
            return
        if self.candidate is None or self.candidate[0] != best:
            self.candidate = (best, time)
        if time - self.candidate[1] >= self.chosen.dwell_s * S:
            since = max(self.candidate[1], self.now["since"])
            self.cut(since)
            self.now["place"] = best
            self.candidate = None


@given(st.lists(sightings(people=("ann",)), max_size=40), agent_settings())
@settings(max_examples=150)
def test_the_compiled_rules_mean_what_they_say(rows: list[Sighting], chosen: AgentSettings) -> None:
    rows = ordered(rows)
    plain = PlainAgent(chosen)
    for row in rows:
        plain.sight(row)
    plain.end()
    found = [(stay.t_r, stay.t_d, stay.place or "cell") for _, stay in run_live(rows, chosen)]
    wanted = [
        (t_r, t_d, "cell" if place.startswith("/") else place) for t_r, t_d, place, _ in plain.stays
    ]
    assert found == wanted


@given(st.lists(sightings(people=("ann",)), max_size=40), agent_settings())
def test_contexts_of_a_person_follow_each_other_and_cover_exactly_the_time_present(
    rows: list[Sighting], chosen: AgentSettings
) -> None:
    rows = ordered(rows)
    stays = [stay for _, stay in run_live(rows, chosen)]
    assert all(a.t_d <= b.t_r for a, b in pairwise(stays))
    gaps = (b.time - a.time for a, b in pairwise(rows))
    present = sum(gap for gap in gaps if gap <= chosen.heartbeat_s * S)
    assert sum(stay.t_d - stay.t_r for stay in stays) == present


def seen(source: str, at_s: float, place: str = "a/1", **said: Any) -> Sighting:
    return Sighting("ann", source, int(at_s * S), place, None, said or None)


def told(agent: UserAgent, *rows: Sighting) -> list[Any]:
    return [effect for row in rows for effect in agent.receive(row, row.time)]


def test_a_fresh_badge_outweighs_the_wireless_network() -> None:
    agent = UserAgent("ann", AgentSettings(dwell_s=0))
    told(agent, seen("badge", 0, "a/1"), seen("wifi", 5, "a/2"))
    assert agent.present().place == "a/1"
    told(agent, seen("wifi", 50, "a/2"))
    assert agent.present().place == "a/2", "a badge silent for 50 of its 60 s counts little"


def test_a_short_glimpse_elsewhere_does_not_move_a_person() -> None:
    agent = UserAgent("ann", AgentSettings(dwell_s=20))
    effects = told(agent, seen("badge", 0), seen("badge", 10, "a/2"), seen("badge", 20))
    assert [type(e) for e in effects] == [Opened]


def test_a_move_counts_from_its_first_sighting_once_it_has_held_for_the_dwell() -> None:
    agent = UserAgent("ann", AgentSettings(dwell_s=20))
    effects = told(agent, seen("badge", 0), seen("badge", 10, "a/2"), seen("badge", 30, "a/2"))
    assert [type(e) for e in effects] == [Opened, Closed, Opened]
    assert effects[1].stay.t_d == effects[2].stay.t_r == 10 * S


def test_silence_past_the_heartbeat_closes_at_the_last_sighting() -> None:
    agent = UserAgent("ann", AgentSettings(heartbeat_s=60))
    told(agent, seen("badge", 0), seen("badge", 30))
    assert agent.deadline() == 90 * S + 1
    assert agent.advance(90 * S) == []
    (closed,) = agent.advance(90 * S + 1)
    assert closed.stay.t_d == 30 * S
    assert agent.deadline() is None
    assert agent.present() is None


def test_attributes_of_several_sources_are_joined_the_reliable_one_winning() -> None:
    agent = UserAgent("ann")
    told(agent, seen("wifi", 0, role="guest", net="lab"), seen("badge", 5, role="host"))
    assert agent.present().attributes == {"role": "host", "net": "lab"}


def test_attributes_fade_with_their_source() -> None:
    agent = UserAgent("ann", AgentSettings(wifi=Source(50, 30.0)))
    told(agent, seen("wifi", 0, net="lab"), seen("badge", 31))
    assert agent.present().attributes == {}


def test_late_future_and_foreign_sightings_change_nothing() -> None:
    agent = UserAgent("ann")
    told(agent, seen("badge", 100))
    for row, now in (
        (seen("badge", 99), 100 * S),
        (seen("badge", 1000), 100 * S),
        (Sighting("bob", "badge", 200 * S, "a/1"), 200 * S),
    ):
        assert isinstance(agent.receive(row, now)[0], SightingRefused)
    assert agent.present().t_r == 100 * S


def test_an_agent_that_has_seen_many_places_remembers_only_what_it_needs() -> None:
    agent = UserAgent("ann", AgentSettings(dwell_s=0))
    for n in range(500):
        told(agent, seen("badge", 60 * n, f"a/{n}"))
    assert len(agent._keys) <= 64 + 2
    assert agent.present().place == "a/499"


@pytest.mark.parametrize(
    "chosen",
    [
        AgentSettings(heartbeat_s=0),
        AgentSettings(heartbeat_s=float("nan")),
        AgentSettings(dwell_s=-1),
        AgentSettings(margin=-1),
        AgentSettings(badge=Source(0, 1.0)),
        AgentSettings(badge=Source(1001, 1.0)),
        AgentSettings(gps=Source(1, DURATION_MAX / S + 1)),
    ],
)
def test_settings_beyond_their_limits_are_refused(chosen: AgentSettings) -> None:
    with pytest.raises(InputError):
        chosen.vector()


def test_settings_at_their_limits_work_without_overflow() -> None:
    top = Source(1000, DURATION_MAX / S)
    chosen = AgentSettings(
        heartbeat_s=DURATION_MAX / S, margin=1000, badge=top, wifi=top, login=top, gps=top
    )
    agent = UserAgent("ann", chosen)
    told(agent, seen("badge", 0), seen("wifi", 1), seen("login", 2), seen("gps", 3))
    assert agent.present().place == "a/1"


@pytest.mark.parametrize("source", range(len(SOURCES)))
@pytest.mark.parametrize("field", range(6))
def test_only_the_same_report_of_the_same_source_is_a_repetition(source: int, field: int) -> None:
    state = np.empty(core.STATE_WIDTH, np.int64)
    core.clear(state)
    closed = np.empty((2, core.CLOSED_WIDTH), np.int64)
    vector = AgentSettings().vector()
    said = np.array([5 * S, source, 3, 101, 102, 7], np.int64)
    assert not core.step(state, vector, said, closed) & core.REPEATED
    assert core.step(state, vector, said, closed) & core.REPEATED
    other = said.copy()
    other[field] = (source + 1) % len(SOURCES) if field == 1 else said[field] + 1
    assert not core.step(state, vector, other, closed) & core.REPEATED


def test_the_columns_of_a_state_lie_side_by_side_and_none_twice() -> None:
    sources = core.SOURCE_COUNT
    single = [core.OPEN, core.SINCE, core.SEEN, core.PLACE, core.LON, core.LAT]
    said = [core.ATTRIBUTES + source for source in range(sources)]
    candidate = [
        core.CANDIDATE, core.CANDIDATE_SINCE, core.CANDIDATE_LON, core.CANDIDATE_LAT,
    ]  # fmt: skip
    report = [
        core.REPORT_TIME, core.REPORT_PLACE, core.REPORT_LON, core.REPORT_LAT,
        core.REPORT_ATTRIBUTES,
    ]  # fmt: skip
    assert report == list(range(core.REPORT_WIDTH))
    reports = [
        core.REPORT + source * core.REPORT_WIDTH + column
        for source in range(sources)
        for column in report
    ]
    columns = single + said + candidate + reports
    assert columns == list(range(core.STATE_WIDTH))
    assert core.STATE_WIDTH == 34
