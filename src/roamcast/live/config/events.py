"""Settings of events."""

from typing import Annotated, Final

from roamcast.live.config.sections import Section, number, text

MIB: Final = 1024 * 1024


class EventSection(Section, frozen=True, kw_only=True):
    """Events: everything that happens, once and in order (docs/flows.md)."""

    log_s: Annotated[
        float, number(1, 30 * 86_400, "age at which an event leaves the log, for good")
    ] = 600.0
    log_bytes_max: Annotated[
        int, number(MIB, 4096 * MIB, "bytes of the log; beyond it the oldest events leave early")
    ] = 64 * MIB
    bytes_per_s: Annotated[
        float, number(1, 1e12, "sustained bytes of events that one subject publishes")
    ] = 4.0 * MIB
    bytes_burst: Annotated[
        int, number(2 * MIB, 10**12, "burst of bytes of events that one subject publishes")
    ] = 16 * MIB
    consumers_max: Annotated[
        int, number(1, 1_000_000, "subscriptions of events of all clients")
    ] = 100_000
    sleep_s_max: Annotated[
        float, number(0, 3_600, "longest time that events are held for a session that is over")
    ] = 60.0
    transitions: Annotated[
        str, text("file of `roamcast pipeline plan transitions`: prepare where people go")
    ] = ""
    transitions_least: Annotated[
        float, number(0, 1, "prepare where at least this share of people goes on to")
    ] = 0.1
