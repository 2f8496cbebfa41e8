"""Messages from a broker: a real NATS server with a stream, which may fall in the middle."""

import asyncio
import os
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext

from roamcast.errors import InputError, MissingError, RoamcastError
from roamcast.pipeline.archive.append import append
from roamcast.pipeline.ingest.run import IngestSettings, ingest_once
from roamcast.pipeline.ingest.state import SightingBatch, opened
from roamcast.pipeline.ingest.watch import ingest_stream, wait
from roamcast.pipeline.lookup.nats import (
    FETCHED_TOGETHER,
    StreamAddress,
    parse_address,
    read_range,
    state_of,
)
from roamcast.pipeline.lookup.stream import answer_stream
from tests.nats_server import BINARY, MISSING, NatsServer
from tests.pipeline.clusters import WAIT_SECONDS, kill_whole, watching
from tests.pipeline.test_archive import everything
from tests.strategies_pipeline import contexts, expected, messages

pytestmark = [pytest.mark.process, pytest.mark.skipif(BINARY is None, reason=MISSING)]
AUTHORIZED = "\nauthorization { user: operator, password: secret }\n"


def server(folder: Path, more: str = "") -> NatsServer:
    settings = folder / "nats.conf"
    settings.write_text(f'jetstream {{ store_dir: "{folder / "store"}" }}{more}')
    return NatsServer(folder, settings=settings)


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    with server(tmp_path) as running:
        yield running


def at(nats: NatsServer, work: Callable[[JetStreamContext], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        client = Client()
        await client.connect(servers=[nats.url])
        try:
            return await work(client.jetstream())
        finally:
            await client.close()

    return asyncio.run(run())


def publish(nats: NatsServer, lines: list[bytes], *, anew: bool = False) -> StreamAddress:
    """Make the stream if there is none, and add messages to it."""

    async def work(stream: JetStreamContext) -> None:
        if anew:
            await stream.delete_stream("asked")
        await stream.add_stream(name="asked", subjects=["messages"])
        for line in lines:
            await stream.publish("messages", line)

    at(nats, work)
    return parse_address(f"{nats.url}/asked")


def test_a_range_of_numbers_is_the_same_messages_however_often_it_is_read(
    nats: NatsServer,
) -> None:
    count = FETCHED_TOGETHER + 50
    address = publish(nats, [b"%d" % number for number in range(1, count + 1)])
    assert state_of(address).newest == count
    assert read_range(address, 0, count) == [b"%d" % number for number in range(1, count + 1)]
    assert read_range(address, 7, 9) == [b"8", b"9"]
    assert read_range(address, count, count) == []

    async def delete(stream: JetStreamContext) -> None:
        for number in (8, count):
            await stream.delete_msg("asked", number)

    at(nats, delete)
    assert read_range(address, 6, 10) == [b"7", b"9", b"10"]
    assert read_range(address, count - 2, count) == [b"%d" % (count - 1)]
    assert read_range(address, count - 1, count) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nats://h:1", "nats://host:port/STREAM"),
        ("nats://h:1/a.b", "nats://host:port/STREAM"),
        ("nats://h:1/a/b", "nats://host:port/STREAM"),
        ("nats:///a", "nats://host:port/STREAM"),
        ("http://h/a", "nats://host:port/STREAM"),
        ("nats://h:x/a", "port is no number"),
        ("nats://u:secret@h/a", "--password-file"),
        (f"nats://h/{'a' * 256}", "nats://host:port/STREAM"),
    ],
)
def test_what_is_no_stream_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as told:
        parse_address(text)
    assert "secret" not in str(told.value)


def test_an_address_has_a_server_a_stream_and_a_user() -> None:
    assert parse_address("nats://u@[::1]:99/A", "f") == StreamAddress(
        "nats://[::1]:99", "A", "u", "f"
    )
    assert parse_address(f"tls://h/{'a' * 255}").server == "tls://h:4222"


def test_what_is_wrong_with_a_server_is_told_in_one_line(nats: NatsServer, tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="nats stream add asked"):
        state_of(parse_address(f"{nats.url}/asked"), 0)
    nats.kill()
    with pytest.raises(RoamcastError, match="does not answer"):
        state_of(parse_address(f"{nats.url}/asked"), 0)
    plain = tmp_path / "plain"
    plain.mkdir()
    with NatsServer(plain) as other, pytest.raises(RoamcastError, match="does not answer"):
        state_of(parse_address(f"{other.url}/asked"), 0)


