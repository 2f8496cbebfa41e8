"""PostgreSQL with PostGIS, started by a bench on a folder of its own, as an unprivileged user."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from roamcast.errors import InputError

START_S = 30.0
SETTINGS = {
    "listen_addresses": "",
    "shared_buffers": "1GB",
    "work_mem": "64MB",
    "maintenance_work_mem": "512MB",
    "random_page_cost": "1.1",
    "effective_io_concurrency": "200",
    "jit": "off",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_wal_size": "8GB",
    "autovacuum": "off",
}
"""All in memory and nothing waits for a disk: the peer at its fastest, vacuumed by the bench."""


def programs() -> Path:
    """Return the folder with PostgreSQL's programs, or say what to install."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        shared = Path("/usr/share/postgresql") / folder.parent.name / "extension"
        if (folder / "initdb").exists() and (shared / "postgis.control").exists():
            return folder
    raise InputError(
        "PostgreSQL with PostGIS is not installed: "
        "apt-get install postgresql postgresql-15-postgis-3 (scripts/tools.sh)"
    )


@contextmanager
def running() -> Iterator[Any]:
    """Run a server; give a connection to it, in autocommit."""
    try:
        import psycopg
    except ImportError:
        raise InputError("psycopg is not installed: pip install 'psycopg[binary]'") from None
    folder = programs()
    # The server refuses to run as root.
    user = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    with tempfile.TemporaryDirectory(prefix="roamcast-bench-") as name:
        base = Path(name)
        if os.getuid() == 0:
            shutil.chown(base, user)
        data = base / "data"
        initdb = [str(folder / "initdb"), "-D", str(data), "-U", "bench", "-A", "trust"]
        subprocess.run(  # noqa: S603 - the bench's own command
            [*initdb, "--locale=C", "--encoding=UTF8", "--no-sync"],
            user=user, cwd=base, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        options = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        server = subprocess.Popen(  # noqa: S603
            [str(folder / "postgres"), "-D", str(data), "-k", str(base), *options],
            user=user, cwd=base, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            with _connected(psycopg, base) as connection:
                connection.execute("CREATE EXTENSION postgis")
                connection.execute("CREATE EXTENSION pg_trgm")
                yield connection
        finally:
            server.terminate()
            server.wait(START_S)


def _connected(psycopg: Any, base: Path) -> Any:
    until = time.monotonic() + START_S
    while True:
        try:
            return psycopg.connect(host=str(base), user="bench", dbname="postgres", autocommit=True)
        except psycopg.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
