"""The channels that a client listens to (AMS, footnote 5).

An announcement says where to listen and from which message on: a client that learns of a channel
late asks for everything since. A channel ends by its own last message (0062). If it falls silent
before, or its sender restarts, or the client falls too far behind, what rode on it is refreshed.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from roamcast.channels.reliable.messages import (
    ChannelWelcome,
    Data,
    HealResponse,
    Snapshot,
    Synchronisation,
)
from roamcast.channels.reliable.receiver import ChannelReceiver
from roamcast.channels.server.messages import BANDS_MAX, Announce, Band
from roamcast.channels.server.settings import MapSettings
from roamcast.model.machine import Draw, Effect, Ignore, Listen, Received
from roamcast.model.records import Drop
from roamcast.model.wire import tag_of

CHANNEL_MESSAGES: Final = (Data, HealResponse, Synchronisation, ChannelWelcome, Snapshot)
"""What a client receives of channels."""


class Tuned(msgspec.Struct):
    """A channel listened to: for which stream (0: a carousel), and when it last sent something."""

    receiver: ChannelReceiver
    stream: int
    active_us: int
    start: int
    """The first message that was asked for."""


class Carried(msgspec.Struct):
    """A stream known to the client: which of its queries ride on it, and its channels."""

    version: int
    queries: set[int]
    channels: dict[str, int]
    """Channel → the limit of its band, 0 for the last."""


class Tuner:
    """The channels of one client in one session."""

    def __init__(self, settings: MapSettings, draw: Draw, limit_bytes: int) -> None:
        self.streams: dict[int, Carried] = {}
        self.channels: dict[str, Tuned] = {}
        self._settings = settings
        self._draw = draw
        self._limit = limit_bytes

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How much the receivers hold, and the bound of each."""
        held = {}
        for name, tuned in self.channels.items():
            for what, pair in tuned.receiver.occupancy().items():
                held[f"{name}: {what}"] = pair
        return held

    def link(self, announce: Announce, source: str, now: int, *, mine: bool) -> list[Effect]:
        """Listen to a stream; `mine`: the query it is announced for is one of the client's."""
        carried = self.streams.get(announce.stream)
        if carried is None:
            carried = self.streams[announce.stream] = Carried(0, set(), {})
        if mine:
            carried.queries.add(announce.query)
            self._rewind(announce, source, now)
        if announce.version < carried.version:
            return []
        later = 0 < carried.version < announce.version
        carried.version = announce.version
        effects: list[Effect] = []
        for band in announce.bands:
            if self._limit and not 0 < band.limit_bytes <= self._limit:
                continue
            # The position is that of the announced query's current set. If the channel is newer
            # than our knowledge of the stream, our other queries need all of it: its announcement
            # to them may still be on its way.
            whole = later and band.channel not in carried.channels
            carried.channels[band.channel] = band.limit_bytes
            effects += self.tune(band, announce.stream, source, now, whole=whole)
        return effects

    def tune(
        self, band: Band, stream: int, source: str, now: int, *, whole: bool = False
    ) -> list[Effect]:
        """Listen to a channel from the announced position, unless it is followed already.

        `whole`: from its first message on.
        """
        known = self.channels.get(band.channel)
        if known is not None and known.receiver.incarnation >= band.incarnation:
            return []
        self._follow(band, 1 if whole else band.next, stream, source, now)
        return [] if known is not None else [Listen(band.channel)]

    def _follow(self, band: Band, start: int, stream: int, source: str, now: int) -> None:
        receiver = ChannelReceiver(
            band.channel,
            source=source,
            now=now,
            settings=self._settings.channel,
            draw=self._draw,
            start=(band.incarnation, start),
        )
        self.channels[band.channel] = Tuned(receiver, stream, now, start)

    def _rewind(self, announce: Announce, source: str, now: int) -> None:
        """Follow channels from where a subscription needs them, if another one began them later.

        Two of our subscriptions learn of one stream by different channels, so the announcement
        with the earlier position may come last, and in an older version.
        """
        for band in announce.bands:
            known = self.channels.get(band.channel)
            if known is None or known.receiver.incarnation != band.incarnation:
                continue
            if band.next < known.start:
                self._follow(band, band.next, known.stream, source, now)

    def unlink(self, query: int) -> list[Effect]:
        """Leave the streams that only this query rode on."""
        effects: list[Effect] = []
        for number, carried in list(self.streams.items()):
            if query not in carried.queries:
                continue
            carried.queries.discard(query)
            if not carried.queries:
                for channel in list(carried.channels):
                    effects += self.drop(channel)
                self.streams.pop(number, None)
        return effects

    def band_above(self, channel: str) -> tuple[int, int]:
        """Give a channel's stream, and how many bands above it the client's own band is."""
        tuned = self.channels.get(channel)
        carried = None if tuned is None else self.streams.get(tuned.stream)
        if tuned is None or carried is None:
            return 0, BANDS_MAX
        ordered = sorted(limit for limit in carried.channels.values() if limit)
        limit = carried.channels.get(channel, 0)
        return tuned.stream, len(ordered) - 1 - ordered.index(limit) if limit else BANDS_MAX

    def drop(self, channel: str) -> list[Effect]:
        """Stop listening to a channel."""
        tuned = self.channels.pop(channel, None)
        if tuned is None:
            return []
        carried = self.streams.get(tuned.stream)
        if carried is not None:
            carried.channels.pop(channel, None)
            if not carried.channels:
                del self.streams[tuned.stream]
        return [Ignore(channel)]

    def drop_all(self) -> list[Effect]:
        """Stop listening to all channels."""
        effects: list[Effect] = [Ignore(channel) for channel in self.channels]
        self.channels.clear()
        self.streams.clear()
        return effects

    def receive(self, given: Received, now: int) -> Sequence[Effect]:
        """Take a channel's message."""
        message = given.message
        assert isinstance(message, CHANNEL_MESSAGES)
        tuned = self.channels.get(message.channel)
        if tuned is None:  # on its way when the client left the channel
            tag = tag_of(type(message))
            return (Drop("not listening", tag, 0, given.sender, message.channel),)
        tuned.active_us = now
        return tuned.receiver.receive(given, now)

    def advance(self, now: int) -> list[Effect]:
        """Ask for what is missing."""
        effects: list[Effect] = []
        for tuned in list(self.channels.values()):
            effects += tuned.receiver.advance(now)
        return effects

    def silent(self, now: int) -> list[str]:
        """Name the channels that were silent for too long; living ones synchronise."""
        patience = self._settings.linger_us
        return [
            channel for channel, tuned in self.channels.items() if tuned.active_us < now - patience
        ]

    def deadline(self) -> int | None:
        """When a receiver asks next."""
        times = (tuned.receiver.deadline() for tuned in self.channels.values())
        return min((time for time in times if time is not None), default=None)
