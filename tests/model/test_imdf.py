"""IMDF archives, in the shape of the standard's own examples, become places."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from roamcast.cli import build, main
from roamcast.errors import PlaceError
from roamcast.model.imdf import from_imdf
from roamcast.model.places_geojson import read_places

W, S, M = -122.0, 37.0, 1e-5
"""A corner, and about a metre in degrees."""


def ring(x: float, y: float, wide: float, high: float) -> dict[str, Any]:
    corners = [(x, y), (x + wide, y), (x + wide, y + high), (x, y + high), (x, y)]
    positions = [[W + dx * M, S + dy * M] for dx, dy in corners]
    return {"type": "Polygon", "coordinates": [positions]}


def line(x: float, y: float, to_x: float, to_y: float) -> dict[str, Any]:
    return {
        "type": "LineString",
        "coordinates": [[W + x * M, S + y * M], [W + to_x * M, S + to_y * M]],
    }


def feature(kind: str, own: str, geometry: Any, **properties: Any) -> dict[str, Any]:
    return {
        "id": f"{kind}-{own}", "type": "Feature", "feature_type": kind, "geometry": geometry,
        "properties": {"name": None, "alt_name": None, **properties},
    }  # fmt: skip


def venue() -> dict[str, list[dict[str, Any]]]:
    """Two floors: a lobby, a shop, a corridor, and a lift on both."""
    made: dict[str, list[dict[str, Any]]] = {
        "venue": [feature("venue", "v", ring(-5, -5, 60, 40), category="shopping center",
                          name={"en": "Mall / North"}, address_id="a")],
        "building": [feature("building", "b", None, name={"de": "Haus 1"}, category="unspecified",
                             display_point={"type": "Point", "coordinates": [W, S]})],
        "footprint": [feature("footprint", "f", ring(0, 0, 30, 20), category="ground",
                              building_ids=["building-b"])],
        "level": [], "unit": [], "opening": [],
    }  # fmt: skip
    for ordinal, short in ((1, "1"), (0, "G")):
        level = f"level-{short}"
        made["level"].append(
            feature("level", short, ring(0, 0, 30, 20), ordinal=ordinal, outdoor=False,
                    name={"en": f"Level {short}"}, short_name={"en": short},
                    building_ids=["building-b"], category="unspecified")
        )  # fmt: skip
        for name, category, geometry, label in (
            ("lobby", "lobby", ring(0, 0, 10, 20), {"en": "Lobby"}),
            ("shop", "room", ring(10, 0, 20, 15), {"en": "Shop"}),
            ("way", "walkway", ring(10, 15, 17, 5), None),
            ("lift", "elevator", ring(27, 15, 3, 5), None),
        ):
            made["unit"].append(
                feature("unit", f"{name}-{short}", geometry, category=category, name=label,
                        level_id=level, accessibility=None, restriction=None)
            )  # fmt: skip
        for name, door in (("a", line(10, 16, 10, 18)), ("b", line(20, 15, 22, 15)),
                           ("c", line(27, 16, 27, 18))):  # fmt: skip
            made["opening"].append(
                feature("opening", f"{name}-{short}", door, category="pedestrian", level_id=level)
            )
    made["unit"].append(
        feature("unit", "shop-2", ring(0, 0, 1, 1), category="room", name={"en": "Shop"},
                level_id="level-G")
    )  # fmt: skip
    return made


def texts(made: dict[str, list[dict[str, Any]]]) -> dict[str, bytes]:
    return {
        f"{kind}.geojson": json.dumps({"type": "FeatureCollection", "features": features}).encode()
        for kind, features in made.items()
    }


def test_a_venue_becomes_a_hierarchy_with_floors_rooms_and_doors() -> None:
    places = from_imdf(texts(venue()))
    top = "Mall - North/Haus 1"
    assert places[top].kind == "building"
    assert places[top].geometry == ring(0, 0, 30, 20)  # its footprint
    assert places[f"{top}/G"].properties["ordinal"] == 0
    assert places[f"{top}/G"].properties["name"] == "Level G"
    assert places.of_kind("floor") == (f"{top}/1", f"{top}/G")
    assert f"{top}/G/Shop-2" in places  # a second one of that name
    hall = f"{top}/G/corridor"
    assert set(places[hall].neighbours) == {f"{top}/G/Lobby", f"{top}/G/Shop", f"{top}/G/lift"}
    assert places[f"{top}/G/lift"].neighbours == (hall, f"{top}/1/lift")
    walk = places.route(f"{top}/G/Lobby", f"{top}/1/Shop")
    assert walk is not None
    assert [path.rpartition("/")[2] for path in walk.places] == [
        "Lobby", "corridor", "lift", "lift", "corridor", "Shop",
    ]  # fmt: skip
    shop = places.centre(f"{top}/1/Shop")
    assert shop is not None
    assert places.deepest(shop, inside=f"{top}/1") == f"{top}/1/Shop"


def test_an_outdoor_level_without_a_building_lies_in_the_venue() -> None:
    made = venue()
    made["level"].append(feature("level", "out", ring(-5, -5, 60, 5), ordinal=0, outdoor=True,
                                 short_name={"en": "Court"}, building_ids=[]))  # fmt: skip
    assert from_imdf(texts(made))["Mall - North/Court"].kind == "floor"


def test_what_published_archives_repeat_is_read_once() -> None:
    """As airports' do: a level twice, a level with its building's id, openings that share one."""
    made = venue()
    whole = from_imdf(texts(made))
    made["level"].append(made["level"][0])
    made["building"].append({**made["building"][0], "id": "level-G"})
    for opening in made["opening"]:
        opening["id"] = "opening"
    found = from_imdf(texts(made))
    assert set(found.paths) == {*whole.paths, "Mall - North/Haus 1-2"}
    assert found["Mall - North/Haus 1/G/Lobby"].neighbours == ("Mall - North/Haus 1/G/corridor",)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda made: made.pop("unit"), "unit.geojson is missing"),
        (lambda made: made["venue"].clear(), "exactly one venue"),
        (lambda made: made["unit"][0]["properties"].update(level_id="x"), "which is not there"),
        (lambda made: made["unit"][0]["properties"].update(category=None), "has no category"),
        (lambda made: made["unit"][0].update(geometry=None), "has no polygon"),
        (lambda made: made["unit"][0]["geometry"].update(coordinates=[[[1]]]), "can not be read"),
        (lambda made: made["level"][0]["properties"].update(ordinal="1"), "ordinal"),
        (lambda made: made["unit"][1].update(id=made["unit"][0]["id"]), "given before"),
        (lambda made: made["unit"][0].update(feature_type="level"), "is in unit.geojson"),
        (lambda made: made["opening"][0].update(geometry=None), "is no line"),
        (lambda made: made["unit"][0].pop("id"), "unit.geojson"),
    ],
)
def test_an_error_names_the_feature(change: Any, problem: str) -> None:
    made = venue()
    change(made)
    with pytest.raises(PlaceError, match=problem):
        from_imdf(texts(made))


@pytest.mark.parametrize("packed", [True, False])
def test_the_command_writes_a_file_of_places(tmp_path: Path, packed: bool) -> None:
    archive = tmp_path / "venue"
    if packed:
        with zipfile.ZipFile(archive, "w") as file:
            for name, text in texts(venue()).items():
                file.writestr(f"mall/{name}", text)
    else:
        archive.mkdir()
        for name, text in texts(venue()).items():
            (archive / name).write_bytes(text)
    out = tmp_path / "places.json"
    done = CliRunner().invoke(
        build(), ["places", "import", str(archive), "--out", str(out), "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    places = read_places(out.read_bytes())
    assert found["places"] == len(places) == 13
    assert found["kinds"]["lift"] == 2


def test_what_is_no_archive_is_one_line_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.zip").write_bytes(b"PK no")
    out = tmp_path / "places.json"
    words = ["roamcast", "places", "import", str(tmp_path / "x.zip"), "--out", str(out)]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "can not be read" in capsys.readouterr().err
    assert not out.exists()
