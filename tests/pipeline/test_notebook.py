"""The analysts' notebook runs as it is printed, here and through Spark Connect."""

import os
import runpy
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from roamcast.model.context_arrow import from_arrow
from roamcast.model.filters import Filter
from roamcast.pipeline.archive.append import append
from roamcast.pipeline.spark.session import Settings, started
from tests.pipeline.clusters import connect_server, need_java, stop_running
from tests.strategies_pipeline import contexts

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]
NOTEBOOK = Path(__file__).parents[2] / "examples" / "analysts.py"
TABLE = contexts(81, 300, days=3)


@pytest.fixture(
    params=[
        "local",
        pytest.param("connect", marks=pytest.mark.soak),  # test_cluster.py keeps this way alive
    ]
)
def session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    if request.param == "local":
        yield request.getfixturevalue("spark")
        return
    need_java()
    stop_running()
    before = dict(os.environ)
    with ExitStack() as stack:
        log = tmp_path_factory.mktemp("connect") / "log"
        server = stack.enter_context(connect_server(log))
        yield stack.enter_context(started(Settings(master=server)))
    for name in os.environ.keys() - before.keys():
        del os.environ[name]  # pyspark's: other processes would look for a server, too


def test_the_notebook_answers_as_the_reference(session: Any, tmp_path: Path) -> None:
    append(TABLE, tmp_path / "archive")
    known = {"spark": session, "archive": str(tmp_path / "archive")}
    answers = runpy.run_path(str(NOTEBOOK), init_globals=known)["answers"]
    every = from_arrow(TABLE)

    def matching(text: str) -> int:
        wanted = Filter.parse(text)
        return sum(wanted.matches(one) for one in every)

    assert answers["total"] == len(every)
    assert answers["buses"] == matching("kind = 'bus' AND within(place, 'campus')")
    assert answers["reached"] == matching("within(place, 'campus/b1')") + matching("ill = true")
    assert answers["by_place"] == len({one.place for one in every if one.place})
    assert min(answers.values()) >= 0
    assert answers["busy"] > 0
