"""The receiving end of a reliable channel: the sender's exact sequence, or the news that it is not.

It delivers sequence numbers in turn, holds messages that came early, and asks for missing ones
after a drawn back-off (`backoff.py`), each with a timer of its own. What can no longer be healed,
because the sender restarted or its buffer went on, is replaced by a snapshot. The user learns of it
twice: when the state becomes stale, and when the snapshot replaces it.
"""

import enum
from collections.abc import Sequence
from typing import ClassVar, Final

from roamcast.channels.reliable.backoff import backoff_us
from roamcast.channels.reliable.messages import (
    HEAL_SEQUENCES_MAX,
    ChannelWelcome,
    Data,
    HealRequest,
    HealResponse,
    Join,
    Snapshot,
    Synchronisation,
)
from roamcast.channels.reliable.settings import ChannelSettings
from roamcast.model.addresses import Server
from roamcast.model.machine import Draw, Effect, Input, Received, Send, step
from roamcast.model.records import Drop
from roamcast.model.wire import Message, tag_of


class Delivered(Effect, frozen=True, gc=False):
    """The next message of the sequence; within an incarnation none is left out or repeated."""

    channel: str
    incarnation: int
    sequence: int
    payload: bytes


class Stale(Effect, frozen=True, gc=False):
    """The user's state is not current and cannot be healed; the receiver asks for a snapshot."""

    channel: str
    reason: str


class Replaced(Effect, frozen=True, gc=False):
    """A state that includes everything up to the sequence, in place of what was delivered."""

    channel: str
    incarnation: int
    sequence: int
    payload: bytes
    reason: str


class ReceiverState(enum.StrEnum):
    """Whether a receiver has a position in the sequence, and misses something before it."""

    JOINING = "joining"
    FOLLOWING = "following"
    HEALING = "healing"
    BEHIND = "behind"


class ReceiverEvent(enum.StrEnum):
    """What moves a receiver from state to state."""

    GAP = "something before the newest known message is missing"
    WHOLE = "everything known of is delivered"
    LOST = "what is missing cannot be healed any more"
    RESTARTED = "the sender lives in a newer incarnation"
    WELCOMED = "the sender named the position to start from"
    REPLACED = "a snapshot arrived"


_S, _E = ReceiverState, ReceiverEvent
RECEIVER_TABLE: Final = {
    (_S.JOINING, _E.WELCOMED): _S.HEALING,
    (_S.JOINING, _E.REPLACED): _S.HEALING,
    (_S.FOLLOWING, _E.GAP): _S.HEALING,
    (_S.FOLLOWING, _E.WHOLE): _S.FOLLOWING,
    (_S.FOLLOWING, _E.LOST): _S.BEHIND,
    (_S.FOLLOWING, _E.RESTARTED): _S.BEHIND,
    (_S.HEALING, _E.GAP): _S.HEALING,
    (_S.HEALING, _E.WHOLE): _S.FOLLOWING,
    (_S.HEALING, _E.LOST): _S.BEHIND,
    (_S.HEALING, _E.RESTARTED): _S.BEHIND,
    (_S.BEHIND, _E.RESTARTED): _S.BEHIND,
    (_S.BEHIND, _E.WELCOMED): _S.HEALING,
    (_S.BEHIND, _E.REPLACED): _S.HEALING,
}
_WITH_POSITION: Final = (_S.FOLLOWING, _S.HEALING)


