"""Settings of the event plane of one broker; intervals in microseconds."""

import msgspec

from roamcast.model.transitions import Transitions
from roamcast.overlay.flows.settings import FlowSettings
from roamcast.overlay.handoff.handoff import HandoffNode
from roamcast.overlay.handoff.settings import Surroundings
from roamcast.overlay.homes.managers import HomeSettings


class EventSettings(msgspec.Struct, frozen=True):
    """How events are stored and handed over, and the bounds of sessions that read them."""

    flows: FlowSettings = FlowSettings()
    handoff: HandoffNode = HandoffNode(Surroundings(lambda _: ()))
    homes: HomeSettings = HomeSettings()
    subscriptions_per_session_max: int = 1_000
    queue_bytes_max: int = 256 * 1024
    """What may wait for a session with a limit; beyond, its consumers stand still."""
    sleep_us_max: int = 60_000_000
    """How long events are held for a session that is over; after that, the log is left."""
    sleeping_per_owner_max: int = 100
    """Consumers of one subject that are held so; beyond, the oldest go."""
    transitions: Transitions = Transitions()
    """Where people go on to from each place; of places it does not have, anywhere."""
    transitions_least: float = 0.1
    """The next node prepares if at least this share of people goes on to it."""
