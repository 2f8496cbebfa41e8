"""The past of a real service: questions over HTTP, an archive it feeds, what is refused."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from roamcast.broker import SessionDrained
from roamcast.channels.past.messages import ArchiveBatch
from roamcast.channels.past.part import _Look
from roamcast.channels.past.settings import PastSettings
from roamcast.errors import RoamcastError
from roamcast.identity.rules import Viewer
from roamcast.live.config.settings import Limits, PastSection, Settings
from roamcast.live.past.archive import FedArchive
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.time import format_instant, parse_instant
from roamcast.pipeline.archive.feed import check_unfed
from roamcast.pipeline.archive.files import read_file
from roamcast.pipeline.archive.table import Archive
from tests.live.in_process import Asked, gate

ITEMS = "/collections/contexts/items"
SECOND = 1_000_000


def feature(place: str, t_r: int, **more: Any) -> dict[str, Any]:
    properties = {"place": place, "t_r": format_instant(t_r), **more}
    return {"type": "Feature", "geometry": None, "properties": properties}


async def then(asked: Asked, low: int | None, high: int | None, **query: Any) -> dict[str, Any]:
    ends = (".." if end is None else format_instant(end) for end in (low, high))
    answer = await asked.ask("GET", ITEMS, datetime="/".join(ends), **query)
    assert answer.status == 200, answer
    return {one["id"]: one["properties"] for one in answer.json["features"]}


def test_the_map_is_asked_as_it_was_also_after_a_restart(tmp_path: Path) -> None:
    async def body() -> None:
        async with gate(tmp_path) as asked:
            now = asked.service.clock()
            began = now - 3_600 * SECOND
            await asked.ask("PUT", "/contexts/p", feature("hq/1", began))
            await asked.ask("PUT", "/contexts/p", feature("hq/2", began + 600 * SECOND))
            await asked.ask("PUT", "/contexts/q", feature("hq/1", began, type="printer"))
            await asked.ask("DELETE", "/contexts/q")
        async with gate(tmp_path) as asked:
            at = began + 300 * SECOND
            found = await then(asked, at, at)
            assert {vid: one["place"] for vid, one in found.items()} == {"p": "hq/1", "q": "hq/1"}
            assert found["p"]["t_d"] == format_instant(began + 600 * SECOND)
            assert (await then(asked, at, at, type="printer")).keys() == {"q"}
            assert (await then(asked, None, began - 1)) == {}
            last = await then(asked, at, None)
            assert last["p"]["place"] == "hq/2"
            assert last["p"]["t_d"] is None
            assert last["q"]["t_d"] is not None
            first = await asked.ask("GET", ITEMS, datetime="../..", limit=1)
            (following,) = [one["href"] for one in first.json["links"] if one["rel"] == "next"]
            rest = await asked.ask("GET", following.partition("example")[2])
            pages = [one["id"] for page in (first, rest) for one in page.json["features"]]
            assert pages == ["p", "q"]
            assert first.json["numberMatched"] == 2
            said = f"{format_instant(at)}/{format_instant(at)}"
            assert (await asked.ask("GET", "/count", datetime=said)).json["count"] == 2
            now_only = await asked.ask("GET", "/count")
            assert now_only.json["count"] == 1
            assert (await asked.ask("GET", ITEMS, datetime="soon")).status == 400
            assert (await asked.ask("DELETE", "/contexts/q/past")).json["count"] == 2
            assert (await then(asked, None, None)).keys() == {"p"}

    asyncio.run(body())


def test_a_question_that_is_too_dear_is_refused_with_its_price(tmp_path: Path) -> None:
    async def body() -> None:
        settings = Settings(limits=Limits(steps_burst=10_000, steps_per_s=1))
        async with gate(tmp_path, settings) as asked:
            for number in range(200):
                moved = feature(f"hq/{number % 2}", (1_000 + number) * SECOND)
                await asked.ask("PUT", "/contexts/p", moved)
            answer = await asked.ask("GET", ITEMS, datetime="../..")
            assert answer.status == 400
            assert "12,261 steps of work, and 10,000 at once are allowed" in answer.problem
            # one about a time costs what it reads, not what there is
            minute = f"{format_instant(2_000 * SECOND)}/{format_instant(2_060 * SECOND)}"
            assert (await asked.ask("GET", ITEMS, datetime=minute)).status == 200

    asyncio.run(body())


@pytest.mark.slow
def test_a_service_feeds_its_archive_and_finds_it_there(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    settings = Settings(past=PastSection(archive=str(archive), store_hours=0.001))

    async def body() -> None:
        async with gate(tmp_path / "1", settings) as asked:
            past = asked.service.broker._past
            brief = msgspec.structs.replace(past.settings, store_us=0, look_us=100_000)
            past.feed.settings = brief
            now = asked.service.clock()
            began = now - 7_200 * SECOND
            await asked.ask("PUT", "/contexts/p", feature("hq/1", began, n=7))
            await asked.ask("PUT", "/contexts/p", feature("hq/2", began + 3_600 * SECOND))
            asked.service.driver.give(_look(asked))
            async with asyncio.timeout(60):
                while not Archive.open(archive).files().num_rows:
                    await asyncio.sleep(0.05)
                while past.feed.state != "nothing leaves the log":
                    await asyncio.sleep(0.05)
            at = began + 1_800 * SECOND
            found = await then(asked, at, at)
            assert (found["p"]["place"], found["p"]["n"]) == ("hq/1", 7)
            assert found["p"]["t_r"] != format_instant(began)  # rounded to the archive's grid
            assert (await then(asked, now, None))["p"]["place"] == "hq/2"
            stayed = "contains(time, INTERVAL('{}','{}'))".format(
                *(format_instant(began + s * SECOND) for s in (60, 7_000))
            )
            assert (await then(asked, began, now, filter=stayed)).keys() == {"p"}
            assert (await asked.ask("DELETE", "/contexts/p/past")).json["count"] >= 2
            assert (await then(asked, at, at)) == {}
        with pytest.raises(RoamcastError, match="feeds the archive"):
            check_unfed(Archive.open(archive), "a journal")
        other = FedArchive(str(archive))
        with pytest.raises(RoamcastError, match="one feed per archive"):
            other.append(ArchiveBatch(5, 0), [Context("x", "hq/1", None, {}, 0, 1)])

    asyncio.run(body())


def test_a_fed_archive_is_coarsened_once_a_day_where_few_were(tmp_path: Path) -> None:
    day, hour = 86_400 * SECOND, 3_600 * SECOND
    fed = FedArchive(str(tmp_path / "a"), grid_s=0, crowd_min=3)

    def places() -> dict[str, str]:
        fed.has(0)  # looks for what was written since
        files = [
            read_file(fed._archive.storage, path)
            for path in fed._archive.files()["path"].to_pylist()
        ]
        rows = pa.concat_tables(files)
        return dict(zip(rows["vid"].to_pylist(), rows["place"].to_pylist(), strict=True))

    crowd = [Context(f"v{n}@t", "hq/1/a", None, {}, 0, hour) for n in range(4)]
    fed.append(ArchiveBatch(1, 0), [*crowd, Context("w@t", "hq/1/b", None, {}, 0, hour)])
    shared = dict.fromkeys((one.vid for one in crowd), "hq/1/a")
    fed.retain(day)
    assert places() == {**shared, "w@t": "hq/1"}
    fed.append(ArchiveBatch(2, 1), [Context("x@t", "hq/1/c", None, {}, 0, hour)])
    fed.retain(day + hour)
    assert places() == {**shared, "w@t": "hq/1", "x@t": "hq/1/c"}
    fed.retain(2 * day)
    assert places() == {**shared, "w@t": "hq/1", "x@t": "hq/1"}


def _look(asked: Asked) -> Any:
    """Let the past look for what has ended at once."""
    asked.service.broker._past.timers.set(_Look(), 0)
    return SessionDrained("nobody")


def test_defaults_agree_with_the_settings_file() -> None:
    section = PastSection()
    assert int(section.store_hours * 3_600 * SECOND) == PastSettings().store_us
    assert section.steps_max == PastSettings().steps_max
    assert json.loads(msgspec.json.encode(section))["archive"] == ""


def test_times_that_are_shown_do_not_chain_vids_and_casts_know_the_exact_ones(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with gate(tmp_path) as asked:
            now, step = asked.service.clock(), 900 * SECOND
            moments = [now - 5_000 * SECOND + number * 1_234_567_891 for number in range(4)]
            vids = [f"{number:024}@trust.localhost" for number in range(3)]
            broker = asked.service.broker
            broker._server.contexts.trusted_nodes = frozenset()  # a named person may publish them
            for number, vid in enumerate(vids):
                before = vids[number - 1]
                _clock(asked, moments[number])
                if number:
                    assert (await asked.ask("DELETE", f"/contexts/{before}")).status == 204
                put = await asked.ask("PUT", f"/contexts/{vid}", feature("hq/1", moments[number]))
                assert put.status == 201, put
            _clock(asked, now)
            (shown,) = (await asked.ask("GET", ITEMS)).json["features"]
            late = _instant(shown["properties"]["t_r"])
            assert moments[2] - step < late < moments[2]
            found = await then(asked, None, now - 1)
            assert found.keys() == set(vids)
            times = {vid: [_instant(one[end]) for end in ("t_r", "t_d")]
                     for vid, one in found.items()}  # fmt: skip
            assert times[vids[2]] == [late, None]
            for number, vid in enumerate(vids[:2]):
                begin, end = times[vid]
                assert moments[number] - step < begin <= moments[number]
                assert moments[number + 1] <= end < moments[number + 1] + step
                assert end not in {begin for begin, _ in times.values()}
                # to ask for many moments tells no more: the filter sees what is shown
                assert (await then(asked, begin, begin)).keys() >= {vid}
                assert vid not in await then(asked, begin - 2, begin - 1)
                assert vid not in await then(asked, end + 1, end + 2)
            # A cast is matched with what was: nobody is found who had left.
            viewer, wanted = Viewer("ada", frozenset()), Filter.parse("true")
            window = moments[1] + 1, moments[2] - 1
            exact = await asked.service.past.ask(viewer, wanted, window, exact=True)
            assert [one.vid for one in exact] == [vids[1]]
            assert (exact[0].t_r, exact[0].t_d) == (moments[1], moments[2])
        async with gate(tmp_path) as asked:  # a restart shows and remembers the same
            again = await then(asked, None, now - 1)
            assert {vid: again[vid] for vid in vids[:2]} == {vid: found[vid] for vid in vids[:2]}

    asyncio.run(body())


def _clock(asked: Asked, moment: int) -> None:
    asked.service.driver.clock = lambda: moment


def _instant(text: str | None) -> int | None:
    return None if text is None else parse_instant(text)
