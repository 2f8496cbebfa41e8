"""Answering messages as they arrive, from a folder or a broker, into a folder of answers.

Each micro-batch of new messages is one lookup. Its answers go into one file named by the batch, so
a batch that is repeated after a crash overwrites its own answers: nothing is answered twice.
"""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from roamcast.errors import InputError, LimitError, MissingError
from roamcast.matching.files import LINE_BYTES_MAX
from roamcast.matching.files import read_filter as parse_filter
from roamcast.model.filters import Filter
from roamcast.pipeline.archive.storage import Storage
from roamcast.pipeline.lookup.nats import StreamAddress, state_of
from roamcast.pipeline.lookup.run import Lookup, write_answers
from roamcast.pipeline.spark.errors import translated
from roamcast.pipeline.spark.paths import watchable, with_colons

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES_TOGETHER = 256
"""New files taken into one micro-batch."""

MESSAGES_TOGETHER = 100_000
"""Messages answered by one lookup, at most."""

FILE_AGE_DAYS = 36_500
CHECKPOINT = "_checkpoint"


def answer_folder(
    spark: "SparkSession",
    messages: Path,
    archive: str,
    out: Path,
    *,
    once: bool = False,
    every_seconds: int = 1,
) -> None:
    """Answer all message files of a folder, and those that arrive; `once`: then stop.

    Files must be moved into the folder whole. Answers: `answers-N.jsonl` with {"id", "vids"} a
    line, and for lines that are no message `refused-N.jsonl` with {"line", "problem"}.
    """
    if not messages.is_dir():
        raise MissingError(f"{messages} is no folder of messages")
    watched = watchable(messages)
    lines = (
        with_colons(spark.readStream.format("text"), [":"])  # who knows what will come
        .schema("value string")
        .option("maxFilesPerTrigger", FILES_TOGETHER)
        # a file moved here may be old: Spark would pass over what is a week older than the newest
        .option("maxFileAge", f"{FILE_AGE_DAYS}d")
        .load(watched)
    )
    _answer(lines, archive, out, once=once, every_seconds=every_seconds)


def answer_stream(
    spark: "SparkSession",
    address: StreamAddress,
    archive: str,
    out: Path,
    *,
    once: bool = False,
    every_seconds: int = 1,
) -> None:
    """Answer all messages of a broker's stream, and those that arrive, as of a folder."""
    from roamcast.pipeline.lookup.source import NAME, Messages, options

    state_of(address, patience_s=0)  # says at once what is wrong with the address
    spark.dataSource.register(Messages)
    lines = spark.readStream.format(NAME).options(**options(address)).load()
    _answer(lines, archive, out, once=once, every_seconds=every_seconds)


def _answer(lines: "DataFrame", archive: str, out: Path, *, once: bool, every_seconds: int) -> None:
    Lookup(archive)  # says at once if there is no archive
    out.mkdir(parents=True, exist_ok=True)
    target, source = str(out.resolve()), Storage(archive).uri

    def answer(batch: "DataFrame", number: int) -> None:
        answer_batch(batch, number, source, target)

    writer = (
        lines.select("value")
        .writeStream.foreachBatch(answer)
        .option("checkpointLocation", f"{target}/{CHECKPOINT}")
    )
    trigger: Any = (
        {"availableNow": True} if once else {"processingTime": f"{every_seconds} seconds"}
    )
    query = writer.trigger(**trigger).start()
    try:
        with translated(Storage(archive).failed):
            query.awaitTermination()
    finally:
        query.stop()


def answer_batch(batch: "DataFrame", number: int, archive: str, out: str) -> None:
    """Answer one micro-batch; runs in the driver, or in the Connect server."""
    from pyspark.sql import functions as f

    # bytes that are no text cannot be given to Python as they are
    lines = batch.select(f.make_valid_utf8("value"), f.is_valid_utf8("value")).toArrow()
    asked, refused = _parsed(zip(*(column.to_pylist() for column in lines.columns), strict=True))
    _write(Path(out) / f"refused-{number}.jsonl", refused)
    if asked:
        path = Path(out) / f"answers-{number}.jsonl"
        partial = path.with_suffix(".partial")
        lookup, rest = Lookup(archive, batch.sparkSession), iter(asked.items())
        with partial.open("wb") as sink:
            # a batch may hold more than one lookup takes: it must not end the watch for good
            while part := dict(islice(rest, MESSAGES_TOGETHER)):
                write_answers(lookup.ask(part), sink)
        partial.replace(path)


def _parsed(
    lines: Iterable[tuple[str, bool]],
) -> tuple[dict[str, Filter], list[dict[str, str]]]:
    """Read (line, whether it is text); give messages by id, and what is none with the reason."""
    asked: dict[str, Filter] = {}
    refused = []
    for line, readable in lines:
        if not line.strip():
            continue
        try:
            if not readable:
                raise InputError("this is not UTF-8")
            if len(line) > LINE_BYTES_MAX:
                raise LimitError(f"a line has at most {LINE_BYTES_MAX} bytes")
            name, parsed = parse_filter(line)
            if name in asked:
                raise InputError(f"the id {name!r} stands here a second time")
        except InputError as error:
            refused.append({"line": line[:LINE_BYTES_MAX], "problem": str(error)})
        else:
            asked[name] = parsed
    return asked, refused


def _write(path: Path, records: list[dict[str, str]]) -> None:
    if not records:
        path.unlink(missing_ok=True)
        return
    partial = path.with_suffix(".partial")
    partial.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    partial.replace(path)
