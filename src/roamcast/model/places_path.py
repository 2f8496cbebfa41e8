"""What is a place's path, and when does one lie within another?

A path is `segment/segment/…`: segments of non-empty text without `/`, control or other
unprintable characters.
`path_within` is the meaning of the filter language's `within(place, 'a/b')`; every other
containment test (the pre-order intervals of `places`) must agree with it.
"""

from roamcast.errors import LimitError, PlaceError

DEPTH_MAX = 32
PATH_LENGTH_MAX = 1024


def segments(path: str) -> tuple[str, ...]:
    """Take a path apart; sorted by this key, paths stand in pre-order (as text not: `-` < `/`)."""
    return tuple(path.split("/"))


def path_within(path: str, region: str) -> bool:
    """Say whether `path` is `region` or lies anywhere below it."""
    return path == region or path.startswith(region + "/")


def parent_path(path: str) -> str | None:
    """Give the path one level up, or none for a root."""
    parent, slash, _ = path.rpartition("/")
    return parent if slash else None


def check_path(path: object) -> str:
    """Return the path if it is one, or raise with what is wrong."""
    if not isinstance(path, str):
        raise PlaceError(f"a place's path is text, not {type(path).__name__}")
    if len(path) > PATH_LENGTH_MAX:
        shown = path[:40]
        raise LimitError(f"path {shown!r}… is longer than the limit of {PATH_LENGTH_MAX}")
    parts = segments(path)
    if not all(parts):
        raise PlaceError(f"path {path!r} has an empty segment")
    if not path.isprintable():  # as contexts.check_place: every place here may be a context's
        raise PlaceError(f"path {path!r} has a control or other unprintable character")
    if len(parts) > DEPTH_MAX:
        raise LimitError(f"path {path[:40]!r}… is deeper than the limit of {DEPTH_MAX} segments")
    return path
