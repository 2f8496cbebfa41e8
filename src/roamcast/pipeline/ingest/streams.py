"""Brokers whose streams are ingested: NATS JetStream, MQTT, and Kafka where Spark has its jars.

Each gives lines of JSON as a streaming DataFrame with one column `value`, and a name for the
checkpoint: another broker or topic counts for itself.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from roamcast.errors import InputError, MissingError
from roamcast.pipeline.ingest import mqtt
from roamcast.pipeline.ingest.state import IngestState
from roamcast.pipeline.lookup import nats

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KAFKA = "kafka://"
SCHEMES = (*nats.SCHEMES, *mqtt.SCHEMES, KAFKA)
_KAFKA = re.compile(r"kafka://([^/@]+)/([A-Za-z0-9._-]{1,249})")
KAFKA_OFFSETS = 10_000
"""Messages of one micro-batch, at most."""


class KafkaAddress(msgspec.Struct, frozen=True):
    """A topic of Kafka, and the servers to ask first."""

    servers: str
    topic: str


StreamedFrom = nats.StreamAddress | mqtt.MqttAddress | KafkaAddress


def parse_stream(text: str, password_file: str = "") -> StreamedFrom:
    """Read the address of a stream by its scheme."""
    if text.startswith(mqtt.SCHEMES):
        return mqtt.parse_address(text, password_file)
    if text.startswith(KAFKA):
        found = _KAFKA.fullmatch(text)
        if found is None:
            raise InputError("this is no topic of Kafka: give kafka://host:port/TOPIC", source=text)
        return KafkaAddress(*found.groups())
    return nats.parse_address(text, password_file)


def check_stream(address: StreamedFrom) -> None:
    """Raise at once where a stream of NATS cannot be read; the others are asked with Spark."""
    if isinstance(address, nats.StreamAddress):
        nats.state_of(address, patience_s=0)


@contextmanager
def lines_of(
    spark: "SparkSession", state: IngestState, address: StreamedFrom, *, until_idle: bool
) -> Iterator[tuple["DataFrame", str]]:
    """Give a stream's lines and the name of its checkpoint while the block lasts."""
    if isinstance(address, nats.StreamAddress):
        from roamcast.pipeline.lookup.source import NAME, Messages, options

        check_stream(address)
        spark.dataSource.register(Messages)
        lines = spark.readStream.format(NAME).options(**options(address)).load()
        yield lines, _named(f"{address.server}/{address.stream}")
    elif isinstance(address, mqtt.MqttAddress):
        from roamcast.pipeline.ingest.mqtt_source import NAME as MQTT
        from roamcast.pipeline.ingest.mqtt_source import SpooledMessages

        name = _named(f"mqtt://{address.user}@{address.server}:{address.port}/{address.topic}")
        # the archive is in the name: two ingests of one topic are two sessions at the broker
        client = f"roamcast-{_named(f'{state.folder}/{name}')}"
        with mqtt.receiving(address, state.folder / f"mqtt-{name}", client) as spool:
            if until_idle:
                spool.settle()
            spark.dataSource.register(SpooledMessages)
            reader = spark.readStream.format(MQTT).option("folder", str(spool.folder))
            yield reader.load(), name
    else:
        yield _kafka(spark, address), _named(f"kafka://{address.servers}/{address.topic}")


def _kafka(spark: "SparkSession", address: KafkaAddress) -> "DataFrame":
    """Read a topic with Spark's own source, whose offsets lie in the checkpoint."""
    from pyspark.errors import AnalysisException

    try:
        found = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", address.servers)
            .option("subscribe", address.topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", KAFKA_OFFSETS)
            .load()
        )
    except AnalysisException as error:
        if "kafka" not in str(error).lower():
            raise
        version = spark.version
        raise MissingError(
            "this Spark has no jars for Kafka: put spark-sql-kafka-0-10_2.13 beside it, or give "
            "--conf spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:"
            f"{version} before the command"
        ) from None
    return found.selectExpr("CAST(value AS STRING) AS value")


def _named(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
