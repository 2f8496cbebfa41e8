"""The start of Spark's Java process, with what it says on stderr less what nobody can act on.

Spark 4.3 asks Java for a module that is still an incubator, and Java warns of it at every start; no
option of Java silences that. So its stderr passes through a pipe, a line at a time.
"""

import os
import threading
from collections.abc import Mapping
from typing import Any

WARNING = b"WARNING: Using incubator modules"


def start_java(options: Mapping[str, str]) -> None:
    """Start Java with Spark's options, unless it runs; a session that is built then uses it."""
    from pyspark import SparkConf, SparkContext, java_gateway

    if SparkContext._gateway is not None:  # noqa: SLF001 - PySpark has no other way to ask
        return
    conf = SparkConf(loadDefaults=False).setAll(list(options.items()))
    source, sink = os.pipe()
    threading.Thread(target=pass_on, args=(source, 2), name="java's stderr", daemon=True).start()
    try:
        launch: Any = java_gateway.launch_gateway  # untyped
        gateway = launch(conf, {"stderr": sink})  # "a developer feature", for this
    finally:
        os.close(sink)
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - as above


def pass_on(source: int, target: int) -> None:
    """Write what comes from one file descriptor to another, without the warning."""
    with os.fdopen(source, "rb") as lines:
        for line in lines:
            if not line.startswith(WARNING):
                os.write(target, line)