class ChannelReceiver:
    """The receiving end of one channel."""

    messages: ClassVar[tuple[type[Message], ...]] = (
        Data,
        HealResponse,
        Synchronisation,
        ChannelWelcome,
        Snapshot,
    )
    inputs: ClassVar[tuple[type[Input], ...]] = ()

    def __init__(
        self,
        channel: str,
        *,
        source: str,
        now: int,
        settings: ChannelSettings,
        draw: Draw,
        start: tuple[int, int] | None = None,
    ) -> None:
        """`start` is the (incarnation, next sequence) of the channel's announcement.

        Without it the receiver asks for everything already sent (AMS, footnote 5).
        """
        self.channel = channel
        self.incarnation, self.expected = start or (0, 1)
        self.state = ReceiverState.FOLLOWING if start else ReceiverState.JOINING
        self.requests = 0
        self._source = source
        self._settings = settings
        self._draw = draw
        self._receivers = settings.receivers_expected
        self._incarnation_newest = self.incarnation
        """Ahead of `incarnation` while this receiver is behind."""
        self._newest = self.expected - 1
        """The highest sequence known to exist."""
        self._noticed = self.expected - 1
        """Up to here every missing sequence has a timer."""
        self._ahead: dict[int, bytes] = {}
        self._ahead_bytes = 0
        self._missing: dict[int, int] = {}
        """Sequence → when to ask for it."""
        self._alone_until = 0
        self._attempts = 0
        self._reason = "joined"
        self._due: int | None = None if start else now

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How much is held of what, and the bound of each."""
        return {
            "ahead messages": (len(self._ahead), self._settings.ahead_messages_max),
            "ahead bytes": (self._ahead_bytes, self._settings.ahead_bytes_max),
            "missing": (len(self._missing), self._settings.ahead_messages_max),
        }

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        """Take a message of the sender."""
        assert isinstance(given, Received), f"a channel's receiver takes no {given!r}"
        message = given.message
        assert isinstance(
            message, Data | HealResponse | Synchronisation | ChannelWelcome | Snapshot
        ), f"a channel's receiver takes no {message!r}"
        if message.channel != self.channel:
            tag = tag_of(type(message))
            return (Drop("another channel", tag, 0, given.sender, message.channel),)
        if message.incarnation < self._incarnation_newest:  # sequences of two lives never mix
            return ()
        effects: list[Effect] = []
        if message.incarnation > self._incarnation_newest:
            self._restarted(message.incarnation, given.sender, now, effects)
        if isinstance(message, Data | HealResponse):
            self._take(message, now, effects)
        elif isinstance(message, Synchronisation):
            self._synchronise(message, now, effects)
        elif isinstance(message, ChannelWelcome):
            self._welcome(message, now, effects)
        else:
            self._replace(message, now, effects)
        return effects

    def advance(self, now: int) -> Sequence[Effect]:
        """Ask for what is due: to join, or for missing messages."""
        if self._due is None or now < self._due:
            return ()
        if self.state in _WITH_POSITION:
            return self._ask(now)
        self.requests += 1
        self._due = now + self._patience()
        return (Send(Server(self._source), Join(self.channel, self.incarnation, self.expected)),)

    def deadline(self) -> int | None:
        """When to ask next; it may come too early where a gap has closed meanwhile."""
        return self._due

    def _take(self, message: Data | HealResponse, now: int, effects: list[Effect]) -> None:
        sequence = message.sequence
        if self.state in _WITH_POSITION and sequence == self.expected:
            self._newest = max(self._newest, sequence)
            self._deliver(message.payload, effects)
            if self._newest >= self.expected or self.state is _S.HEALING:
                self._settle(now)
            return
        if self.state in _WITH_POSITION and sequence < self.expected:
            return
        self._hold(sequence, message.payload)
        if sequence > self._newest:
            self._newest = sequence
        if self.state in _WITH_POSITION:
            self._settle(now)

    def _hold(self, sequence: int, payload: bytes) -> None:
        """Hold a message that came early if there is room; else it is healed later."""
        settings = self._settings
        if sequence in self._ahead:
            return
        near = self.state not in _WITH_POSITION or sequence < self._window_end()
        fits = self._ahead_bytes + len(payload) <= settings.ahead_bytes_max
        if near and fits and len(self._ahead) < settings.ahead_messages_max:
            self._ahead[sequence] = payload
            self._ahead_bytes += len(payload)
            self._missing.pop(sequence, None)

    def _window_end(self) -> int:
        return self.expected + self._settings.ahead_messages_max

    def _deliver(self, payload: bytes, effects: list[Effect]) -> None:
        """Deliver the expected message and whatever already waits behind it."""
        following: bytes | None = payload
        while following is not None:
            effects.append(Delivered(self.channel, self.incarnation, self.expected, following))
            self._missing.pop(self.expected, None)
            self.expected += 1
            following = self._ahead.pop(self.expected, None)
            if following is not None:
                self._ahead_bytes -= len(following)
        self._attempts = 0

    def _settle(self, now: int) -> None:
        """Be healing exactly while something known of is missing, and give new gaps a timer."""
        if self._newest < self.expected:
            self.state = step(RECEIVER_TABLE, self.state, ReceiverEvent.WHOLE)
            self._missing.clear()
            self._noticed = self.expected - 1
            self._due = None
            return
        self.state = step(RECEIVER_TABLE, self.state, ReceiverEvent.GAP)
        first = max(self._noticed + 1, self.expected)
        last = min(self._newest, self._window_end() - 1)
        if last >= first:
            self._notice(first, last, now)
            self._noticed = last

    def _notice(self, first: int, last: int, now: int) -> None:
        """Set the timers of what is missing from first to last: one draw for one gap."""
        settings = self._settings
        ask_at = now + backoff_us(self._draw, settings.backoff_interval_us, self._receivers)
        fresh = [number for number in range(first, last + 1) if number not in self._ahead]
        for sequence in fresh:
            self._missing[sequence] = ask_at
        if fresh:
            self._due = ask_at if self._due is None else min(self._due, ask_at)

    def _ask(self, now: int) -> Sequence[Effect]:
        """Request the missing messages whose time has come, the oldest first."""
        due = sorted(sequence for sequence, at in self._missing.items() if at <= now)
        effects: list[Effect] = []
        asked = due[:HEAL_SEQUENCES_MAX]
        if asked:
            self.requests += 1
            again = now + self._patience()
            for sequence in asked:
                self._missing[sequence] = again
            for alone in (True, False):
                part = tuple(s for s in asked if (s <= self._alone_until) is alone)
                if part:
                    request = HealRequest(self.channel, self.incarnation, part, alone)
                    effects.append(Send(Server(self._source), request))
        soonest = min(self._missing.values(), default=None)
        self._due = None if soonest is None else max(soonest, now + 1)
        return effects

    def _patience(self) -> int:
        """Wait for an answer, twice as long after every request that brought none."""
        settings = self._settings
        slower = min(settings.backoff_interval_us << min(self._attempts, 16), settings.retry_us_max)
        self._attempts += 1
        return settings.round_trip_us + backoff_us(self._draw, slower, self._receivers)

    def _synchronise(self, message: Synchronisation, now: int, effects: list[Effect]) -> None:
        self._receivers = max(message.receivers, 1)
        self._newest = max(self._newest, message.last)
        if self.state not in _WITH_POSITION:
            return
        if message.first > self.expected:
            self._fall_behind(ReceiverEvent.LOST, "fell behind", now, effects)
        else:
            self._settle(now)

    def _restarted(self, incarnation: int, source: str, now: int, effects: list[Effect]) -> None:
        """Follow the sender into its next incarnation: nothing of the last one counts."""
        self._incarnation_newest = incarnation
        self._source = source
        self._newest = 0
        self._alone_until = 0
        self._ahead.clear()
        self._ahead_bytes = 0
        if self.state is not ReceiverState.JOINING:
            self._fall_behind(ReceiverEvent.RESTARTED, "sender restarted", now, effects)

    def _fall_behind(
        self, event: ReceiverEvent, reason: str, now: int, effects: list[Effect]
    ) -> None:
        """Ask for a snapshot after a back-off: when the sender restarts, everybody needs it."""
        self.state = step(RECEIVER_TABLE, self.state, event)
        self._reason = reason
        self._missing.clear()
        self._attempts = 0
        spread = self._settings.backoff_interval_us
        self._due = now + backoff_us(self._draw, spread, self._receivers)
        effects.append(Stale(self.channel, reason))

    def _welcome(self, message: ChannelWelcome, now: int, effects: list[Effect]) -> None:
        if self.state in _WITH_POSITION or message.sequence != self.expected:
            return
        if self.incarnation not in (0, message.incarnation):
            return  # the answer to a join that is no longer current
        self.state = step(RECEIVER_TABLE, self.state, ReceiverEvent.WELCOMED)
        self._alone_until = message.last
        self._newest = max(self._newest, message.last)
        self._resume(message.incarnation, message.sequence, now, effects)

    def _replace(self, message: Snapshot, now: int, effects: list[Effect]) -> None:
        """Take a snapshot only while nothing can be healed, and never an older state."""
        older = message.incarnation == self.incarnation and message.sequence < self.expected - 1
        if self.state in _WITH_POSITION or older:
            return
        self.state = step(RECEIVER_TABLE, self.state, ReceiverEvent.REPLACED)
        effects.append(
            Replaced(
                self.channel,
                message.incarnation,
                message.sequence,
                message.payload,
                self._reason,
            )
        )
        self._newest = max(self._newest, message.sequence)
        self._resume(message.incarnation, message.sequence + 1, now, effects)

    def _resume(self, incarnation: int, expected: int, now: int, effects: list[Effect]) -> None:
        """Go on from a position: drop older messages, deliver those that wait, heal the rest."""
        self.incarnation = incarnation
        self.expected = expected
        self._noticed = expected - 1
        self._attempts = 0
        self._due = None
        for sequence in [s for s in self._ahead if not expected <= s < self._window_end()]:
            self._ahead_bytes -= len(self._ahead.pop(sequence))
        waiting = self._ahead.pop(expected, None)
        if waiting is not None:
            self._ahead_bytes -= len(waiting)
            self._deliver(waiting, effects)
        self._settle(now)
