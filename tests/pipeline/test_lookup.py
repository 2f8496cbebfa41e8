"""A lookup answers what the reference evaluator answers, and reads no more than it must."""

import io
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roamcast.errors import InputError, LimitError, MissingError, RoamcastError
from roamcast.matching import FilterSet, Pairs
from roamcast.model.filters import Filter
from roamcast.model.filters.syntax import PREDICATES
from roamcast.model.time import format_instant
from roamcast.pipeline.archive import density
from roamcast.pipeline.archive.append import append
from roamcast.pipeline.archive.care import compact, vacuum
from roamcast.pipeline.archive.layout import ArchiveSettings
from roamcast.pipeline.archive.storage import Storage
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.lookup import checks as lookup_checks
from roamcast.pipeline.lookup import read as lookup_read
from roamcast.pipeline.lookup import run as looking
from roamcast.pipeline.lookup import texts as lookup_texts
from roamcast.pipeline.lookup.plan import Needs, Statistics, plan, properties
from roamcast.pipeline.lookup.run import Lookup, nodes, write_answers
from tests.strategies_pipeline import BEGIN, CONTEXTS, DAY, contexts, expected, messages

COARSE = ArchiveSettings(1, grid_s=0)
"""Few cells, so few files: choosing row groups then matters the more."""