def test_a_server_that_asks_who_is_there_is_told(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    with server(tmp_path, AUTHORIZED) as nats:
        inside = f"nats://operator@{nats.host}:{nats.port}/asked"
        with pytest.raises(MissingError, match="no stream asked"):
            state_of(parse_address(inside, str(secret)), 0)
        with pytest.raises(MissingError, match="--password-file"):
            state_of(parse_address(inside), 0)
        with pytest.raises(MissingError, match="cannot read the password"):
            state_of(parse_address(inside, str(tmp_path / "none")), 0)


@pytest.mark.spark
@pytest.mark.soak  # test_lookup_watch.py kills a watch of a folder, by the same loop
def test_every_message_is_answered_though_server_and_watch_are_killed(
    spark: Any, nats: NatsServer, tmp_path: Path
) -> None:
    table, asked = contexts(63, 200, days=2), messages(64, 30)
    append(table, tmp_path / "archive")
    lines = [msgspec.json.encode({"id": name, "filter": one.source}) for name, one in asked.items()]
    out = tmp_path / "out"

    def answers() -> list[dict[str, Any]]:
        found = sorted(out.glob("answers-*.jsonl"))
        return [msgspec.json.decode(x) for f in found for x in f.read_bytes().splitlines()]

    address = publish(nats, lines[:10])
    with watching(tmp_path, f"{nats.url}/asked", stderr=subprocess.PIPE) as watch:

        def wait_for(count: int) -> None:
            until = time.monotonic() + WAIT_SECONDS
            while len(answers()) < count:
                assert watch.poll() is None, watch.stderr and watch.stderr.read()[-3_000:]
                assert time.monotonic() < until
                time.sleep(0.02)

        try:
            wait_for(10)
            nats.kill()
            nats.start()
            publish(nats, [*lines[10:20], b"no message \xff"])
            wait_for(20)
        finally:
            kill_whole(watch)
    publish(nats, lines[20:])
    answer_stream(spark, address, str(tmp_path / "archive"), out, once=True)
    assert sorted(one["id"] for one in answers()) == sorted(asked)
    assert {one["id"]: one["vids"] for one in answers()} == expected(table, asked)
    (refused,) = [x for f in out.glob("refused-*") for x in f.read_bytes().splitlines()]
    assert msgspec.json.decode(refused) == {
        "line": "no message \ufffd",
        "problem": "this is not UTF-8",
    }
    publish(nats, lines[:1], anew=True)
    with pytest.raises(RoamcastError, match="made anew"):
        answer_stream(spark, address, str(tmp_path / "archive"), out, once=True)
    assert len(answers()) == len(asked)


@pytest.mark.spark
@pytest.mark.slow
def test_sightings_of_a_stream_become_contexts_once(
    spark: Any, nats: NatsServer, tmp_path: Path
) -> None:
    def seen(minute: int) -> bytes:
        at_minute = f"2026-01-01T00:{minute:02d}:00Z"
        return msgspec.json.encode(
            {"person": "ann", "source": "badge", "time": at_minute, "place": "a/1"}
        )

    address = publish(nats, [seen(0), seen(2), b"no sighting"])
    told: list[SightingBatch] = []
    clock = [time.time_ns() // 1_000]
    with opened(tmp_path / "private", tmp_path / "archive", "node.example", os.urandom) as state:

        def ingest() -> None:
            settings = IngestSettings(late_s=0)
            with ingest_stream(
                spark, state, address, settings, lambda: clock[0], until_idle=True,
                on_batch=told.append,
            ) as query:  # fmt: skip
                wait(query)

        ingest()
        publish(nats, [seen(4), seen(30)])
        ingest()
        ingest()
        assert not (tmp_path / "private" / "streamed").exists(), "its lines name people"
        (tmp_path / "end.jsonl").write_text("")
        ingest_once(spark, state, [tmp_path / "end.jsonl"], IngestSettings(), lambda: clock[0])
    counted = [batch.counts for batch in told]
    assert sum(counts["sightings"] for counts in counted) == 5
    assert sum(counts["malformed"] for counts in counted) == 1
    table = everything(tmp_path / "archive")
    assert table["place"].to_pylist() == ["a/1", "a/1"]
