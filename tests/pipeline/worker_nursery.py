"""Spark's daemon that forks Python workers, after it has imported what their tasks need.

Spark's own imports nothing: each worker would, for a second of CPU.
"""

import gc
import importlib

from pyspark import daemon

NEEDED = ("pandas", "pyspark.worker", "deltalake", "roamcast.pipeline.ingest.run",
          "roamcast.pipeline.lookup.run", "roamcast.pipeline.analysis.source",
          "roamcast.pipeline.load")  # fmt: skip

if __name__ == "__main__":
    for name in NEEDED:
        importlib.import_module(name)
    gc.freeze()  # else the first collection of a worker would copy all these pages
    daemon.manager()
