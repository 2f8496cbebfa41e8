"""How are messages answered as they arrive? A folder of questions in, a folder of answers out.

Each micro-batch of new files is one lookup. Its answers go into one file named by the batch, so a
batch that is repeated after a crash overwrites its own answers: nothing is answered twice.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from roamcast.errors import InputError, MissingError, RoamcastError
from roamcast.matching.files import read_filter as parse_filter
from roamcast.model.filters import Filter
from roamcast.pipeline.archive import told_by_task
from roamcast.pipeline.lookup import MESSAGES_MAX, Lookup, write_answers
from roamcast.pipeline.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES_TOGETHER = 256
"""New files taken into one micro-batch."""

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
    from pyspark.errors import PySparkException

    if not messages.is_dir():
        raise MissingError(f"{messages} is no folder of messages")
    Lookup(archive)  # says at once if there is no archive
    out.mkdir(parents=True, exist_ok=True)
    target, source = str(out.resolve()), Storage(archive).uri

    def answer(batch: "DataFrame", number: int) -> None:
        answer_batch(batch, number, source, target)

    lines = (
        spark.readStream.format("text")
        .schema("value string")
        .option("maxFilesPerTrigger", FILES_TOGETHER)
        .load(str(messages.resolve()))
        .select("value")
    )
    writer = lines.writeStream.foreachBatch(answer).option(
        "checkpointLocation", f"{target}/{CHECKPOINT}"
    )
    trigger: Any = (
        {"availableNow": True} if once else {"processingTime": f"{every_seconds} seconds"}
    )
    query = writer.trigger(**trigger).start()
    try:
        query.awaitTermination()
    except PySparkException as error:
        raise told_by_task(str(error), Storage(archive)) from None
    finally:
        query.stop()


def answer_batch(batch: "DataFrame", number: int, archive: str, out: str) -> None:
    """Answer one micro-batch; runs in the driver, or in the Connect server."""
    values = batch.select("value").toArrow()["value"].to_pylist()
    if len(values) > MESSAGES_MAX:
        raise RoamcastError(f"one batch takes at most {MESSAGES_MAX} messages")
    asked, refused = _parsed(values)
    _write(Path(out) / f"refused-{number}.jsonl", refused)
    if asked:
        found = Lookup(archive, batch.sparkSession).ask(asked)
        path = Path(out) / f"answers-{number}.jsonl"
        partial = path.with_suffix(".partial")
        with partial.open("wb") as sink:
            write_answers(found, sink)
        partial.replace(path)


def _parsed(lines: Iterable[str]) -> tuple[dict[str, Filter], list[dict[str, str]]]:
    asked: dict[str, Filter] = {}
    refused = []
    for line in lines:
        if not line.strip():
            continue
        try:
            name, parsed = parse_filter(line)
            if name in asked:
                raise InputError(f"the id {name!r} stands here a second time")
        except InputError as error:
            refused.append({"line": line, "problem": str(error)})
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
