"""`roamcast tour` in a terminal, on a service without a demo."""

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from roamcast.cli import build
from roamcast.commands import tour
from roamcast.model.buildings import FloorPlan, campus
from roamcast.model.places_geojson import write_places
from roamcast.model.time import format_instant
from tests.running_service import RunningService

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_the_six_steps_are_taken_on_the_real_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tour, "WATCHED_S", 0.1)
    places = campus("campus", 1, 1, FloorPlan(cells=3))
    (tmp_path / "places.json").write_bytes(write_places(places))
    room = places.of_kind("office")[0]
    with RunningService(tmp_path, f'[server]\nplaces = "{tmp_path / "places.json"}"\n') as running:
        since = format_instant(time.time_ns() // 1_000 - 3_600_000_000)
        running.put("ann", room, type="person", t_r=since)
        running.put("lamp", room, type="lamp", t_r=since)
        told = CliRunner().invoke(build(), ["tour", "--no-wait", "--data", str(running.data)])
        assert told.exit_code == 0, told.output
        text = told.output
        assert [line[0] for line in text.splitlines() if " of 6 " in line] == list("123456")
        assert "→ 1 people and 1 things are on the map" in text
        assert "1 watchers" in text
        assert f"→ 1 people were in {room} " in text  # and the lamp is nobody
        assert text.count("→ sent ") == 2
        assert f"you are in {room}, a stranger sees {room}" in text
        assert f"you are in {room}, a stranger sees campus/b1" in text
        assert "this service is one broker" in text
        assert running.get("/count").json["count"] == 2  # the tour leaves nobody behind
