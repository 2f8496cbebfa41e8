"""How patient is the last hop? Bounds and marks of sessions that people's programs hold open."""

import msgspec


class HubSettings(msgspec.Struct, frozen=True):
    """Intervals in microseconds."""

    sessions_max: int = 20_000
    subscriptions_per_session_max: int = 1_000
    matches_max: int = 1_000
    """Subscriptions of one subject, over its sessions, that one object may satisfy: more are told
    for longer than others should wait, and sessions are cut off."""
    page_features_max: int = 100
    """Of the current set so many come in the reply; the rest follows as the session takes it."""
    frame_events_max: int = 64
    """Also as many as one session that is served alone gets before others have their turn."""
    event_cost_us: int = 40
    """More for such a session waits so long for each event: about twice what encoding one takes."""
    frame_cost_us: int = 12
    """The next frame of a watch waits so long for each session: about twice what writing to one
    takes, so that half of the time stays for others and what changes meanwhile is coalesced."""
    queue_events_max: int = 50_000
    """A session that lacks more is cut off."""
    slow_us_max: int = 30_000_000
    """A session that takes nothing for so long is cut off."""
    limit_bytes_min: int = 1_024
