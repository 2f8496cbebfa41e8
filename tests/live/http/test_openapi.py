"""The API is as it describes itself: schemathesis finds nothing."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.http.formats import LONG_LISTS, SETTINGS
from tests.running_service import RunningService

ROOT = Path(__file__).parents[3]
PATH = f"{ROOT / 'src'}{os.pathsep}{ROOT}"

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with RunningService(tmp_path_factory.mktemp("openapi")) as one:
        yield one


BRIEFLY = ("--phases=examples,fuzzing", "--max-examples=5")
THOROUGHLY = ("--max-examples=5",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("long_lists", "how"),
    [
        ("", BRIEFLY),
        pytest.param("", THOROUGHLY, marks=pytest.mark.soak),
        pytest.param("1", THOROUGHLY, marks=pytest.mark.soak),
    ],
    ids=["briefly", "thoroughly", "long lists"],
)
def test_schemathesis_finds_no_difference_between_description_and_service(
    running: RunningService, tmp_path: Path, long_lists: str, how: tuple[str, ...]
) -> None:
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            "run",
            f"{running.url}/openapi.json",
            "--header",
            f"Authorization: Bearer {running.operator}",
            *how,
            "--seed=1",
            "--no-color",
            "--generation-database=none",
            "--request-timeout=30",
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            "SCHEMATHESIS_HOOKS": "tests.live.http.formats",
            "PYTHONPATH": PATH,
            LONG_LISTS: long_lists,
        },
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6_000:]
    assert running.ask("GET", "/readyz").status == 200


def test_the_description_is_openapi_31_and_the_page_needs_nothing_else(
    running: RunningService,
) -> None:
    described = running.ask("GET", "/openapi.json").json
    assert described["openapi"].startswith("3.1")
    assert "/contexts/{vid}" in described["paths"]
    items = described["paths"]["/collections/contexts/items"]
    assert "after" in [one["name"] for one in items["get"]["parameters"]]
    assert items["head"]["parameters"] == items["get"]["parameters"]
    assert not any("content" in one for one in items["head"]["responses"].values())
    page = running.ask("GET", "/docs").body.decode()
    assert "/nearest" in page
    assert "https://" not in page
