"""Paths of places, `segment/segment/…`, and containment between them.

A segment is non-empty printable text without `/`. `path_within` defines the filter language's
`within(place, 'a/b')`; every other containment test, such as the pre-order intervals of `places`,
must agree with it (decision 0030).
"""

from roamcast.errors import LimitError, PlaceError

DEPTH_MAX = 32
PATH_LENGTH_MAX = 1024


def segments(path: str) -> tuple[str, ...]:
    """Split a path into segments.

    Sorted by this key, paths are in pre-order. Sorted as text they are not, since `-` < `/`.
    """
    return tuple(path.split("/"))


def path_within(path: str, region: str) -> bool:
    """Return whether `path` is `region` or lies anywhere below it."""
    return path == region or path.startswith(region + "/")


def parent_path(path: str) -> str | None:
    """Return the path one level up, or None for a root."""
    parent, slash, _ = path.rpartition("/")
    return parent if slash else None


def check_path(path: object) -> str:
    """Return the path, or raise if it is invalid."""
    if not isinstance(path, str):
        raise PlaceError(f"a place's path is text, not {type(path).__name__}")
    if len(path) > PATH_LENGTH_MAX:
        shown = path[:40]
        raise LimitError(f"path {shown!r}… is longer than the limit of {PATH_LENGTH_MAX}")
    parts = segments(path)
    if not all(parts):
        raise PlaceError(f"path {path!r} has an empty segment")
    if not path.isprintable():  # contexts carry these paths, and their texts are printable
        raise PlaceError(f"path {path!r} has a control or other unprintable character")
    if len(parts) > DEPTH_MAX:
        raise LimitError(f"path {path[:40]!r}… is deeper than the limit of {DEPTH_MAX} segments")
    return path
