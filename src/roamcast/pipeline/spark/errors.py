"""Spark's errors, translated into one clear line each. Every job runs inside `translated`.

A task that raises one of our errors arrives here as hundreds of lines of two stack traces. The
error is found in them and raised again, with its own class and text, as if the task had run in this
process. Everything else becomes a RoamcastError that says what failed and why.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from roamcast.errors import LimitError, RoamcastError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REASON_LENGTH_MAX = 300
_OURS = re.compile(r"^\s*roamcast\.[\w.]+\.(\w+): (.*)$", re.MULTILINE)
_RAISED = re.compile(r"^(?!roamcast\.)[\w.]+(?:Error|Exception|Exit|Interrupt)(?:: .*)?$")
_INTERRUPTED = re.compile(r"SPARK_JOB_CANCELLED.* as part of cancellation of all jobs")
"""At Ctrl-C Spark cancels all jobs, and that may be told before Python's own interrupt."""

_FILE = re.compile(r"error while reading file file:/*(/\S+?)\. ")


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn Spark's errors in the block into ours; `doing` says what failed, without a full stop."""
    try:
        yield
    except Exception as error:
        if not from_spark(error):
            raise
        if _INTERRUPTED.search(str(error)):
            raise KeyboardInterrupt from None
        raise translate(str(error), doing) from None


def collected(frame: "DataFrame", doing: str) -> pa.Table:
    """Run a job whose answer fits into the driver's memory."""
    with translated(doing):
        return frame.toArrow()


def from_spark(error: BaseException) -> bool:
    """Say whether Spark raised this; a job that is ended comes as py4j's error, not PySpark's."""
    return type(error).__module__.split(".")[0] in {"pyspark", "py4j", "grpc"}


def translate(text: str, doing: str) -> RoamcastError:
    """Give our error for what Spark says of a failed job."""
    known = {kind.__name__: kind for kind in _tree(RoamcastError)}
    ours = [(known[name], told) for name, told in _OURS.findall(text) if name in known]
    if ours:
        kind, problem = ours[-1]  # the last one: Spark repeats a trace outermost first
        return kind(problem)
    if "spark.driver.maxResultSize" in text:
        return LimitError(
            f"{doing}: its answer is more than spark.driver.maxResultSize allows; "
            "ask for less at once, or raise that setting"
        )
    return RoamcastError(f"{doing}: {reason(text)[:REASON_LENGTH_MAX]}")


def reason(text: str) -> str:
    """Find the one line that says why: what Python raised, Java's last cause, or the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "Spark gives no reason"
    raised = [line for line in lines if _RAISED.match(line)] if "Traceback (" in text else []
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    aborted = re.findall(r"Job aborted due to stage failure: .*", text)
    found = (raised or causes or aborted[:1] or lines[:1])[-1]
    file = _FILE.search(text)
    return found if file is None else f"{unquote(file[1])}: {found}"


def _tree(kind: type[RoamcastError]) -> Iterator[type[RoamcastError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _tree(below)
