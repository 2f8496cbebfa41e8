"""Contexts as GeoParquet and CSV hold what the archive holds, as other tools read it."""

import json
from pathlib import Path

import numpy as np
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
import shapely

from roamcast.errors import InputError, RoamcastError
from roamcast.model.filters import Filter
from roamcast.pipeline.analysis.export import export
from roamcast.pipeline.archive.append import append
from roamcast.pipeline.archive.layout import ArchiveSettings
from tests.strategies_pipeline import contexts

TABLE = contexts(5, 300, days=3)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    append(TABLE, tmp_path / "archive", settings=ArchiveSettings(grid_s=0))
    return tmp_path / "archive"


def test_geoparquet_says_what_it_is_and_has_a_point_for_each_context(
    archive: Path, tmp_path: Path
) -> None:
    assert export(archive, tmp_path / "all.parquet") == TABLE.num_rows
    found = pq.read_table(tmp_path / "all.parquet")
    order = [("vid", "ascending")]
    rows = found.select(TABLE.schema.names).sort_by(order).to_pylist()
    assert rows == TABLE.sort_by(order).to_pylist()
    metadata = json.loads(pq.read_metadata(tmp_path / "all.parquet").metadata[b"geo"])
    column = metadata["columns"][metadata["primary_column"]]
    assert (metadata["version"], column["encoding"]) == ("1.1.0", "WKB")
    assert column["geometry_types"] == ["Point"]
    points = shapely.from_wkb(found["geometry"].to_pylist())
    lon, lat = np.asarray(found["lon"]), np.asarray(found["lat"])
    assert np.array_equal(shapely.get_x(points), lon, equal_nan=True)
    assert np.array_equal(shapely.get_y(points), lat, equal_nan=True)
    assert column["bbox"] == list(shapely.total_bounds(points))


def test_a_filter_chooses_and_csv_has_the_same_rows(archive: Path, tmp_path: Path) -> None:
    wanted = Filter.parse("place IS NOT NULL")
    count = export(archive, tmp_path / "some.csv", wanted)
    found = csv.read_csv(tmp_path / "some.csv")
    assert count == found.num_rows == TABLE.num_rows - TABLE["place"].null_count
    assert set(found.column_names) == set(TABLE.schema.names)


def test_what_cannot_be_written_is_told_and_leaves_nothing(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends with \.csv or \.parquet"):
        export(archive, tmp_path / "x.json")
    with pytest.raises(RoamcastError, match="cannot write"):
        export(archive, tmp_path / "none" / "x.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive"]
