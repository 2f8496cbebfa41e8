"""Spark's stack traces become one line of ours, with the class of the error that a task raised."""

import pytest
from pyspark.errors import PySparkException

from roamcast.errors import InputError, LimitError, MissingError, RoamcastError
from roamcast.pipeline.archive.storage import GoneError
from roamcast.pipeline.spark.errors import REASON_LENGTH_MAX, translate, translated

IN_TASK = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent
failure: Lost task 0.0 in stage 3.0: org.apache.spark.api.python.PythonException: Traceback (most
recent call last):
  File "x.py", line 3, in work
    raise InputError("no")
{raised}

\tat org.apache.spark.api.python.BasePythonRunner
Caused by: org.apache.spark.api.python.PythonException: again
"""


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        ("roamcast.errors.InputError: a.jsonl, line 3: no", InputError, "a.jsonl, line 3: no"),
        ("roamcast.errors.LimitError: too much", LimitError, "too much"),
        ("roamcast.pipeline.archive.storage.GoneError: x is gone", GoneError, "x is gone"),
        ("roamcast.errors.MissingError: no stream", MissingError, "no stream"),
        ("roamcast.errors.RoamcastError: disk full", RoamcastError, "disk full"),
    ],
)
def test_our_own_error_keeps_its_class_and_text(
    raised: str, kind: type[RoamcastError], text: str
) -> None:
    found = translate(IN_TASK.format(raised=raised), "it failed")
    assert type(found) is kind
    assert str(found) == text


def test_the_last_cause_is_told_with_the_file_that_could_not_be_read() -> None:
    text = (
        "An error occurred while calling o1.toArrow.\n"
        "Encountered error while reading file file:///data/a%20b.parquet. SQLSTATE: KD001\n"
        "Caused by: java.lang.RuntimeException: outer\n"
        "Caused by: java.io.IOException: not a Parquet file\n"
    )
    found = str(translate(text, "the ingest failed"))
    assert found == "the ingest failed: /data/a b.parquet: java.io.IOException: not a Parquet file"


def test_an_answer_that_the_driver_cannot_hold_says_what_to_do() -> None:
    found = translate("… is bigger than spark.driver.maxResultSize (1 KiB)", "the lookup failed")
    assert isinstance(found, LimitError)
    assert str(found).startswith("the lookup failed: its answer is more than spark.driver.")


def test_one_line_of_bounded_length_even_without_a_reason() -> None:
    assert str(translate("\n \n", "it failed")) == "it failed: Spark gives no reason"
    long = str(translate("x" * 10_000 + "\nmore", "it failed"))
    assert long == f"it failed: {'x' * REASON_LENGTH_MAX}"


def test_an_interrupt_is_not_a_failure() -> None:
    text = (
        "An error occurred while calling o1.toArrow.\norg.apache.spark.SparkException: "
        "[SPARK_JOB_CANCELLED] Job 1 cancelled as part of cancellation of all jobs SQLSTATE: XXKDA"
    )
    with pytest.raises(KeyboardInterrupt), translated("it failed"):
        raise PySparkException(text)


def test_errors_that_are_not_sparks_pass_untouched() -> None:
    with pytest.raises(KeyError), translated("it failed"):
        raise KeyError("mine")
    with pytest.raises(InputError, match=r"^no$"), translated("it failed"):
        raise InputError("no")
