"""The archive for analysts: the same rows and answers as the reference, whatever Spark does."""

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pytest

from roamcast import pipeline
from roamcast.commands._pipeline_questions import _draw
from roamcast.errors import InputError, RoamcastError
from roamcast.model.context_arrow import from_arrow
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.syntax import PREDICATES
from roamcast.model.time import FOREVER, MICROSECONDS, format_instant
from roamcast.pipeline.analysis.functions import matched
from roamcast.pipeline.archive.append import append
from roamcast.pipeline.archive.care import compact
from roamcast.pipeline.archive.retention import erase
from tests.strategies_pipeline import BEGIN, DAY, contexts, expected, messages

pytestmark = [pytest.mark.spark]

HOUR = 3_600 * MICROSECONDS
TABLE = contexts(71, 600, days=3)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An archive of three commits, compacted: the files of two snapshots lie in its folder."""
    folder = tmp_path_factory.mktemp("analysts") / "archive"
    for start in range(0, 600, 200):
        append(TABLE.slice(start, 200), folder)
    compact(folder)
    return str(folder)


@pytest.fixture(scope="module")
def session(spark: Any) -> Any:
    pipeline.register(spark)
    pipeline.define_functions(spark)
    return spark


def vids(found: Any) -> list[str]:
    return sorted(row.vid for row in found.select("vid").collect())


def rows(found: Any) -> list[dict[str, Any]]:
    return [row.asDict() for row in found.collect()]


def reference(text: str) -> list[str]:
    wanted = Filter.parse(text)
    return sorted(one.vid for one in from_arrow(TABLE) if wanted.matches(one))


def test_a_snapshot_has_every_context_once_though_files_were_replaced(
    session: Any, archive: str
) -> None:
    found = pipeline.contexts(session, archive)
    names = TABLE.schema.names
    got = found.select(*(f"`{name}`" for name in names)).toArrow().select(names)
    order = [("vid", "ascending")]
    want = TABLE.sort_by(order).to_pylist()
    assert got.sort_by(order).to_pylist() == want
    assert found.count() == TABLE.num_rows


def test_spark_prunes_columns_and_pushes_filters_down(session: Any, archive: str) -> None:
    found = pipeline.contexts(session, archive, columns=["vid", "string:kind"])
    asked = found.where("`string:kind` = 'bus'")
    plan = asked._jdf.queryExecution().executedPlan().toString()
    assert "PushedFilters: [IsNotNull(`string:kind`), EqualTo(`string:kind`,bus)]" in plan
    assert "ReadSchema: struct<vid:string,string:kind:string>" in plan
    assert vids(asked) == reference("kind = 'bus'")


def test_cql2_is_exact_through_the_format(session: Any, archive: str) -> None:
    for text in (
        "within(place, 'campus/b1') AND age > 40",
        "kind = 'bus' OR (ill = true AND NOT age < 10)",
        f"during(time, INTERVAL('{format_instant(BEGIN)}', '{format_instant(BEGIN + DAY)}'))",
        "FALSE",
    ):
        right = reference(text)
        found = session.read.format("roamcast").option("filter", text).load(archive)
        assert vids(found) == right
        asked = pipeline.contexts(session, archive, filter=text, columns=["vid"])
        assert vids(asked) == right


def test_one_data_frame_answers_query_after_query(session: Any, archive: str) -> None:
    """A source that lets Spark 4.3 push filters fails here: the second count is too small."""
    found = session.read.format("roamcast").schema("vid string, place string").load(archive)
    inside = found.where("place LIKE 'campus/b1/%'").count()
    assert inside == len(reference("within(place, 'campus/b1')"))
    assert found.count() == TABLE.num_rows


def test_a_stream_gives_what_is_appended_and_nothing_of_rewriting(
    session: Any, tmp_path: Path
) -> None:
    folder, out = tmp_path / "archive", tmp_path / "out"

    def follow() -> list[str]:
        stream = session.readStream.format("roamcast").option("columns", "vid").load(str(folder))
        writer = stream.writeStream.format("parquet").option("path", str(out))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()
        return vids(session.read.schema("vid string").parquet(str(out)))

    append(TABLE.slice(0, 100), folder)
    assert follow() == sorted(TABLE["vid"].to_pylist()[:100])
    append(TABLE.slice(100, 100), folder)
    compact(folder)
    erase(folder, TABLE["vid"].to_pylist()[:1])
    append(TABLE.slice(200, 50), folder)
    assert follow() == sorted(TABLE["vid"].to_pylist()[:250])


def test_sql_has_the_temporal_predicates_and_places_of_the_filter_language(
    session: Any, archive: str
) -> None:
    pipeline.contexts(session, archive).createOrReplaceTempView("contexts")
    spans = [(BEGIN + DAY, BEGIN + 2 * DAY), (BEGIN + 30 * HOUR, BEGIN + 30 * HOUR)]
    written = [(format_instant(start), format_instant(end)) for start, end in spans]
    asked = {
        f"{name}(time, INTERVAL('{a}', '{b}'))": (
            f"time_{name}(t_r, t_d, timestamp'{a}', timestamp'{b}')"
        )
        for name in PREDICATES
        for a, b in written
    }
    a, b = written[0]
    asked[f"equals(time, INTERVAL('{a}', '{b}'), 90000)"] = (
        f"time_equals(t_r, t_d, timestamp'{a}', timestamp'{b}', 9e4)"
    )
    columns = ", ".join(f"{text} AS c{number}" for number, text in enumerate(asked.values()))
    found = session.sql(f"SELECT vid, {columns} FROM contexts").toArrow()
    for number, text in enumerate(asked):
        hits = found.filter(found[f"c{number}"])["vid"].to_pylist()
        assert sorted(hits) == reference(text), text
    assert hits
    inside = session.sql("SELECT vid FROM contexts WHERE place_within(place, 'campus/b2')")
    assert vids(inside) == reference("within(place, 'campus/b2')")
    matching = session.sql(
        "SELECT vid FROM contexts WHERE cql2_match('kind = ''dog'' AND age > 20',"
        " struct(vid, place, lon, lat, t_r, t_d, `string:kind`, `integer:age`, `float:age`))"
    )
    assert vids(matching) == reference("kind = 'dog' AND age > 20")


def test_each_row_may_have_a_filter_of_its_own() -> None:
    table = TABLE.slice(0, 60).combine_chunks()
    texts = ["age > 40", "kind = 'bus'", None] * 20
    got = matched(pa.array(texts), table.to_struct_array().combine_chunks()).to_pylist()
    want = [
        None if text is None else Filter.parse(text).matches(one)
        for text, one in zip(texts, from_arrow(table), strict=True)
    ]
    assert got == want
    assert True in got


def test_a_lookup_is_a_data_frame(session: Any, archive: str) -> None:
    asked = messages(72, 25)
    found = defaultdict(list)
    for row in pipeline.look_up(session, archive, asked).collect():
        found[row.id].append(row.vid)
    assert {name: sorted(found[name]) for name in asked} == expected(TABLE, asked)


def hours(one: Context) -> range:
    end = one.t_r + 7 * DAY if one.t_d is None else one.t_d
    return range(one.t_r // HOUR, end // HOUR + 1)


def short(one: Context, level: int) -> str:
    return "/".join((one.place or "").split("/")[:level])


def test_occupancy_counts_every_hour_that_a_context_overlaps(session: Any, archive: str) -> None:
    want: Counter[tuple[str, int]] = Counter()
    for one in from_arrow(TABLE):
        if one.place is not None:
            want.update((short(one, 2), hour) for hour in hours(one))
    found = pipeline.occupancy(pipeline.contexts(session, archive), level=2, k=1)
    got = {
        (row["place"], int(row["hour"].timestamp()) // 3_600): row["count"] for row in rows(found)
    }
    assert got == want


def test_dwell_entries_and_flows(session: Any, archive: str, tmp_path: Path) -> None:
    found = pipeline.contexts(session, archive)
    ended = [one for one in from_arrow(TABLE) if one.place and one.t_d is not None]
    lasted = defaultdict(list)
    for one in ended:
        assert one.t_d is not None
        lasted[short(one, 2)].append((one.t_d - one.t_r) / MICROSECONDS)
    got = {row["place"]: row for row in rows(pipeline.dwell(found, level=2, k=1))}
    assert {place: row["count"] for place, row in got.items()} == {
        place: len(some) for place, some in lasted.items()
    }
    for place, some in lasted.items():
        assert got[place]["mean_s"] == pytest.approx(sum(some) / len(some))
    counted: Counter[str] = Counter()
    for row in rows(pipeline.entries(found, k=1)):
        counted[row["kind"]] += row["count"]
    placed = [one for one in from_arrow(TABLE) if one.place]
    assert counted == {"entry": len(placed), "exit": len(ended)}
    walk = [Context("w", "a/1", t_r=0, t_d=5), Context("w", "a/2", t_r=5, t_d=9),
            Context("w", "a/2", t_r=9, t_d=10), Context("w", "b/1", t_r=2 * HOUR, t_d=3 * HOUR),
            Context("x", "a/1", t_r=6, t_d=8)]  # fmt: skip
    frame = session.createDataFrame(
        [(o.vid, o.place, o.t_r, o.t_d) for o in walk],
        "vid string, place string, t_r long, t_d long",
    ).selectExpr("vid", "place", "timestamp_micros(t_r) t_r", "timestamp_micros(t_d) t_d")
    moves = {
        (row["origin"], row["destination"]): row["count"]
        for row in rows(pipeline.flows(frame, k=1))
    }
    assert moves == {("a/1", "a/2"): 1, ("a/2", "b/1"): 1}


def test_exposure_is_time_shared_at_one_place(session: Any, archive: str) -> None:
    found = pipeline.contexts(session, archive)
    source = next(one for one in from_arrow(TABLE) if one.place and one.t_d is None)
    asked = session.createDataFrame([(source.vid,)], "vid string")
    got = {
        row["vid"]: row["minutes"]
        for row in rows(pipeline.exposure(found, of=asked, minutes=30, level=2))
    }
    want = {}
    for one in from_arrow(TABLE):
        if one.place and short(one, 2) == short(source, 2) and one.vid != source.vid:
            start = max(one.t_r, source.t_r)
            end = min(FOREVER if one.t_d is None else one.t_d, FOREVER)
            reach = min(one.t_r + 7 * DAY if one.t_d is None else one.t_d, source.t_r + 7 * DAY)
            if start < reach and (end - start) >= 30 * 60 * MICROSECONDS:
                want[one.vid] = (end - start) / 60e6
    assert got == pytest.approx(want)
    assert want


def test_counts_with_noise_are_near_the_counts_and_few_are_never_told(session: Any) -> None:
    here = [(f"v{n}", "a/1", BEGIN, BEGIN + HOUR // 2) for n in range(3_000)]
    alone = [(f"w{n}", f"b/{n}", BEGIN, BEGIN + HOUR // 2) for n in range(50)]
    frame = session.createDataFrame(here + alone, "vid string, place string, r long, d long")
    seen = frame.selectExpr("vid", "place", "timestamp_micros(r) t_r", "timestamp_micros(d) t_d")
    budget = pipeline.Budget(1.0, cells=1)
    (told,) = rows(pipeline.occupancy(seen, budget=budget))
    assert (told["place"], set(told)) == ("a/1", {"place", "hour", "count"})
    assert abs(told["count"] - 3_000) < 100  # noise of that size: once in e^100
    assert rows(pipeline.flows(seen, budget=budget)) == []


def test_mistakes_are_told_in_one_line(session: Any, archive: str, tmp_path: Path) -> None:
    for options, told in (
        ({"filter": "age >"}, "column"),
        ({"colums": "vid"}, "no option 'colums'"),
        ({"columns": "vid, wings"}, "no column 'wings'"),
    ):
        with pytest.raises(Exception, match=told):
            session.read.format("roamcast").options(**options).load(archive).count()
    with pytest.raises(Exception, match="no archive at"):
        session.read.format("roamcast").load(str(tmp_path / "none")).count()
    with pytest.raises(InputError, match="minutes above 0"):
        pipeline.exposure(None, of=None, minutes=0)
    with pytest.raises(RoamcastError):
        pipeline.contexts(session, tmp_path / "none")
    with pytest.raises(InputError):
        pipeline.look_up(session, archive, {"m": "age >"})


def test_a_question_is_a_command_with_a_file_and_a_picture(
    command: Callable[..., str], archive: str, tmp_path: Path
) -> None:
    table, picture = tmp_path / "occupancy.csv", tmp_path / "occupancy.png"
    words = ["pipeline", "occupancy", "--archive", archive, "--level", "1", "--k", "3"]
    told = command(*words, "--out", table, "--plot", picture).splitlines()
    assert [line.rpartition(" ")[2] for line in told] == [str(table), str(picture)]
    counts = csv.read_csv(table)
    assert counts.column_names == ["place", "hour", "count"]
    assert min(counts["count"].to_pylist()) >= 3
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "rows", "asks"),
    [
        ("dwell", {"place": ["a", "b"], "median_s": [60.0, 120.0]}, "median stay, minutes"),
        (
            "exposure",
            {"source": ["x", "y", "x"], "place": ["a", "a", "b"], "minutes": [5.0, 5.0, 7.0]},
            "time shared, minutes of all pairs",
        ),
    ],
)
def test_times_at_places_are_drawn_the_longest_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, rows: dict[str, Any], asks: str
) -> None:
    from matplotlib import pyplot

    monkeypatch.setattr(pyplot, "close", lambda _: None)
    _draw(pa.table(rows), name, tmp_path / "x.png")
    axes = pyplot.gcf().axes[0]
    bars = sorted((bar.get_y(), bar.get_width()) for bar in axes.patches)
    labels = [label.get_text() for label in axes.get_yticklabels()]
    want = {"dwell": (["b", "a"], [2.0, 1.0]), "exposure": (["a", "b"], [10.0, 7.0])}[name]
    assert (labels, [width for _, width in bars], axes.get_xlabel()) == (*want, asks)
    monkeypatch.undo()
    pyplot.close("all")
