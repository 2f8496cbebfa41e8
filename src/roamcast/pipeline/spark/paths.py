"""Paths as Spark must be given them, with the signs of patterns escaped.

Spark's readers take a path for a pattern if it has one of these signs: `a[1].jsonl` would read
`a1.jsonl` instead, without an error.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from roamcast.errors import InputError

_SIGNS = re.compile(r"([{}\[\]*?\\])")


def literal(path: str) -> str:
    """Return the path as Spark must be given it."""
    return _SIGNS.sub(r"\\\1", path)


def with_colons(reader: Any, paths: Iterable[str]) -> Any:
    """Make a reader of DataFrames take paths with colons, if there are any."""
    if not any(":" in path for path in paths):
        return reader
    # Hadoop looks for a checksum beside each file, and chokes on that name if it has a colon
    return reader.options(
        **{
            "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
            "fs.file.impl.disable.cache": "true",
        }
    )


def watchable(folder: Path) -> str:
    """Return a folder's path as a stream must be given it, or raise.

    Of a path with escaped signs a stream gives every file twice (Spark 4.3), so it is refused.
    """
    path = str(folder.absolute())
    if literal(path) != path:
        raise InputError(
            "Spark takes a path with one of { } [ ] * ? \\ for a pattern, so it cannot be watched: "
            "rename it, or watch a symbolic link to it",
            source=path,
        )
    return path
