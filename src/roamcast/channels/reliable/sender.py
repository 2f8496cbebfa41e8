"""The sending end of a reliable channel: one sender, a whole group, nothing lost (AMS 6 and 12).

Messages are numbered and held in a bounded buffer. 0023: a heal request is answered to the whole
group, because a loss near the sender is everybody's loss, and the answer silences the requests of
others. A receiver that joined late is answered alone. A receiver further behind than the buffer
gets a snapshot of the user's state: such requests are gathered for a moment, then the user is asked
for its state once.
"""

import enum
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import ClassVar, Final

from roamcast.channels.reliable.messages import (
    HEAL_SEQUENCES_MAX,
    PAYLOAD_BYTES_MAX,
    SNAPSHOT_BYTES_MAX,
    ChannelWelcome,
    Data,
    HealRequest,
    HealResponse,
    Join,
    Snapshot,
    Synchronisation,
)
from roamcast.channels.reliable.settings import ChannelSettings
from roamcast.errors import LimitError
from roamcast.model.addresses import Client
from roamcast.model.machine import Effect, Input, Multicast, Received, Send, earliest, step
from roamcast.model.records import Drop
from roamcast.model.wire import Message, tag_of


class Transmit(Input, frozen=True, gc=False):
    """The user's next message."""

    payload: bytes


class SnapshotTaken(Input, frozen=True, gc=False):
    """The user's state now: the answer to `SnapshotWanted`."""

    payload: bytes


class Audience(Input, frozen=True, gc=False):
    """How many receivers the user counts; it decides how they spread their requests."""

    receivers: int


class SnapshotWanted(Effect, frozen=True, gc=False):
    """A receiver is further behind than the buffer: answer with `SnapshotTaken`."""

    channel: str


class SenderState(enum.StrEnum):
    """Whether a receiver waits for a snapshot."""

    STEADY = "steady"
    GATHERING = "gathering"
    TAKING = "taking"


class SenderEvent(enum.StrEnum):
    """What moves a sender from state to state."""

    BEHIND = "a receiver is further behind than the buffer"
    GATHERED = "the gathering interval is over"
    TAKEN = "the user gave its state"


SENDER_TABLE: Final = {
    (SenderState.STEADY, SenderEvent.BEHIND): SenderState.GATHERING,
    (SenderState.GATHERING, SenderEvent.BEHIND): SenderState.GATHERING,
    (SenderState.GATHERING, SenderEvent.GATHERED): SenderState.TAKING,
    (SenderState.TAKING, SenderEvent.BEHIND): SenderState.TAKING,
    (SenderState.TAKING, SenderEvent.TAKEN): SenderState.STEADY,
}


