"""PySpark jobs: sightings and journals in; contexts, archive, lookups, metrics and plans out.

For programs with a `SparkSession` of their own (docs/analysts.md):

    from roamcast.pipeline import contexts, ingest_sightings, occupancy
    ingest_sightings(spark, "sightings", "archive")
    occupancy(contexts(spark, "archive"), level=2).show()
"""

import importlib
from typing import Any

# Spark is imported with the first of these, not with the package: the service needs none.
_PUBLIC = {
    "AgentSettings": "ingest.run",
    "Budget": "analysis.noise",
    "IngestSettings": "ingest.run",
    "Reading": "ingest.run",
    "contexts": "analysis.reading",
    "define_functions": "analysis.functions",
    "dwell": "analysis.questions",
    "entries": "analysis.questions",
    "exposure": "analysis.questions",
    "flows": "analysis.questions",
    "ingest_sightings": "ingest.frames",
    "look_up": "analysis.reading",
    "occupancy": "analysis.questions",
    "register": "analysis.source",
}
__all__ = sorted(_PUBLIC)  # noqa: PLE0605 - it is a list of texts


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
