"""The Python SDK: a program publishes where it is and follows what it subscribes to.

In: an address, a key, contexts, filters in CQL2. Out: a `Session` whose views follow the map.
`connect` is the entry point (docs/client.md).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roamcast.client.event_streams import BrokerChange, EventStream, ReceivedEvent
    from roamcast.client.inbox import OpenedMail
    from roamcast.client.session import Session, connect
    from roamcast.client.views import Change, View

__all__ = [
    "BrokerChange",
    "Change",
    "EventStream",
    "OpenedMail",
    "ReceivedEvent",
    "Session",
    "View",
    "connect",
]

_MODULES = {
    "Change": "views",
    "EventStream": "event_streams",
    "BrokerChange": "event_streams",
    "ReceivedEvent": "event_streams",
    "OpenedMail": "inbox",
    "Session": "session",
    "View": "views",
    "connect": "session",
}


def __getattr__(name: str) -> Any:
    """Import on use: commands that need one part should not load the others."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