@pytest.fixture(scope="module")
def small_groups() -> Iterator[None]:
    """Give files many row groups, so that choosing among them matters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("roamcast.pipeline.archive.files.GROUP_ROWS", 8)
        yield


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return contexts(11, 1_200)


@pytest.fixture(scope="module")
def archive(table: pa.Table, small_groups: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive") / "a"
    append(table.slice(0, 700), folder, settings=COARSE)
    append(table.slice(700), folder)
    return folder


def single(text: str) -> dict[str, Filter]:
    return {"m": Filter.parse(text)}


def during(start: int, end: int, name: str = "overlaps") -> str:
    return f"{name}(time, INTERVAL('{format_instant(start)}', '{format_instant(end)}'))"


@pytest.mark.slow
def test_random_messages_are_answered_as_by_the_reference(archive: Path, table: pa.Table) -> None:
    asked = messages(12, 165)
    found = Lookup(archive).ask(asked)
    assert found == expected(table, asked)
    assert list(found) == list(asked)
    answered = [number for number, vids in enumerate(found.values()) if vids]
    assert {number % len(PREDICATES) for number in answered} == set(range(len(PREDICATES)))


@pytest.mark.slow
def test_the_kernel_is_never_asked_for_more_pairs_than_fit_into_memory(
    archive: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = messages(13, 40) | {f"all{number}": Filter.parse("1 = 1") for number in range(3)}
    monkeypatch.setattr(lookup_read, "CANDIDATES_MAX", 0)  # whole row groups for the kernel
    monkeypatch.setattr(lookup_read, "PAIRS_TOGETHER", 7 * len(asked))
    monkeypatch.setattr(lookup_read, "ANSWERED_TOGETHER", 5)
    held: list[int] = []
    match = FilterSet.match_batch

    def counted(filters: FilterSet, batch: pa.Table) -> Pairs:
        held.append(batch.num_rows * len(filters))
        return match(filters, batch)

    monkeypatch.setattr(FilterSet, "match_batch", counted)
    answered: list[int] = []
    answer = lookup_read._answer

    def told(messages: Any, part: lookup_read.FilePart, at: Any) -> pa.RecordBatch:
        answered.append(len(at))
        return answer(messages, part, at)

    monkeypatch.setattr(lookup_read, "_answer", told)
    assert Lookup(archive).ask(asked) == expected(table, asked)
    assert max(held) == lookup_read.PAIRS_TOGETHER
    assert max(answered) == 5


@pytest.mark.slow
@pytest.mark.parametrize("bound", ["CANDIDATES_MAX", "REFERENCE_MAX", "TRUTHS_MAX"])
def test_too_many_candidates_are_left_to_the_kernel(
    bound: str, archive: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = lookup_read if bound == "CANDIDATES_MAX" else lookup_checks
    monkeypatch.setattr(module, bound, 0)
    texts = [
        "kind LIKE '%o%'",
        "within(place, 'campus/b3') AND age IN (1, 2, 3, 4)",
        "casei(kind) = 'dog' AND ill IS NULL",
        "age IS NOT NULL AND t_after(seen, TIMESTAMP('2026-01-01T00:00:00Z'))",
    ]
    asked = messages(15, 22) | {text: Filter.parse(text) for text in texts}
    assert Lookup(archive).ask(asked) == expected(table, asked)


@pytest.mark.parametrize("apart", [0, 5, 1_024])
def test_distinct_texts_are_ordered_also_where_their_first_bytes_are_the_same(
    apart: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_texts, "MIXED_MAX", apart)
    draw = np.random.default_rng(5)
    texts = ["".join(draw.choice(list("abä€"), draw.integers(0, 12))) for _ in range(500)]
    texts += [f"prefix-{number % 70}" for number in range(200)]
    array = pa.array(texts, pa.string())
    for some in (array, array.slice(7, 300), array.slice(3, 1), array.slice(3, 0)):
        ranks, distinct = lookup_texts.ranked(some)
        assert distinct.to_pylist() == sorted(set(some.to_pylist()))
        assert distinct.take(pa.array(ranks)).to_pylist() == some.to_pylist()


@pytest.mark.parametrize("name", PREDICATES)
def test_each_temporal_predicate_alone(name: str, archive: Path, table: pa.Table) -> None:
    end = ", 864000)" if name == "equals" else ")"
    text = during(BEGIN + 40 * DAY, BEGIN + 60 * DAY, name)[:-1] + end
    found = Lookup(archive).ask(single(text))
    assert found == expected(table, single(text))
    assert found["m"]


@pytest.mark.parametrize(
    "text",
    [
        "place IS NULL AND geometry IS NULL",
        "geometry IS NULL AND ill = true",
        "vid = 'v0000003@node0.example'",
        "vid IN ('v0000004@node1.example', 'nobody')",
        "near(geometry, POINT(8.8 48.7), 9000)",
        "NOT S_INTERSECTS(geometry, BBOX(8.5, 48.4, 8.9, 48.9))",
        "place LIKE 'campus/b3/%' OR place = 'campus/b1/1/101'",
        "place > 'campus/b6'",
        "age > 88 OR age < 0.6",
        "\"a name\" = 'y' OR seen IS NOT NULL",
        "nothing = 1",
        "kind <> 'dog' AND age IN (1, 2.5, 88)",
        "t_during(time, INTERVAL('2026-10-01T00:00:00Z', '2026-11-15T00:00:00Z'))",
        "1 = 1",
        "1 = 2",
    ],
)
def test_what_has_no_simple_range_is_answered_too(
    text: str, archive: Path, table: pa.Table
) -> None:
    assert Lookup(archive).ask(single(text)) == expected(table, single(text))


def test_a_context_of_four_months_is_found_by_every_question_it_overlaps(tmp_path: Path) -> None:
    long, short = contexts(1, 1), contexts(2, 400)
    ends = pa.array([BEGIN + 120 * DAY]).cast(CONTEXTS.field("t_d").type)
    starts = pa.array([BEGIN]).cast(CONTEXTS.field("t_r").type)
    long = long.set_column(0, "vid", pa.array(["long"])).set_column(4, "t_r", starts)
    long = long.set_column(5, "t_d", ends).cast(CONTEXTS)
    append(pa.concat_tables([short, long]), tmp_path / "a")
    lookup = Lookup(tmp_path / "a")
    for day in (0, 1, 30, 77, 119):
        moment = BEGIN + day * DAY
        assert "long" in lookup.ask(single(during(moment, moment)))["m"]
    late = BEGIN + 120 * DAY + 1
    assert "long" not in lookup.ask(single(during(late, late)))["m"]


def test_only_files_and_row_groups_that_can_match_are_read(
    small_groups: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(density, "DENSE_ROWS", 1)  # by day and cell, however few
    table = contexts(14, 2_000)
    t_r = BEGIN + np.arange(2_000) * (3 * DAY // 2_000)
    for number, moments in ((4, t_r), (5, t_r + DAY // 96)):
        field = CONTEXTS.field(number)
        table = table.set_column(number, field, pa.array(moments).cast(field.type))
    append(table, tmp_path / "a")
    text = (
        f"{during(BEGIN + DAY, BEGIN + DAY + DAY // 24)} AND "
        "S_INTERSECTS(geometry, BBOX(8.7, 48.6, 8.76, 48.66))"
    )
    opened = Archive.open(tmp_path / "a")
    shares = plan(Statistics(opened), Needs([Filter.parse(text)]))
    assert 0 < len(shares) <= len(opened.files()) / 3
    read: set[tuple[int, int]] = set()

    def counting(name: str) -> None:
        original = getattr(lookup_read.FilePart, name)

        def counted(part: lookup_read.FilePart, *given: Any) -> Any:
            read.update((id(part._footer), group) for group in part.groups.tolist())
            return original(part, *given)

        monkeypatch.setattr(lookup_read.FilePart, name, counted)

    for name in ("read", "column", "numbers", "vids"):
        counting(name)
    assert Lookup(tmp_path / "a").ask(single(text)) == expected(table, single(text))
    footers = [lookup_read._footer(opened.storage.uri, share.path) for share in shares]
    assert 0 < len(read) < sum(footer.metadata.num_row_groups for footer in footers) / 2


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("within(place, 'a') AND age > 3", ["age", "place"]),
        ("casei(kind) = 'x' OR ill IS NULL", ["ill", "kind"]),
        (during(BEGIN, BEGIN), ["t_d", "t_r"]),
        ("t_after(begun, TIMESTAMP('2026-01-01T00:00:00Z'))", ["begun"]),
    ],
)
def test_only_columns_that_are_asked_for_are_read(text: str, columns: list[str]) -> None:
    assert properties([Filter.parse(text)]) == columns


def test_a_message_that_cannot_match_reads_nothing(archive: Path) -> None:
    needs = Needs([Filter.parse("age > 3 AND age < 2"), Filter.parse("height = 3 AND age > 1000")])
    shares = plan(Statistics(Archive.open(archive)), needs)
    assert shares == []


@pytest.mark.slow
def test_files_deleted_since_the_plan_make_it_plan_again(
    table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in (0, 400, 800):
        append(table.slice(start, 400), tmp_path / "a", settings=COARSE)
    asked = messages(13, 11)
    lookup = Lookup(tmp_path / "a")
    original, plans = Lookup.plan, []

    def plan_then_compact(self: Lookup, needs: Needs) -> object:
        found = original(self, needs)
        plans.append(len(found))
        if len(plans) == 1:
            compact(tmp_path / "a")
            vacuum(tmp_path / "a", hours=0)
        return found

    monkeypatch.setattr(Lookup, "plan", plan_then_compact)
    assert lookup.ask(asked) == expected(table, asked)
    assert len(plans) == 2


def test_an_answer_is_a_line_with_sorted_vids() -> None:
    out = io.BytesIO()
    write_answers({"b": ["v1@x", "v2@y", "v3@x"], "a": []}, out)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines == [{"id": "b", "vids": ["v1@x", "v2@y", "v3@x"]}, {"id": "a", "vids": []}]


def test_vids_are_divided_by_their_trusted_node() -> None:
    assert nodes(["c@y", "a@x", "b@x", "lone"]) == {"": ["lone"], "x": ["a@x", "b@x"], "y": ["c@y"]}
    out = io.BytesIO()
    write_answers({"m": ["v1@x", "v2@y"]}, out, by_node=True)
    assert out.getvalue().splitlines()[1] == b'{"id":"m","node":"y","vids":["v2@y"]}'


def test_the_same_vid_in_several_contexts_is_given_once(tmp_path: Path) -> None:
    table = contexts(3, 300)
    again = pa.concat_tables([table, table])
    append(again, tmp_path / "a")
    found = Lookup(tmp_path / "a").ask(single("1 = 1"))["m"]
    assert found == sorted(table["vid"].to_pylist())


def test_limits_of_a_lookup(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "MESSAGES_MAX", 2)
    Lookup(archive).ask(dict(list(messages(1, 2).items())))
    with pytest.raises(LimitError, match="at most 2 messages"):
        Lookup(archive).ask(messages(1, 3))
    monkeypatch.setattr(looking, "ANSWERS_MAX", 1_199)
    with pytest.raises(LimitError, match="at most 1199 pairs"):
        Lookup(archive).ask(single("1 = 1"))


def test_a_vid_that_is_found_again_and_again_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = contexts(3, 100, days=1)
    for _ in range(4):
        append(table, tmp_path / "a", settings=COARSE)
    monkeypatch.setattr(looking, "PAIRS_HELD", 30)
    monkeypatch.setattr(looking, "ANSWERS_MAX", 200)
    asked = {"a": Filter.parse("1 = 1"), "b": Filter.parse("2 = 2")}
    everyone = sorted(table["vid"].to_pylist())
    assert Lookup(tmp_path / "a").ask(asked) == {"a": everyone, "b": everyone}
    monkeypatch.setattr(looking, "ANSWERS_MAX", 199)
    with pytest.raises(LimitError, match="at most 199 pairs"):
        Lookup(tmp_path / "a").ask(asked)


def test_no_archive_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"no archive at .* makes one"):
        Lookup(tmp_path)


def damaged(folder: Path, how: str) -> str:
    """Damage one data file of an archive; give its path."""
    path = min(folder.rglob("*.parquet"))
    if how == "bytes":
        raw = bytearray(path.read_bytes())
        raw[40:120] = b"\x00" * 80
        path.write_bytes(raw)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:100])
    else:
        table = pq.read_table(path, partitioning=None)
        if how == "column":
            table = table.drop_columns(["t_d"])
        else:
            table = table.set_column(0, "vid", pa.array(np.arange(len(table))))
        pq.write_table(table, path)
    return path.name


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("bytes", "is damaged"),
        ("cut", "is damaged"),
        ("column", "needs a column 't_d'"),
        ("type", "'vid' is int64, not string"),
    ],
)
def test_a_bad_file_is_named_in_one_line_and_the_archive_stays(
    how: str, problem: str, tmp_path: Path
) -> None:
    append(contexts(1, 60), tmp_path / "a")
    name = damaged(tmp_path / "a", how)
    version = Archive.open(tmp_path / "a").version
    with pytest.raises(InputError, match=problem) as told:
        Lookup(tmp_path / "a").ask(single("vid <> 'x' AND age >= 0 OR age IS NULL"))
    assert name in str(told.value)
    assert "\n" not in str(told.value)
    assert Archive.open(tmp_path / "a").version == version


@pytest.mark.slow
def test_a_full_disk_leaves_the_archive_as_it_was(tmp_path: Path) -> None:
    table = contexts(1, 300)
    append(table, tmp_path / "a")
    before = sorted(Storage(tmp_path / "a").files())
    version = Archive.open(tmp_path / "a").version
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, limits[1]))
    try:
        with pytest.raises(RoamcastError, match=r"cannot (write|commit) to the archive"):
            append(contexts(2, 300), tmp_path / "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(Storage(tmp_path / "a").files()) == before
    assert Archive.open(tmp_path / "a").version == version
    assert Lookup(tmp_path / "a").ask(single("1 = 1"))["m"] == sorted(table["vid"].to_pylist())
