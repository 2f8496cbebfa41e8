"""Contexts for other tools: GeoParquet for GeoPandas, MovingPandas, trackintel, Sedona and DuckDB.

Files of the archive are read one after another and written as they come, so memory does not grow
with the answer. A `.csv` file has the same columns without the geometry.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import shapely

from roamcast.errors import InputError, RoamcastError
from roamcast.files import write_with
from roamcast.model.context_arrow import schema
from roamcast.model.filters import Filter
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.lookup.plan import Statistics, plan
from roamcast.pipeline.lookup.read import Reader

GEOMETRY = "geometry"
EVERYTHING = Filter.parse("TRUE")


def export(archive: str | Path, out: Path, wanted: Filter | None = None) -> int:
    """Write the contexts that satisfy a filter into one file; give how many there are."""
    if out.suffix not in {".csv", ".parquet"}:
        raise InputError(f"a file ends with .csv or .parquet, not {out.suffix or 'nothing'}")
    target = Archive.open(archive)
    columns = schema(target.columns())
    reader = Reader([EVERYTHING if wanted is None else wanted])
    shares = plan(Statistics(target), reader.needs)
    tables = (
        _shaped(table, columns)
        for share in shares
        for table in reader.rows(target.storage, share, columns.names)
    )
    write = _write_csv if out.suffix == ".csv" else _write_geo
    rows = 0

    def written(sink: IO[bytes]) -> None:
        nonlocal rows
        rows = write(tables, columns, sink)

    try:
        write_with(out, written)  # the whole file or none
    except OSError as error:
        raise RoamcastError(f"cannot write {out}: {error.strerror}") from None
    return rows


def _shaped(table: pa.Table, columns: pa.Schema) -> pa.Table:
    """Give all columns; what no context of a file has is null."""
    there = set(table.schema.names)
    arrays = [
        table.column(field.name) if field.name in there else pa.nulls(table.num_rows, field.type)
        for field in columns
    ]
    return pa.table(arrays, schema=columns)


def _write_csv(tables: Iterator[pa.Table], columns: pa.Schema, sink: IO[bytes]) -> int:
    rows = 0
    with csv.CSVWriter(sink, columns) as writer:
        for table in tables:
            writer.write_table(table)
            rows += table.num_rows
    return rows


def _write_geo(tables: Iterator[pa.Table], columns: pa.Schema, sink: IO[bytes]) -> int:
    rows = 0
    hull = [np.inf, np.inf, -np.inf, -np.inf]
    wide = columns.append(pa.field(GEOMETRY, pa.binary()))
    with pq.ParquetWriter(sink, wide, compression="zstd") as writer:
        for table in tables:
            lon, lat = np.asarray(table["lon"]), np.asarray(table["lat"])
            there = ~np.isnan(lon)
            shapes = np.full(len(lon), None, object)
            shapes[there] = shapely.to_wkb(shapely.points(lon[there], lat[there]))
            if there.any():
                hull[:2] = min(hull[0], np.nanmin(lon)), min(hull[1], np.nanmin(lat))
                hull[2:] = max(hull[2], np.nanmax(lon)), max(hull[3], np.nanmax(lat))
            writer.write_table(table.append_column(GEOMETRY, pa.array(shapes, pa.binary())))
            rows += table.num_rows
        writer.add_key_value_metadata({"geo": json.dumps(geo(hull))})
    return rows


def geo(hull: list[float]) -> dict[str, Any]:
    """Write GeoParquet's metadata; without a reference system it is WGS 84, longitude first."""
    column: dict[str, Any] = {"encoding": "WKB", "geometry_types": ["Point"]}
    if hull[0] <= hull[2]:
        column["bbox"] = [float(end) for end in hull]
    return {"version": "1.1.0", "primary_column": GEOMETRY, "columns": {GEOMETRY: column}}
