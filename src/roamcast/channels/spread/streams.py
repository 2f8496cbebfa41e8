"""Streams: the channels that carry the traffic of one query or one recurring set (AMS 13).

With b different limits among its listeners a stream has b+1 channels, its bands. A client with the
i-th lowest limit listens to the first i, a client without limit to all. Messages are indivisible:
the lowest band in which every listener has room takes one. What the bands below lack is held, the
latest state of each context only, and sent when there is room; every message says how much is
pending. Each client has one `Ledger` for all its streams, each view class one `Pool` of channels.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from hashlib import blake2b
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
from roamcast.model.machine import Effect
from roamcast.model.time import MICROSECONDS

TOP: Final = 1 << 62
"""The limit of the last band, which only clients without a limit listen to."""


WINDOW_STEP_US: Final = 20_000
"""How finely a window tells ages; they are rounded so that bytes count longer, not shorter."""

Window = tuple[tuple[int, int], ...]
"""Bytes of the last second: how long ago, in microseconds, and how many."""


class Ledger:
    """The bytes sent to one client with a bandwidth limit in the last second.

    0064: the guarantee is per client, so one ledger counts every byte to it, by every channel and
    by unicast, in any window of one second wherever it begins.
    """

    __slots__ = ("_assumed", "_entries", "_total", "limit_bytes", "usable_bytes")

    def __init__(self, limit_bytes: int, reserve_bytes: int) -> None:
        assert limit_bytes > reserve_bytes
        self.limit_bytes = limit_bytes
        self.usable_bytes = limit_bytes - reserve_bytes
        self._entries: deque[tuple[int, int]] = deque()
        self._total = 0
        self._assumed: tuple[int, int] | None = None
        """When, and how much, another may have sent that has not said so yet."""

    @property
    def spent_bytes(self) -> int:
        """The bytes that counted when somebody last asked for room."""
        return self._total + (0 if self._assumed is None else self._assumed[1])

    def room(self, now: int, *, control: bool = False) -> int:
        """How many bytes may leave now; what left exactly a second ago still counts."""
        entries = self._entries
        while entries and entries[0][0] < now - MICROSECONDS:
            self._total -= entries.popleft()[1]
        # Data may use seven eighths: the rest stays for synchronisation and heals, without which
        # a quiet channel beside a busy one would look dead.
        usable = self.usable_bytes if control else self.usable_bytes * 7 // 8
        if self._assumed is not None:
            if self._assumed[0] >= now - MICROSECONDS:
                return usable - self._total - self._assumed[1]
            self._assumed = None
        return usable - self._total

    def charge(self, now: int, size: int) -> None:
        """Count bytes that leave now."""
        self._entries.append((now, size))
        self._total += size

    def window(self, now: int) -> Window:
        """Give how long ago bytes left within the last second, and how many: it may travel."""
        found: list[tuple[int, int]] = []
        self.room(now)
        assumed = () if self._assumed is None else (self._assumed,)
        for at, size in sorted((*self._entries, *assumed)):
            age = max(0, now - at) // WINDOW_STEP_US * WINDOW_STEP_US
            if found and found[-1][0] == age:
                found[-1] = (age, found[-1][1] + size)
            else:
                found.append((age, size))
        return tuple(found)

    def assume_full(self, now: int) -> None:
        """Take for sent by another what may leave now, until it says or a second has passed."""
        self._assumed = None
        self._assumed = now, max(0, self.room(now, control=True))

    def adopt(self, now: int, window: Window) -> None:
        """Count what another has sent to this client, instead of what was assumed.

        What it had heard of this ledger counts twice then: never too little.
        """
        self._assumed = None
        heard = ((now - age, size) for age, size in window)
        self._entries = deque(sorted((*self._entries, *heard)))
        self._total += sum(size for _, size in window)

    def freed_at(self) -> int | None:
        """When the oldest bytes stop counting."""
        first = self._entries[0] if self._entries else self._assumed
        if first is None:
            return None
        return min(first, self._assumed or first)[0] + MICROSECONDS + 1


class Pool:
    """The channels of one view class in one epoch: a bounded number at a time, each name once.

    0069: who hears late of a channel that was given back listens to silence. It does not listen to
    another stream, whose messages no ledger would charge to it, nor to what another view class may
    see. The epoch is part of the name: when the two sides of a partition meet again, their servers
    share no channel.
    """

    def __init__(self, view_class: str, channels_max: int, epoch: int = 0, kind: str = "") -> None:
        mark = blake2b(f"{epoch}/{view_class}".encode(), digest_size=4).hexdigest()
        self.used = 0
        self.channels_max = channels_max
        self._prefix = f"map/{mark}/{kind}" if kind else f"map/{mark}"
        self._named = 0

    @property
    def free(self) -> bool:
        """Whether a channel is free."""
        return self.used < self.channels_max

    def take(self) -> str | None:
        """Give a new name, or None when all channels are in use."""
        if not self.free:
            return None
        self.used += 1
        self._named += 1
        return f"{self._prefix}/{self._named}"

    def give_back(self) -> None:
        """Count a channel as free again."""
        self.used -= 1
        assert self.used >= 0


class Listener(msgspec.Struct):
    """A client on a stream: through how many of its queries, and its ledger if it has a limit."""

    queries: int
    ledger: Ledger | None
    limit_bytes: int


class BandChannel(msgspec.Struct):
    """One channel of a stream."""

    limit_bytes: int
    sender: ChannelSender


class Stream:
    """The channels of one query or one recurring set.

    `shared` is the one channel that reaches everybody while nobody has a limit. Slots keep what an
    update needs of a stream in one place in memory: with 1,000 streams each read is a cache miss.
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
        """Count a client's query in; True if its limit needs a band of its own."""
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
        """Count a client's query out; True if a band has lost its last client."""
        listener = self.listeners[client]
        listener.queries -= 1
        if listener.queries:
            return False
        del self.listeners[client]
        if listener.ledger is None:
            return False
        del self.limited[client]
        # It may listen until the channel's last message, whose bytes then count for it, too.
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
        """Add a channel, and announce it to the listeners on the lowest band.

        If that band has no room, the announcement is returned, to be sent to each client alone.
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
        """End a channel with its last message (0062); its owner lets it rest and gives it back."""
        payload = payload_of(Parcel(self._epoch, (Last(),)))
        sent = self._offer(band, payload, now, control=True, left=self._left)
        self.bands.remove(band)
        self.version += 1
        return [] if sent is None else sent

    def announcement(self, query: int) -> Announce:
        """Announce the stream's channels and where each stands now."""
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
        """Set the channels' number of listeners, which decides how heal requests are spread."""
        for band in self.bands:
            band.sender.receive(Audience(max(1, len(self.listeners))), now)

    def place(self, state: State, now: int) -> list[Effect]:
        """Send an update where some listeners have limits, in the lowest band with room for all."""
        return self._place(state, None, now)

    def announce(self, items: Iterable[Announce], now: int) -> list[Effect] | None:
        """Send announcements to every listener, on the lowest band; None if it has no room."""
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
        band = next((band for band in self.bands if band.sender.channel == channel), None)
        if band is None:
            return not self.limited
        return self._charge(band, size, now, control=True)

    def _place(self, state: State, lacked_below: int | None, now: int) -> list[Effect]:
        """Offer a state to the bands from the lowest up.

        A new state goes to all bands, one that was held back to those whose clients lack it.
        """
        for band in self.bands:
            if lacked_below is not None and band.limit_bytes >= lacked_below:
                return []
            self._set_level(state, band.limit_bytes)
            if band.limit_bytes == TOP and len(self.limited) == len(self.listeners):
                return []  # no listener is without a limit
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
            left = self._counts[known[0]] - 1
            if left:
                self._counts[known[0]] = left
            else:  # limits come and go: levels that nothing lacks must not pile up
                del self._counts[known[0]]
        if limit_bytes <= self.bands[0].limit_bytes:
            self.lacking.pop(state.vid, None)
            return
        self.lacking[state.vid] = (limit_bytes, state)
        self._counts[limit_bytes] = self._counts.get(limit_bytes, 0) + 1

    def _pending(self, lowest: BandChannel) -> tuple[int, ...]:
        """Count for each band that hears a message on `lowest` what its clients still lack."""
        levels = self._counts.items()
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
