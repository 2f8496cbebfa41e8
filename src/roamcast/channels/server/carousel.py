"""How do a thousand newcomers get a current set of a hundred thousand? It is carried round once.

n newcomers times n present is the trap of a large meeting. A current set too large for an answer
goes round on a channel of its own, page by page in the order of vids, at a bounded pace, while
somebody needs it: whoever has heard all vids from where it came in has the whole set, because
what changes meanwhile comes by the query's own channel as always. What enters while a cycle goes on
is taken in where it belongs: a client that comes later hears of it by no other way.
"""

from bisect import bisect_left
from collections.abc import Callable

from roamcast.channels.reliable.sender import ChannelSender
from roamcast.channels.server.desk import Desk
from roamcast.channels.server.messages import Band, Last, Page, Parcel, State, payload_of
from roamcast.channels.server.queries import QueryRecord
from roamcast.channels.server.view_class import ViewClass
from roamcast.model.machine import Effect

States = Callable[[ViewClass, QueryRecord, str], State | None]
"""The present state of an object if it satisfies the query: (view class, query, vid)."""


class Carousel:
    """One query's current set, going round."""

    def __init__(self, view: ViewClass, record: QueryRecord, sender: ChannelSender) -> None:
        self.view = view
        self.record = record
        self.sender = sender
        self.cycle = 0
        self.riders: dict[str, int] = {}
        self.bytes = 0
        self._vids: list[str] = []
        self._at = 0
        self._low = ""
        record.fresh = []

    def ride(self, client: str) -> Band:
        """Let a client on; it has everything at the latest when the next cycle ends."""
        self.riders[client] = self.cycle
        return Band(0, self.sender.channel, self.sender.incarnation, self.sender.last + 1)

    def turn(self, desk: Desk, candidates: Callable[[], list[str]], states: States) -> int | None:
        """Send the next page; give how long to wait for the one after, None at the end."""
        if self._at >= len(self._vids) and self._low == "":
            self.cycle += 1
            self._vids = sorted(candidates())
            self._at = 0
        else:
            self._take_in()
        self.record.fresh = []
        page: list[State] = []
        size = 0
        while self._at < len(self._vids) and size < desk.settings.page_bytes_max:
            state = states(self.view, self.record, self._vids[self._at])
            self._at += 1
            if state is not None:
                page.append(state)
                size += len(state.body) + len(state.vid) + 16
        ends = self._at >= len(self._vids)
        high = "" if ends else self._vids[self._at - 1]
        parcel = Parcel(
            desk.epoch,
            (Page(self.record.number, desk.number, self._low, high, tuple(page)),),
        )
        self._low = high
        payload = payload_of(parcel)
        self.bytes += len(payload)
        desk.out.append(self.sender.publish(payload, desk.now))
        if ends:
            self.riders = {
                name: cycle for name, cycle in self.riders.items() if cycle >= self.cycle
            }
            if not self.riders:
                return None
        return max(1_000, len(payload) * 1_000_000 // desk.settings.carousel_bytes_per_s)

    def _take_in(self) -> None:
        """Sort what entered since the last page into what is still to come of this cycle."""
        for vid in self.record.fresh or ():
            if vid > self._low:
                at = bisect_left(self._vids, vid, self._at)
                if at == len(self._vids) or self._vids[at] != vid:
                    self._vids.insert(at, vid)

    def end(self, desk: Desk) -> list[Effect]:
        """Give the channel's last message."""
        self.record.fresh = None
        payload = payload_of(Parcel(desk.epoch, (Last(),)))
        return [self.sender.publish(payload, desk.now)]
