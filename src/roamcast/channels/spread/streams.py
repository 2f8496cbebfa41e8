"""How does one query's or set's traffic reach listeners with different limits? A stream of bands.

With b different limits among its listeners a stream has b+1 channels (AMS 13). A client with the
i-th lowest limit listens to the first i, one without limit to all. Messages are indivisible: the
lowest band in which everyone has room takes one. What the bands below lack is kept, the latest
state of each object only, and sent when there is room; every message says how much is pending.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from roamcast.channels.reliable.messages import Data
from roamcast.channels.reliable.sender import Audience, ChannelSender
from roamcast.channels.server.messages import (
    BANDS_MAX,
    Announce,
    Band,
    Last,
    Parcel,
    State,
    payload_of,
    size_of,
)
from roamcast.channels.spread.bands import Ledger
from roamcast.model.machine import Effect

TOP: Final = 1 << 62
"""The limit of the last band, which only clients without a limit hear."""


class Listener(msgspec.Struct):
    """A client on a stream: by how many of its queries, and its ledger if it has a limit."""

    queries: int
    ledger: Ledger | None
    limit_bytes: int


class BandChannel(msgspec.Struct):
    """One channel of a stream."""

    limit_bytes: int
    sender: ChannelSender


class Stream:
    """The channels of one query or one recurring set.

    `shared` is the one channel that reaches everybody while nobody has a limit. The slots keep
    what an update needs of a stream together: with a thousand of them each is read from afar.
    """

    __slots__ = (
        "_counts",
        "_epoch",
        "_left",
        "bands",
        "lacking",
        "limited",
        "listeners",
        "number",
        "queries",
        "shared",
        "version",
        "view_class",
        "wide",
    )

    def __init__(
        self,
        number: int,
        view_class: str,
        queries: Sequence[int],
        epoch: int,
        *,
        wide: bool = False,
    ) -> None:
        self.number = number
        self.view_class = view_class
        self.queries = tuple(queries)
        self.wide = wide
        self.version = 0
        self.bands: list[BandChannel] = []
        self.shared: ChannelSender | None = None
        self.listeners: dict[str, Listener] = {}
        self.limited: dict[str, Listener] = {}
        self.lacking: dict[str, tuple[int, State]] = {}
        self._counts: dict[int, int] = {}
        self._epoch = epoch
        self._left: tuple[Listener, ...] = ()

    def join(self, client: str, ledger: Ledger | None) -> bool:
        """Count a client's query in; tell whether its limit needs a band of its own."""
        listener = self.listeners.get(client)
        if listener is not None:
            listener.queries += 1
            return False
        limit = TOP if ledger is None else ledger.limit_bytes
        listener = self.listeners[client] = Listener(1, ledger, limit)
        if ledger is None:
            return False
        self.limited[client] = listener
        self.shared = None
        known = [band.limit_bytes for band in self.bands]
        return limit not in known and len(known) <= BANDS_MAX

    def leave(self, client: str) -> bool:
        """Count a client's query out; tell whether a band has lost its last client.

        It may listen until it hears of that, and the last message of a channel is for it, too.
        """
        listener = self.listeners[client]
        listener.queries -= 1
        if listener.queries:
            return False
        del self.listeners[client]
        if listener.ledger is None:
            return False
        del self.limited[client]
        self._left = (listener,)
        if not self.limited:
            self.lacking.clear()
            self._counts.clear()
            self.shared = self.bands[-1].sender
        return bool(self.idle_bands())

    def lacked_by(self, client: str) -> list[State]:
        """Give the states that a client has not been sent because of its limit."""
        listener = self.limited.get(client)
        if listener is None:
            return []
        return [state for level, state in self.lacking.values() if level > listener.limit_bytes]

    def idle_bands(self) -> list[BandChannel]:
        """Give the bands below the top whose limit no client has."""
        wanted = {listener.limit_bytes for listener in self.limited.values()}
        return [band for band in self.bands if band.limit_bytes not in wanted | {TOP}]

    def add_band(
        self, limit_bytes: int, sender: ChannelSender, now: int
    ) -> tuple[list[Effect], Announce | None]:
        """Give the stream one more channel, and tell those who listen already by the lowest band.

        When that has no room, the announcement is handed back, to be told one by one.
        """
        carrier = self.bands[0] if self.bands else None
        self.bands.append(BandChannel(limit_bytes, sender))
        self.bands.sort(key=lambda band: band.limit_bytes)
        self.version += 1
        if not self.limited:
            self.shared = self.bands[-1].sender
        if carrier is None:
            return [], None
        announce = self.announcement(self.queries[0] if self.queries else 0)
        payload = payload_of(Parcel(self._epoch, (announce,)))
        sent = self._offer(carrier, payload, now, control=True)
        return ([], announce) if sent is None else (sent, None)

    def remove_band(self, band: BandChannel, now: int) -> list[Effect]:
        """End a channel by its last message; whoever owns it lets it rest and gives it back."""
        payload = payload_of(Parcel(self._epoch, (Last(),)))
        sent = self._offer(band, payload, now, control=True, left=self._left)
        self.bands.remove(band)
        self.version += 1
        return [] if sent is None else sent

    def announcement(self, query: int) -> Announce:
        """Say where this stream stands now."""
        return Announce(
            query,
            self.number,
            self.version,
            tuple(
                Band(
                    0 if band.limit_bytes == TOP else band.limit_bytes,
                    band.sender.channel,
                    band.sender.incarnation,
                    band.sender.last + 1,
                )
                for band in self.bands
            ),
        )

    def count_audience(self, now: int) -> None:
        """Tell the channels how many listen, which decides how requests are spread."""
        for band in self.bands:
            band.sender.receive(Audience(max(1, len(self.listeners))), now)

    def place(self, state: State, now: int) -> list[Effect]:
        """Send one update where some have limits, in the lowest band with room for all of them."""
        return self._place(state, None, now)

    def tell(self, items: Iterable[Announce], now: int) -> list[Effect] | None:
        """Send announcements to everyone, on the lowest band; None while there is no room."""
        payload = payload_of(Parcel(self._epoch, tuple(items)))
        return self._offer(self.bands[0], payload, now, control=True)

    def flush(self, now: int) -> list[Effect]:
        """Send what lower bands lack, as far as there is room, the oldest first."""
        effects: list[Effect] = []
        for vid in list(self.lacking):
            level, state = self.lacking[vid]
            sent = self._place(state, level, now)
            if not sent:
                break
            effects += sent
        return effects

    def allows(self, channel: str, size: int, now: int) -> bool:
        """Charge a synchronisation or a heal to everyone who hears it, or refuse it."""
        band = next((one for one in self.bands if one.sender.channel == channel), None)
        if band is None:
            return not self.limited
        return self._charge(band, size, now, control=True)

    def _place(self, state: State, lacked_below: int | None, now: int) -> list[Effect]:
        """Offer a state to the bands from the lowest: a new one to all, a lacked one to those
        whose clients lack it."""
        for band in self.bands:
            if lacked_below is not None and band.limit_bytes >= lacked_below:
                return []
            self._set_level(state, band.limit_bytes)
            if band.limit_bytes == TOP and len(self.limited) == len(self.listeners):
                return []  # nobody without a limit is there to hear it
            payload = payload_of(Parcel(self._epoch, (state,), self._pending(band)))
            sent = self._offer(band, payload, now)
            if sent is not None:
                return sent
            self._set_level(state, TOP if lacked_below is None else lacked_below)
        return []

    def _set_level(self, state: State, limit_bytes: int) -> None:
        """Note that clients with a limit below this one lack the state."""
        known = self.lacking.get(state.vid)
        if known is not None:
            self._counts[known[0]] -= 1
        if limit_bytes <= self.bands[0].limit_bytes:
            self.lacking.pop(state.vid, None)
            return
        self.lacking[state.vid] = (limit_bytes, state)
        self._counts[limit_bytes] = self._counts.get(limit_bytes, 0) + 1

    def _pending(self, lowest: BandChannel) -> tuple[int, ...]:
        """Count for each band that hears a message on `lowest` what its clients still lack."""
        levels = [(level, count) for level, count in self._counts.items() if count]
        return tuple(
            sum([count for level, count in levels if level > band.limit_bytes])
            for band in self.bands
            if lowest.limit_bytes <= band.limit_bytes < TOP
        )

    def _offer(
        self,
        band: BandChannel,
        payload: bytes,
        now: int,
        *,
        control: bool = False,
        left: Sequence[Listener] = (),
    ) -> list[Effect] | None:
        sender = band.sender
        data = Data(sender.channel, sender.incarnation, sender.last + 1, payload)
        if (self.limited or left) and not self._charge(
            band, size_of(data), now, control=control, left=left
        ):
            return None
        return [sender.publish(payload, now)]

    def _charge(
        self,
        band: BandChannel,
        size: int,
        now: int,
        *,
        control: bool,
        left: Sequence[Listener] = (),
    ) -> bool:
        """Count bytes to everyone with a limit who hears this band, if all of them have room."""
        ledgers = [
            listener.ledger
            for listener in (*self.limited.values(), *left)
            if listener.limit_bytes >= band.limit_bytes and listener.ledger is not None
        ]
        if any(ledger.room(now, control=control) < size for ledger in ledgers):
            return False
        for ledger in ledgers:
            ledger.charge(now, size)
        return True
