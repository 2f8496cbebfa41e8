"""What is wrong with a row of sightings, by Spark's own expressions.

The texts are those of `identity.sightings`. Whatever could stop a later stage is found here, so one
row never stops a batch. Only the inside of `attributes` is checked later, once per distinct text
(`ingest.scan`).
"""

from typing import TYPE_CHECKING

from roamcast.identity import sightings as limits
from roamcast.identity.sightings import SOURCES
from roamcast.model.contexts import DEPTH_MAX, PATH_LENGTH_MAX
from roamcast.model.time import EARLIEST
from roamcast.pipeline.ingest.files import Reading

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RAW_LENGTH_MAX = 4_096
"""How much of a malformed row is kept with its reason."""

NOT_UTF8 = "not UTF-8"
_UNPRINTABLE = r"[\p{C}\p{Z}&&[^ ]]"  # as Python's str.isprintable
_NO_PATH = rf"^[{{\[]|(^|/)(/|\z)|(/[^/]*+){{{DEPTH_MAX}}}|{_UNPRINTABLE}"
_STAMP = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6}0*)?(Z|[+-]\d\d:\d\d)\z"


def checked(rows: "DataFrame", reading: Reading, latest: int) -> "DataFrame":
    """Convert rows to their types; rows that are not sightings get a reason.

    rows: a text a field, `broken` with what its reader found. latest: a time after this lies in
    the future (µs).
    """
    from pyspark.sql import functions as f

    time = f.upper(f.translate("time", " ", "T"))
    if reading.zone is not None:
        time = f.when(time.rlike(r"(Z|[+-]\d\d:\d\d)\z"), time).otherwise(
            f.concat(time, f.lit(reading.zone))
        )
    position = f.array_position(f.array(*map(f.lit, SOURCES)), f.col("source"))
    number = f.when(position > 0, position - 1)
    typed = rows.select(
        "person",
        number.cast("tinyint").alias("source"),
        f.when(time.rlike(_STAMP), f.unix_micros(time.try_cast("timestamp"))).alias("time"),
        "place",
        f.col("lon").try_cast("double").alias("lon"),
        f.col("lat").try_cast("double").alias("lat"),
        f.struct("lon", "lat").alias("said"),
        "attributes",
        f.xxhash64("file").alias("file"),
        "broken",
        "raw",
    )
    reason = _reason(latest)
    return typed.select(
        *("person", "source", "time", "place", "lon", "lat", "attributes", "file"),
        reason.alias("reason"),
        f.when(reason.isNotNull(), f.substring("raw", 1, RAW_LENGTH_MAX)).alias("raw"),
    )


def _reason(latest: int) -> "Column":
    """Say what is wrong with a row, in the order and the words of `identity.sightings`."""
    from pyspark.sql import functions as f

    person, place, lon, lat = (f.col(name) for name in ("person", "place", "lon", "lat"))
    said_lon, said_lat = f.col("said.lon"), f.col("said.lat")
    half = lon.isNull() | lat.isNull()
    within = lon.between(-180, 180) & lat.between(-90, 90)
    return f.coalesce(
        f.col("broken"),
        f.when(person.isNull() | (person == ""), "person is missing"),
        f.when(
            f.length(person) > limits.PERSON_LENGTH_MAX,
            f"person is longer than {limits.PERSON_LENGTH_MAX} characters",
        ),
        f.when(person.rlike(rf"^[{{\[]|{_UNPRINTABLE}"), "person is not printable text"),
        f.when(f.col("source").isNull(), f"source is not one of {', '.join(SOURCES)}"),
        f.when(f.col("time").isNull(), "time is not an RFC 3339 timestamp with a zone"),
        # the archive has no day before year 1; the years after 9999 lie in the future
        f.when(f.col("time") < EARLIEST, "time lies outside the years 1 to 9999"),
        f.when(f.col("time") > latest, "time lies in the future"),
        f.when(f.length(place) > PATH_LENGTH_MAX, "place is too long"),
        f.when(place.rlike(_NO_PATH), "place is not a path"),
        f.when(
            (said_lon.isNotNull() | said_lat.isNotNull()) & half, "lon and lat are not two numbers"
        ),
        f.when(lon.isNotNull() & ~within, "no WGS84 longitude and latitude"),
        f.when(place.isNull() & lon.isNull(), "a sighting needs a place, or lon and lat"),
        f.when(
            f.length("attributes") > limits.ATTRIBUTES_LENGTH_MAX,
            f"attributes are longer than {limits.ATTRIBUTES_LENGTH_MAX} characters",
        ),
    )