class ChannelSender:
    """The sending end of one channel in one incarnation.

    Its two deadlines are plain fields and no timers by key: every update sets one of them.
    """

    messages: ClassVar[tuple[type[Message], ...]] = (HealRequest, Join)
    inputs: ClassVar[tuple[type[Input], ...]] = (Transmit, SnapshotTaken, Audience)

    __slots__ = (
        "_behind",
        "_behind_more",
        "_buffer",
        "_buffer_bytes",
        "_gathered_at",
        "_healed_until",
        "_position_until",
        "_quiet_us",
        "_receivers",
        "_scope",
        "_settings",
        "_shared_until",
        "_starts_empty",
        "_sync_at",
        "channel",
        "incarnation",
        "last",
        "state",
    )

    def __init__(
        self,
        channel: str,
        *,
        incarnation: int,
        now: int,
        settings: ChannelSettings,
        scope: str = "",
        starts_empty: bool = True,
    ) -> None:
        """`starts_empty`: a newcomer needs no snapshot of what was before sequence 1.

        That is so for a new channel (AMS 8, 11), and not for one whose sender restarted with a
        state from disk.
        """
        assert incarnation > 0
        self.channel = channel
        self.incarnation = incarnation
        self.last = 0
        self.state = SenderState.STEADY
        self._settings = settings
        self._scope = scope
        self._starts_empty = starts_empty
        self._receivers = settings.receivers_expected
        self._buffer: deque[bytes] = deque()
        self._buffer_bytes = 0
        self._healed_until: dict[int, int] = {}
        """Sequence → until when its last heal is on its way, and is not repeated."""
        self._behind: OrderedDict[str, None] = OrderedDict()
        self._behind_more = False
        self._gathered_at: int | None = None
        self._quiet_us = settings.sync_interval_us
        self._sync_at = now + self._quiet_us
        self._position_until = now
        self._shared_until = now

    @property
    def first(self) -> int:
        """The oldest sequence that can still be healed; after `last` while there is none."""
        return self.last - len(self._buffer) + 1

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How much is held of what, and the bound of each."""
        return {
            "buffer messages": (len(self._buffer), self._settings.buffer_messages_max),
            "buffer bytes": (self._buffer_bytes, self._settings.buffer_bytes_max),
            "heals on their way": (len(self._healed_until), self._settings.buffer_messages_max),
            "behind": (len(self._behind), self._settings.snapshot_unicasts_max),
        }

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        """Take a message to publish, a receiver's request, or the user's state."""
        match given:
            case Transmit(payload):
                return (self.publish(payload, now),)
            case Received(sender, HealRequest() | Join() as request):
                if request.channel != self.channel:
                    tag = tag_of(type(request))
                    return (Drop("another channel", tag, 0, sender, request.channel),)
                if isinstance(request, Join):
                    return self._join(sender, request, now)
                return self._heal(sender, request, now)
            case SnapshotTaken(payload):
                return self._snapshot(payload, now)
            case Audience(receivers):
                self._receivers = receivers
                return ()
        raise AssertionError(f"a channel's sender takes no {given!r}")

    def advance(self, now: int) -> Sequence[Effect]:
        """Synchronise after a quiet interval; ask for the snapshot when requests are gathered."""
        effects: list[Effect] = []
        if now >= self._sync_at:
            slowest = max(self._settings.sync_interval_us, self._settings.sync_interval_us_max)
            self._quiet_us = min(2 * self._quiet_us, slowest)
            self._sync_at = now + self._quiet_us
            effects.append(Multicast(self.channel, self._position(), self._scope))
        if self._gathered_at is not None and now >= self._gathered_at:
            self._gathered_at = None
            self.state = step(SENDER_TABLE, self.state, SenderEvent.GATHERED)
            effects.append(SnapshotWanted(self.channel))
        return effects

    def deadline(self) -> int | None:
        """The next synchronisation or the end of gathering."""
        return earliest(self._sync_at, self._gathered_at)

    def publish(self, payload: bytes, now: int) -> Multicast:
        """Take the user's next message, as `Transmit` does."""
        size = len(payload)
        if size > PAYLOAD_BYTES_MAX:
            raise LimitError(f"a payload of {size} bytes exceeds {PAYLOAD_BYTES_MAX}")
        settings, buffer = self._settings, self._buffer
        sequence = self.last = self.last + 1
        buffer.append(payload)
        held = self._buffer_bytes = self._buffer_bytes + size
        if len(buffer) > settings.buffer_messages_max or held > settings.buffer_bytes_max:
            self._discard()
        self._quiet_us = settings.sync_interval_us
        self._sync_at = now + self._quiet_us
        data = Data(self.channel, self.incarnation, sequence, payload)
        return Multicast(self.channel, data, self._scope)

    def _discard(self) -> None:
        """Discard the oldest messages until the buffer is within its bounds."""
        settings, buffer = self._settings, self._buffer
        while (
            len(buffer) > settings.buffer_messages_max
            or self._buffer_bytes > settings.buffer_bytes_max
        ):
            self._healed_until.pop(self.first, None)
            self._buffer_bytes -= len(buffer.popleft())

    def _heal(self, sender: str, request: HealRequest, now: int) -> Sequence[Effect]:
        if request.incarnation != self.incarnation:
            return (Send(Client(sender), self._position()),)
        effects: list[Effect] = []
        too_old = False
        for sequence in request.sequences:
            if sequence > self.last:  # nobody can lack what was never sent
                continue
            if sequence < self.first:
                too_old = True
                continue
            payload = self._buffer[sequence - self.first]
            heal = HealResponse(self.channel, self.incarnation, sequence, payload)
            if request.alone:
                effects.append(Send(Client(sender), heal))
            elif now >= self._healed_until.get(sequence, 0):
                self._healed_until[sequence] = now + self._settings.round_trip_us
                effects.append(Multicast(self.channel, heal, self._scope))
        if too_old and now >= self._position_until:
            # Everyone who lost it learns at once that it cannot be healed, and asks for a snapshot.
            self._position_until = now + self._settings.round_trip_us
            effects.append(Multicast(self.channel, self._position(), self._scope))
        return effects

    def _join(self, sender: str, request: Join, now: int) -> Sequence[Effect]:
        newcomer = request.incarnation == 0 and self._starts_empty
        known = newcomer or request.incarnation == self.incarnation
        if not known or not self.first <= request.sequence <= self.last + 1:
            self._note_behind(sender, now)
            return ()
        position = request.sequence
        effects: list[Effect] = [
            Send(
                Client(sender), ChannelWelcome(self.channel, self.incarnation, position, self.last)
            )
        ]
        for sequence in range(position, min(self.last, position + HEAL_SEQUENCES_MAX - 1) + 1):
            payload = self._buffer[sequence - self.first]
            heal = HealResponse(self.channel, self.incarnation, sequence, payload)
            effects.append(Send(Client(sender), heal))
        return effects

    def _note_behind(self, sender: str, now: int) -> None:
        if now < self._shared_until:  # a snapshot for everyone is on its way
            return
        self.state = step(SENDER_TABLE, self.state, SenderEvent.BEHIND)
        if self.state is SenderState.GATHERING and self._gathered_at is None:
            self._gathered_at = now + self._settings.gather_us
        if sender in self._behind:
            return
        if len(self._behind) < self._settings.snapshot_unicasts_max:
            self._behind[sender] = None
        else:  # the snapshot goes to everyone: to wait longer would only bring more requests
            self._behind_more = True
            if self.state is SenderState.GATHERING:
                self._gathered_at = now

    def _snapshot(self, payload: bytes, now: int) -> Sequence[Effect]:
        if len(payload) > SNAPSHOT_BYTES_MAX:
            raise LimitError(f"a snapshot of {len(payload)} bytes exceeds {SNAPSHOT_BYTES_MAX}")
        self.state = step(SENDER_TABLE, self.state, SenderEvent.TAKEN)
        snapshot = Snapshot(self.channel, self.incarnation, self.last, payload)
        waiting, more = list(self._behind), self._behind_more
        self._behind.clear()
        self._behind_more = False
        if more and len(payload) <= self._settings.snapshot_multicast_bytes_max:
            self._shared_until = now + self._settings.round_trip_us
            return (Multicast(self.channel, snapshot, self._scope),)
        return [Send(Client(receiver), snapshot) for receiver in waiting]

    def _position(self) -> Synchronisation:
        return Synchronisation(
            self.channel, self.incarnation, self.first, self.last, self._receivers
        )
