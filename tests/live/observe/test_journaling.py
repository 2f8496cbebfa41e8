"""The live journal: it names nobody, it is its owner's alone, and it does not grow for ever."""

import asyncio
import os
from pathlib import Path
from typing import Any

from roamcast.identity.rules import Rule
from roamcast.journal.segments import read_entries, segments_of
from roamcast.live.observe.journaling import Journaling
from roamcast.model.machine import Effect
from roamcast.model.records import (
    ContextClosed,
    ContextOpened,
    Drop,
    QueryStep,
    Record,
    Transmission,
    UpdateMatched,
)
from tests.strategies_hub import Desk

DAY_S = 86_400


def write(folder: Path, *records: Record, **settings: Any) -> None:
    async def run() -> None:
        journal = Journaling(folder, "node", age_s_max=60, secret=b"s" * 32, **settings)
        for record in records:
            journal.write(1, "node", record)
        await journal.close()

    asyncio.run(run())


def read(folder: Path) -> list[Record]:
    return [record for _, _, record in read_entries(folder)]


def test_no_record_names_a_client_a_view_class_or_whom_a_filter_asks_for(tmp_path: Path) -> None:
    wanted = "name = 'Ada O''Neil' AND within(place, 'hq/2') AND vid = 'badge-7'"
    write(
        tmp_path,
        QueryStep(1, "placed", "ada#phone", "0", 5, wanted, "ada\nstaff"),
        Transmission("map.batch", 100, "", "ada#phone", 1),
        Drop("slow socket", "map.batch", 100, "ada#phone"),
        Drop("no such channel", "channel.join", 0, "", "channel"),
    )
    placed, sent, dropped, other = read(tmp_path)
    assert b"ada" not in repr([placed, sent, dropped]).encode()
    assert isinstance(placed, QueryStep)
    assert "within(place, 'hq/2')" in placed.filter
    assert "Neil" not in placed.filter
    assert "badge" not in placed.filter
    assert isinstance(sent, Transmission)
    assert isinstance(dropped, Drop)
    assert placed.receiver == sent.peer == dropped.peer != ""  # the same client, whoever it is
    assert other == Drop("no such channel", "channel.join", 0, "", "channel")


def test_another_run_calls_the_same_client_otherwise(tmp_path: Path) -> None:
    def peer(secret: bytes) -> Record:
        async def run() -> None:
            journal = Journaling(tmp_path / secret.hex()[:2], "node", age_s_max=60, secret=secret)
            journal.write(1, "node", Drop("slow socket", "map.batch", 1, "ada"))
            await journal.close()

        asyncio.run(run())
        return read(tmp_path / secret.hex()[:2])[0]

    assert peer(b"a" * 32) != peer(b"b" * 32)


def test_the_folder_and_every_segment_are_their_owners(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir(mode=0o755)
    write(folder, Drop("a"))
    (segment,) = segments_of(folder)
    segment.chmod(0o644)  # as an earlier version left it
    write(folder, Drop("b"))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in segments_of(folder)] == [0o600, 0o600]


def test_segments_past_the_retention_are_deleted_and_numbers_go_on(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path, Drop(str(number)))
    for path, age_s in zip(segments_of(tmp_path), (DAY_S + 1, DAY_S - 1, 0), strict=True):
        os.utime(path, (10 * DAY_S - age_s, 10 * DAY_S - age_s))
    write(tmp_path, Drop("3"), retention_s=DAY_S, clock=lambda: 10 * DAY_S)
    assert [record.reason for record in read(tmp_path) if isinstance(record, Drop)] == list("123")
    write(tmp_path, Drop("4"), retention_s=DAY_S, clock=lambda: 10.0**12)
    (newest,) = segments_of(tmp_path)
    assert newest.name == "node-00000005.parquet"


class Journaled(Desk):
    """A desk that holds the records."""

    def __init__(self) -> None:
        self.records: list[Effect] = []
        super().__init__()

    def carry(self, effects: Any) -> None:
        effects = list(effects)
        self.records += [effect for effect in effects if isinstance(effect, Record)]
        super().carry(effects)


def test_the_journal_has_what_everybody_may_see_and_no_hidden_attribute() -> None:
    desk = Journaled()
    rules = (Rule(viewers=("*",), precision="floor", past=True, attributes=("type",)),)
    desk.rules("x", rules)
    desk.keep("x", "campus/b35/2/r1", "ann", type="person", secret="sauce")
    desk.keep("x", "campus/b35/2/r2", "ann", type="person", secret="more")
    desk.keep("y", "campus/b35/2/r2", "ann", type="person", shown="all")
    desk.rules("y", ())
    desk.keep("y", "campus/b35/2/r9", "ann", type="person", secret="late")
    desk.rules("z", (Rule(viewers=("*",), precision="exact"),))
    desk.keep("z", "campus/b35/2/r3", "ann", secret="present alone")
    text = repr(desk.records)
    for hidden in ("sauce", "more", "late", "r1'", "r9", "r3'", "present alone"):
        assert hidden not in text, hidden
    opened = [one.vid for one in desk.records if isinstance(one, ContextOpened)]
    assert opened == ["x", "y"]
    closed = [(one.vid, one.reason) for one in desk.records if isinstance(one, ContextClosed)]
    assert closed == [("y", "hidden")]
    places = {one.place for one in desk.records if isinstance(one, UpdateMatched)}
    assert places == {"campus/b35/2", "campus/b35/2/r2", ""}
