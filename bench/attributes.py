"""How should the archive keep typed attributes? A column each, or all in one encoded value.

Both are read back to what the matching kernel needs: the columns of two attributes out of four.
One encoded value stands for VARIANT and JSON alike: it has to be decoded row by row, and keeps no
statistics of an attribute (docs/decisions/0040).
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from roamcast.lab.report import Claim, Report, Steps

sys.path.append(str(Path(__file__).parent))  # benches live outside the package
import _contexts as generator

TITLE = "Typed attributes in the archive: promoted columns beside one encoded value"
ASKED = ["string:kind", "integer:level"]
REPEATS = 3


def run(quick: bool, progress: Steps) -> Report:
    """Write the same contexts both ways, read two attributes back, compare."""
    size = 100_000 if quick else 1_000_000
    table = generator.table(next(iter(generator.raw(size))))
    attributes = [name for name in table.schema.names if ":" in name]
    encode = msgspec.msgpack.Encoder().encode
    packed = pa.array([encode(row) for row in table.select(attributes).to_pylist()], pa.binary())
    encoded = table.drop_columns(attributes).append_column("attributes", packed)
    with tempfile.TemporaryDirectory(prefix="roamcast-bench-") as folder:
        ways: dict[str, tuple[pa.Table, Callable[[str], pa.Table]]] = {
            "promoted columns": (table, lambda path: pq.read_table(path, columns=ASKED)),
            "one encoded value": (encoded, _decoded),
        }
        rows = []
        with progress("ways", len(ways)) as step:
            for name, (contents, read) in ways.items():
                path = f"{folder}/{name}.parquet"
                pq.write_table(contents, path, row_group_size=4_096)
                spent = []
                for _ in range(REPEATS):
                    begin = time.perf_counter()
                    found = read(path)
                    spent.append(time.perf_counter() - begin)
                assert found.equals(table.select(ASKED)), name
                size_mb = Path(path).stat().st_size / 1e6
                rows.append({"kept as": name, "read_s": statistics.median(spent), "MB": size_mb})
                step(1)
    ratio = rows[1]["read_s"] / rows[0]["read_s"]
    claims = [
        Claim("reading two attributes, encoded against columns", ratio, ratio > 1, bar="> 1 times")
    ]
    return Report("attributes", {"contexts": size, "attributes": attributes}, rows, claims)


def _decoded(path: str) -> pa.Table:
    decode = msgspec.msgpack.Decoder().decode
    values = pq.read_table(path, columns=["attributes"])["attributes"].to_pylist()
    rows = [decode(value) for value in values]
    columns = [pa.array([row.get(name) for row in rows]) for name in ASKED]
    return pa.table(columns, names=ASKED)
