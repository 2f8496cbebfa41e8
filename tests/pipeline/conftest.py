"""One Spark session for each module of tests, on two cores of this machine."""

from collections.abc import Iterator

import pytest

from roamcast.errors import MissingError
from roamcast.pipeline.session import Settings, check_java, started

OPTIONS = {"spark.sql.shuffle.partitions": "4"}


@pytest.fixture(scope="module")
def spark() -> Iterator[object]:
    try:
        check_java()
    except MissingError as error:
        pytest.skip(str(error))
    settings = Settings(master="local[2]", name="roamcast-tests", memory="2g", options=OPTIONS)
    with started(settings) as session:
        yield session
