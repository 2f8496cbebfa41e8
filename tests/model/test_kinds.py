"""One table of attribute kinds: what stands in it is what everybody reads.

The last test adds a kind as a maintainer would. It copies the package, adds one entry to the table
(and the type's name to the two unions above it, which mypy reads), and uses the new kind from a
Feature over filters, the matching kernel and the archive to a lookup.
"""

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest

from roamcast.errors import ContextError, LimitError
from roamcast.model import context_arrow, kinds
from roamcast.model.kinds import KINDS, attribute_literal, holding, kind_of, scalar, scalars

PACKAGE = Path(__file__).parents[2] / "src" / "roamcast"
MOMENT = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def test_every_kind_has_its_own_type_and_column() -> None:
    assert set(KINDS) == set(get_args(kinds.KindName))
    assert {kind.type for kind in KINDS.values()} == set(get_args(kinds.Attribute))
    assert {kind.compared for kind in KINDS.values()} == set(get_args(kinds.Comparison))
    assert set(context_arrow.TYPES) == set(KINDS)


@pytest.mark.parametrize(
    ("value", "name", "found"),
    [
        (True, "boolean", [("boolean", 1)]),
        (5, "integer", [("number", 5)]),
        (5.5, "float", [("number", 5.5)]),
        ("x", "string", [("string", "x")]),
        ("1970-01-01", "string", [("string", "1970-01-01"), ("instant", 0)]),
        (MOMENT, "timestamp", [("instant", 1_000_000)]),
    ],
)
def test_a_value_has_one_kind_and_its_comparisons(value: Any, name: str, found: Any) -> None:
    kind = kind_of(value)
    assert kind is not None
    assert kind.name == name
    assert list(scalars(value)) == found
    assert {compared: scalar(value, compared) for compared in get_args(kinds.Comparison)} == {
        compared: dict(found).get(compared) for compared in get_args(kinds.Comparison)
    }
    assert kind.read(kind.written(value)) == value
    assert kind.value(kind.scalar(value)) == value
    column = context_arrow.array_of([kind.scalar(value), None], context_arrow.TYPES[name])
    assert column.null_count == 1
    assert column.type == context_arrow.TYPES[name]


def test_subclasses_have_the_kind_of_their_base_and_others_none() -> None:
    class Odd(int):
        pass

    found = kind_of(Odd(3))
    assert found is not None
    assert found.name == "integer"
    assert kind_of(None) is None
    assert kind_of([1]) is None
    assert scalar(None, "number") is None


def test_a_comparison_knows_the_kinds_that_hold_it() -> None:
    assert holding("number") == ("integer", "float")
    assert holding("instant") == ("string", "timestamp")  # a text may be a timestamp
    assert holding("string") == ("string",)


def test_limits_name_what_is_beyond_them() -> None:
    with pytest.raises(ContextError, match="it does not fit in 64 bits"):
        KINDS["integer"].check("it", 2**63)
    with pytest.raises(ContextError, match="it is not a finite number"):
        KINDS["float"].check("it", float("nan"))
    with pytest.raises(LimitError, match="it is longer than 65536 characters"):
        KINDS["string"].check("it", "x" * 65_537)
    with pytest.raises(ContextError, match="without a time zone"):
        KINDS["timestamp"].check("it", MOMENT.replace(tzinfo=None))
    early = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    with pytest.raises(ContextError, match="outside the years 1 to 9999"):
        KINDS["timestamp"].check("it", early)


def test_literals_are_those_of_the_filter_language() -> None:
    values = [True, 5, 2**53 + 1, 5.5, "it's", MOMENT]
    assert [attribute_literal(value) for value in values] == [
        "true",
        "5",
        "9007199254740993",
        "5.5",
        "'it''s'",
        "TIMESTAMP('1970-01-01T00:00:01Z')",
    ]


ADDED = """        Kind(
            name="duration",
            type=timedelta,
            compared="number",  # of seconds
            arrow=lambda pa: pa.float64(),
            delta="double",
            scalar=lambda value: value.total_seconds(),
            value=lambda seconds: timedelta(seconds=seconds),
            check=_no_limit,
            text=(
                lambda value: str(value.total_seconds()),
                lambda text: timedelta(seconds=float(text)),
            ),
        ),
"""
BEFORE = '        Kind(\n            name="timestamp",\n'
EDITS = [
    ("from datetime import datetime\n", "from datetime import datetime, timedelta\n"),
    (
        "Attribute = str | int | float | bool | datetime\n",
        "Attribute = str | int | float | bool | datetime | timedelta\n",
    ),
    (
        'KindName = Literal["string", "integer", "float", "boolean", "timestamp"]\n',
        'KindName = Literal["string", "integer", "float", "boolean", "timestamp", "duration"]\n',
    ),
    (BEFORE, ADDED + BEFORE),
]

PROGRAM = """
import sys
from datetime import timedelta
from pathlib import Path

import roamcast
from roamcast.identity.attributes import from_text, to_text
from roamcast.matching import FilterSet
from roamcast.matching.aggregate import summarise
from roamcast.model.context_arrow import from_arrow, to_arrow
from roamcast.model.contexts import Context, decode, encode
from roamcast.model.filters import Filter
from roamcast.model.items import Criterion
from roamcast.pipeline.archive.append import append
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.lookup.run import Lookup

folder = Path(sys.argv[1])
assert Path(roamcast.__file__).is_relative_to(folder), roamcast.__file__
long, short = (Context(f"v{n}", attributes={"stay": timedelta(seconds=n)}) for n in (90, 5))
assert encode(long).count(b'"stay":{"duration":"90.0"}') == 1
assert decode(encode(long)) == long
assert from_arrow(to_arrow([long, short])) == [long, short]
assert from_text(to_text(long.attributes)) == long.attributes
wanted = Filter.parse("stay > 60")
assert [wanted.matches(each) for each in (long, short)] == [True, False]
assert Criterion("duration", "stay", ">", timedelta(seconds=60)).text() == "stay > 60"
assert [summarise([each]).admits(wanted) for each in (long, short)] == [True, False]
filters = FilterSet()
filters.add("f", wanted)
assert [filters.match(each) for each in (long, short)] == [["f"], []]
assert filters.match_batch(to_arrow([long, short])).rows.tolist() == [0]
append(to_arrow([long, short]), folder / "archive")
assert Archive.open(folder / "archive").columns() == ["duration:stay"]
asked = {"f": wanted, "g": Filter.parse("stay > 100"), "h": Filter.parse("stay IS NOT NULL")}
assert Lookup(folder / "archive").ask(asked) == {"f": ["v90"], "g": [], "h": ["v5", "v90"]}
"""


@pytest.mark.process
def test_a_kind_is_added_in_one_place(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "roamcast")  # with the compiled kernels: none changes
    path = tmp_path / "roamcast" / "model" / "kinds.py"
    text = path.read_text(encoding="utf-8")
    for old, new in EDITS:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_pyarrow_is_not_needed_to_know_the_kinds() -> None:
    """The SDK reads the table and should start without Arrow."""
    code = "import sys, roamcast.model.kinds; assert 'pyarrow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert KINDS["float"].arrow(pa) == pa.float64()
