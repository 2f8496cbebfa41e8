"""Sightings from MQTT: a real broker (NATS speaks MQTT), received, on disk, acknowledged, once."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import paho.mqtt.client as mqtt
import pytest

from roamcast.errors import InputError, MissingError, RoamcastError
from roamcast.pipeline.ingest import mqtt as receiving_mqtt
from roamcast.pipeline.ingest.mqtt import MqttAddress, Spool, receiving
from roamcast.pipeline.ingest.run import IngestSettings
from roamcast.pipeline.ingest.state import SightingBatch, opened
from roamcast.pipeline.ingest.streams import KafkaAddress, lines_of, parse_stream
from roamcast.pipeline.ingest.watch import ingest_stream, wait
from tests.nats_server import BINARY, DEADLINE_S, MISSING, NatsServer

pytestmark = [pytest.mark.process, pytest.mark.skipif(BINARY is None, reason=MISSING)]
TOPIC = "sightings/gates"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MqttAddress]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = tmp_path / "nats.conf"
    settings.write_text(
        f'server_name: here\njetstream {{ store_dir: "{tmp_path / "store"}" }}\n'
        f'mqtt {{ host: 127.0.0.1, port: {port}, ack_wait: "1s" }}\n'
    )
    with NatsServer(tmp_path, settings=settings):
        yield MqttAddress("127.0.0.1", port, "sightings/#")


def publish(broker: MqttAddress, lines: list[bytes]) -> None:
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="gates")
    client.connect(broker.server, broker.port)
    client.loop_start()
    for line in lines:
        client.publish(TOPIC, line, qos=1).wait_for_publish(DEADLINE_S)
    client.disconnect()
    client.loop_stop()


def received(spool: Spool, until: int) -> list[bytes]:
    end = time.monotonic() + DEADLINE_S
    while spool.newest < until:
        assert time.monotonic() < end, "messages did not come"
        time.sleep(0.02)
    return spool.read(0, until)


def test_what_comes_while_nobody_watches_waits_at_the_broker(
    broker: MqttAddress, tmp_path: Path
) -> None:
    with receiving(broker, tmp_path / "spool", "watch") as spool:
        publish(broker, [b"one", b"two\nlines"])
        assert received(spool, 2) == [b"one", b"two lines"]
    publish(broker, [b"three"])
    with receiving(broker, tmp_path / "spool", "watch") as spool:
        assert received(spool, 3)[2:] == [b"three"]  # and what was acknowledged comes no more
        spool.drop(3)
        assert spool.read(0, 3) == []
        publish(broker, [b"four"])
        assert received(spool, 4) == [b"four"]
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o700


def test_a_disk_that_is_full_acknowledges_nothing(
    broker: MqttAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_spool: Spool, _lines: list[bytes]) -> None:
        tried.append(True)
        raise OSError(28, "No space left on device")

    tried: list[bool] = []

    def watch() -> None:
        with receiving(broker, tmp_path / "spool", "watch"):
            monkeypatch.setattr(Spool, "append", full)
            publish(broker, [b"one"])
            end = time.monotonic() + DEADLINE_S
            while not tried and time.monotonic() < end:
                time.sleep(0.02)

    with pytest.raises(RoamcastError, match="No space left"):
        watch()
    monkeypatch.undo()
    with receiving(broker, tmp_path / "spool", "watch") as spool:
        assert received(spool, 1) == [b"one"]


def test_ranges_of_numbers_are_the_same_lines_however_files_were_cut(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    lines = [b"%d" % number for number in range(1, 10)]
    for start, end in ((0, 1), (1, 5), (5, 9)):
        spool.append(lines[start:end])
    for after in range(10):
        for until in range(after, 10):
            assert spool.read(after, until) == lines[after:until]
    spool.drop(5)
    assert (spool.newest, spool.read(5, 9)) == (9, lines[5:])
    spool.drop(9)
    assert (spool.newest, len(spool.files())) == (9, 1)


@pytest.mark.parametrize(
    "text",
    ["mqtt://", "mqtt://host", "mqtt://host/", "mqtt://h:99999/t", "mqtt://u:secret@h/t",
     "kafka://host", "kafka://host:9092/a b"],
)  # fmt: skip
def test_an_address_that_is_none_is_told(text: str) -> None:
    with pytest.raises(InputError, match="this is no topic"):
        parse_stream(text)


def test_addresses_are_read_with_their_topics() -> None:
    found = parse_stream("mqtt://ann@host/a/+/#", "pw")
    assert found == MqttAddress("host", 1883, "a/+/#", "ann", "pw")
    assert parse_stream("mqtts://[::1]:8884/t") == MqttAddress("::1", 8884, "t", tls=True)
    assert parse_stream("kafka://a:1,b:2/seen") == KafkaAddress("a:1,b:2", "seen")


def test_a_broker_that_is_away_is_told_in_one_line(tmp_path: Path) -> None:
    nobody = MqttAddress("127.0.0.1", 1, "t")
    with (
        pytest.raises(RoamcastError, match=r"127\.0\.0\.1:1 does not answer"),
        receiving(nobody, tmp_path / "spool", "watch"),
    ):
        pass


@pytest.mark.spark
@pytest.mark.slow
def test_sightings_of_a_topic_become_contexts_once(
    spark: Any, broker: MqttAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(minute: int) -> bytes:
        at_minute = f"2026-01-01T00:{minute:02d}:00Z"
        return msgspec.json.encode(
            {"person": "ann", "source": "badge", "time": at_minute, "place": "a/1"}
        )

    monkeypatch.setattr(receiving_mqtt, "QUIET_S", 0.3)
    told: list[SightingBatch] = []
    clock = [time.time_ns() // 1_000]
    with opened(tmp_path / "private", tmp_path / "archive", "node.example", os.urandom) as state:

        def ingest() -> None:
            with ingest_stream(
                spark, state, broker, IngestSettings(late_s=0), lambda: clock[0], until_idle=True,
                on_batch=told.append,
            ) as query:  # fmt: skip
                wait(query)

        ingest()
        publish(broker, [seen(0), seen(2), b"no sighting", seen(2)])
        ingest()
        publish(broker, [seen(4), seen(30)])
        ingest()
        with (
            pytest.raises(MissingError, match="no jars for Kafka"),
            lines_of(spark, state, KafkaAddress("127.0.0.1:1", "t"), until_idle=True),
        ):
            pass
    counted = [batch.counts for batch in told]
    assert sum(counts["sightings"] for counts in counted) == 6
    assert sum(counts["malformed"] for counts in counted) == 1
    assert sum(counts["repeated"] for counts in counted) == 1
