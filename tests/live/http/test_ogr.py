"""GDAL opens the running service as a layer: all of it, by a box, by a CQL2 filter."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.running_service import RunningService

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("ogrinfo") is None, reason="needs ogrinfo (Debian: gdal-bin)"),
]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with RunningService(tmp_path_factory.mktemp("ogr")) as one:
        for number in range(25):
            answer = one.put(f"p{number}", f"hq/{number % 3}", point=[number, number], n=number)
            assert answer.status == 201
        yield one


def ogrinfo(running: RunningService, source: str, *arguments: str) -> str:
    environment = {**os.environ, "GDAL_HTTP_HEADERS": f"Authorization: Bearer {running.operator}"}
    done = subprocess.run(
        ["ogrinfo", "-ro", f"OAPIF:{running.url}{source}", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_the_collection_is_read_whole_over_its_pages(running: RunningService) -> None:
    said = ogrinfo(running, "", "contexts")
    assert "Feature Count: 25" in said
    assert said.count("OGRFeature(contexts)") == 25
    assert "n: Integer" in said


def test_a_box_is_asked_of_the_service(running: RunningService) -> None:
    said = ogrinfo(running, "", "contexts", "-spat", "2.5", "2.5", "6.5", "6.5")
    assert said.count("OGRFeature(contexts)") == 4


def test_a_cql2_filter_is_passed_through(running: RunningService) -> None:
    wanted = quote("n >= 20 AND within(place, 'hq/1')")
    said = ogrinfo(running, f"/collections/contexts?filter={wanted}", "contexts")
    assert said.count("OGRFeature(contexts)") == 1
    assert "n (Integer) = 22" in said


def test_a_filter_with_spaces_is_followed_over_its_pages(running: RunningService) -> None:
    wanted = quote("n >= 3 AND NOT within(place, 'hq/1')")
    said = ogrinfo(running, f"/collections/contexts?filter={wanted}", "contexts")
    assert said.count("OGRFeature(contexts)") == 15  # GDAL asks for ten at a time


def test_the_past_is_followed_over_its_pages(running: RunningService) -> None:
    then = quote(running.get("/collections/contexts/items").json["timeStamp"])
    for number in range(25):
        running.put(f"p{number}", "hq/elsewhere", point=[number, number], n=number)
    wanted = quote("within(place, 'hq/1') OR n > 3")
    source = f"/collections/contexts?filter={wanted}&datetime={then}"
    said = ogrinfo(running, source, "contexts")
    assert said.count("OGRFeature(contexts)") == 22
    assert "hq/elsewhere" not in said
