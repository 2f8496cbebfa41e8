"""The Python SDK: a program says where it is and what it wants to see, and is told.

Goes in: an address, a key, contexts, filters in CQL2. Comes out: a `Session` whose views follow the
map. `connect` is the whole door (docs/client.md).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roamcast.client.inbox import Change
    from roamcast.client.session import Session, connect
    from roamcast.client.views import View

__all__ = ["Change", "Session", "View", "connect"]

_HOMES = {"Change": "inbox", "Session": "session", "View": "views", "connect": "session"}


def __getattr__(name: str) -> Any:
    """Import on use: the service needs a part of this room and not all of it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
