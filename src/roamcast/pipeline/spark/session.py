"""Spark sessions: the only place that starts one, and only when a job needs it.

The master is an argument, or `ROAMCAST_SPARK`, or this machine (`local[*]`). `spark://host:port` is
a standalone cluster, `sc://host:port` a Spark Connect server. Jobs use DataFrames only, so the same
code runs on all three.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from roamcast.errors import InputError, MissingError
from roamcast.pipeline.spark import java_classes
from roamcast.pipeline.spark.errors import from_spark, reason
from roamcast.pipeline.spark.java import start_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER_VARIABLE = "ROAMCAST_SPARK"
MEMORY_VARIABLE = "ROAMCAST_SPARK_MEMORY"
CONF_VARIABLE = "ROAMCAST_SPARK_CONF"
"""Spark's own options, NAME=VALUE a line; `roamcast pipeline --conf` sets it."""
LOCAL = "local[*]"
MEMORY = "2g"
JAVA_MAJOR_MIN = 17
PORTS = {"spark": 7_077, "sc": 15_002}
REACHED_S = 5.0
"""How long a server may take to accept a connection; Spark itself would try for minutes."""

HEAP = ("-Xms128m", "-XX:GCTimeRatio=4")
"""Java's heap begins small, not with a share of the machine, and grows for what lives, or where to
collect would take a fifth of the time: not because it may (decision 0482)."""

_MASTER = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?|(spark|sc)://\S+|yarn|k8s://\S+")
_LOOPBACK = re.compile(r"local.*|spark://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")
_FALLBACK = "spark.sql.execution.arrow.pyspark.fallback.enabled"
_LOGGING = Path(__file__).with_name("log4j2.properties")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a session; `options` are Spark's own and override ours."""

    master: str | None = None
    name: str = "roamcast"
    memory: str | None = None
    options: Mapping[str, str] = {}

    @property
    def where(self) -> str:
        """The master: as given, else from the environment, else this machine."""
        return self.master or os.environ.get(MASTER_VARIABLE) or LOCAL

    @property
    def remote(self) -> bool:
        """Whether a Spark Connect server does the work: then this machine needs no Java."""
        return self.where.startswith("sc://")


Sessions = Any
"""A SparkSession, or a function that starts one when it is needed."""


def session_of(spark: Sessions) -> "SparkSession":
    """Give the session, started now if it was not needed before."""
    found: SparkSession = spark() if callable(spark) else spark
    return found


def start(settings: Settings | None = None) -> "SparkSession":
    """Give the session for these settings; a running one with the same master is used again."""
    chosen = settings or Settings()
    if not _MASTER.fullmatch(chosen.where):
        raise InputError(
            f"{chosen.where!r} is no Spark master: give local[*], spark://host:port or sc://host"
        )
    check_installed()
    check_reachable(chosen.where)
    # Workers must run this Python; a cluster with its own sets the variable beforehand.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if chosen.remote:
        check_connect()
    else:
        check_java()
    try:
        session: SparkSession = _builder(chosen).getOrCreate()
    except Exception as error:
        if not from_spark(error):
            raise
        raise MissingError(f"no Spark session on {chosen.where}: {reason(str(error))}") from None
    return session


@contextmanager
def started(settings: Settings | None = None) -> Iterator["SparkSession"]:
    """Give a session for one command, and stop it afterwards."""
    session = start(settings)
    try:
        yield session
    finally:
        session.stop()


def _builder(chosen: Settings) -> Any:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.Builder()
    builder = builder.appName(chosen.name)
    if chosen.remote:
        builder = builder.remote(chosen.where)
        options = _job_options()
        del options[_FALLBACK]  # Connect has none, and warns
    else:
        builder = builder.master(chosen.where)
        options = {**_process_options(chosen), **_job_options()}
    options |= {**given_options(), **chosen.options}
    if not chosen.remote:
        start_java({"spark.master": chosen.where, "spark.app.name": chosen.name, **options})
    for name, value in options.items():
        builder = builder.config(name, value)
    return builder


def _job_options() -> dict[str, str]:
    """Options of one session, which a Connect client may set too."""
    return {
        "spark.sql.session.timeZone": "UTC",
        # Arrow batches of this size keep the matching kernel busy and memory small.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # A conversion that silently falls back to rows would be a hundred times slower.
        _FALLBACK: "false",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    }


def _process_options(chosen: Settings) -> dict[str, str]:
    """Options of the driver's process, fixed once it runs."""
    memory = chosen.memory or os.environ.get(MEMORY_VARIABLE) or MEMORY
    options = {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": " ".join(
            [f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", *HEAP, *java_classes.options()]
        ),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "roamcast-warehouse"),
        # Python workers and the JVM share the machine: give memory back when a task ends.
        "spark.cleaner.periodicGC.interval": "5min",
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    }
    if _LOOPBACK.fullmatch(chosen.where):
        # Nothing outside this machine may reach the driver of a local job.
        options |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if chosen.where.startswith("local"):
        # Spark's 200 shuffle partitions are for clusters; here two per core are enough.
        options["spark.sql.shuffle.partitions"] = str(max(4, 2 * (os.cpu_count() or 1)))
    return options


def given_options() -> dict[str, str]:
    """Read Spark's options that the user gives for all sessions of this process."""
    found = {}
    for line in os.environ.get(CONF_VARIABLE, "").splitlines():
        name, equals, value = line.partition("=")
        if not name.startswith("spark.") or not equals:
            raise InputError(f"{line!r} is no option of Spark: give spark.NAME=VALUE")
        found[name] = value
    return found


def check_reachable(master: str) -> None:
    """Raise MissingError unless one of a cluster's addresses accepts connections."""
    scheme, _, rest = master.partition("://")
    if scheme not in PORTS:
        return
    told = ""
    for address in rest.partition("/")[0].split(","):
        host, _, port = (
            address.rpartition(":") if re.search(r":\d+$", address) else (address, "", "")
        )
        try:
            with socket.create_connection(
                (host.strip("[]"), int(port or PORTS[scheme])), REACHED_S
            ):
                return
        except (OSError, OverflowError) as error:
            told = getattr(error, "strerror", None) or str(error)
    raise MissingError(f"no Spark at {master}: {told}")


def check_installed() -> None:
    """Raise MissingError unless Spark's packages are installed: the service does without them."""
    missing = [package for package in ("pyspark", "pandas") if find_spec(package) is None]
    if missing:
        raise MissingError(
            f"no {' and no '.join(missing)}: pip install 'roamcast[pipeline]' brings Spark"
        )


def check_connect() -> None:
    """Raise MissingError unless the packages of a Spark Connect client are installed."""
    needed = {"grpc": "grpcio", "grpc_status": "grpcio-status", "zstandard": "zstandard"}
    missing = [package for module, package in needed.items() if find_spec(module) is None]
    if missing:
        raise MissingError(f"sc:// needs pip install 'pyspark[connect]': no {', '.join(missing)}")


def check_java() -> None:
    """Raise MissingError, with what to install, unless a Java that Spark accepts is found."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    advice = f"Spark needs Java {JAVA_MAJOR_MIN} or newer (Debian: openjdk-17-jre-headless)"
    if java is None or not Path(java).exists():
        where = f"none at {java}: check JAVA_HOME" if home else "no `java` on PATH"
        raise MissingError(f"{advice}; {where}")
    try:
        said = subprocess.run(  # noqa: S603 - the machine's own java, no shell
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{advice}; {java} does not run: {error}") from None
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is None or int(found[1]) < JAVA_MAJOR_MIN:
        version = found[1] if found else "unknown"
        raise MissingError(f"{advice}; {java} is version {version}")
