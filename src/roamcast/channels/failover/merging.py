"""How do two maps become one? The server of the older epoch hands its map over and ends (AMS 15).

After a partition both sides have a server. As soon as the older one hears the newer one announce
itself, it takes no more requests, sends its map page by page, and stops. The newer one keeps of
each object the newer state, whichever side it is from. An object whose publisher has not come
over yet is a guest: its publisher confirms it by registering, or it leaves when it could have.
"""

from collections.abc import Callable, Iterator, Sequence

from roamcast.channels.failover.epochs import SteppedDown, credible, genuine
from roamcast.channels.failover.messages import (
    Alive,
    HandedContext,
    HandedRemoval,
    HandOver,
    HandOverTaken,
    Probe,
    item_size,
)
from roamcast.channels.server.contexts import MapContexts
from roamcast.channels.server.desk import Desk
from roamcast.channels.server.messages import ITEMS_MAX, ServerHere
from roamcast.channels.server.removals import Removal
from roamcast.errors import InputError
from roamcast.model.addresses import Replica, Watchdog
from roamcast.model.contexts import context_of
from roamcast.model.machine import Send
from roamcast.model.parts import Timer
from roamcast.model.records import ChannelStep, Drop
from roamcast.model.wire import Message

REPLICA_MESSAGES = (ServerHere, Probe, HandOver, HandOverTaken)


class GuestDue(Timer, frozen=True):
    """A publisher has had time to confirm the contexts that were handed over."""

    owner: str


class Merging:
    """What a server has to do with others of its kind."""

    def __init__(
        self,
        desk: Desk,
        contexts: MapContexts,
        replicas: Sequence[str],
        collect: Callable[[], None],
    ) -> None:
        """`replicas`: the hosts that may serve, by seat; `collect` lets silent clients go."""
        self.leaving: HandingOver | None = None
        self.guests: dict[str, dict[str, None]] = {}
        self.is_stored: Callable[[str, str], bool] = lambda _vid, _owner: False
        """Whether this broker stores a context for an owner: it needs no confirming, and goes to
        another host with the store, not with the map."""
        self._desk = desk
        self._contexts = contexts
        self._replicas = tuple(replicas)
        self._collect = collect
        self._newest = desk.epoch
        desk.timers.handle(GuestDue, self._guest_due)

    @property
    def newest(self) -> int:
        """The newest epoch heard of, its own at least."""
        return self._newest

    def hear_of(self, epoch: int) -> None:
        """A client knows an epoch, which may be newer than ours."""
        if epoch > self._newest and credible(epoch, self._replicas, self._desk.now):
            self._newest = epoch

    def receive(self, sender: str, message: Message) -> None:
        """Take what another host says."""
        if sender not in self._replicas:
            return
        desk = self._desk
        match message:
            case ServerHere(epoch=epoch):
                if epoch > desk.epoch and genuine(epoch, sender, self._replicas, desk.now):
                    self._leave(sender, epoch)
            case Probe():
                desk.out.append(Send(Watchdog(sender), Alive(desk.epoch, self._newest)))
            case HandOver(epoch, number, items):
                if epoch < desk.epoch and self.leaving is None:
                    for item in items:
                        self._merge(item, sender)
                    desk.out.append(Send(Replica(sender), HandOverTaken(epoch, number)))
            case HandOverTaken(epoch, number) if epoch == desk.epoch and self.leaving is not None:
                self.leaving.taken(number)

    def welcome(self, owner: str) -> dict[str, None]:
        """A client registers: give its objects that were handed over, for it to confirm."""
        self._desk.timers.cancel(GuestDue(owner))
        return self.guests.pop(owner, {})

    def _guest_due(self, timer: GuestDue) -> None:
        """A client did not come: what was handed over of it and it did not confirm leaves."""
        owner = timer.owner
        client = self._desk.clients.get(owner)
        handed = self._desk.now - self._stays()  # the last that anybody knew of them
        for vid in self.guests.pop(owner):
            if self.is_stored(vid, owner):
                continue
            if client is None or vid not in client.publications:
                self._contexts.withdraw(owner, vid, ended=handed)

    def _stays(self) -> int:
        """How long a publisher has to confirm what was handed over."""
        return self._desk.settings.client_timeout_us + self._desk.settings.restart_spread_us

    def _leave(self, to: str, epoch: int) -> None:
        if self.leaving is not None and epoch <= self.leaving.newer_epoch:
            return
        self._collect()  # of a server that slept, most clients have gone elsewhere meanwhile
        self._desk.out.append(
            ChannelStep("", "stepping down", self._desk.epoch, reason=f"{to} is newer")
        )
        self.leaving = HandingOver(self._desk, to, epoch, self._everything())

    def _everything(self) -> Iterator[HandedContext | HandedRemoval]:
        """Read the map while it is sent; somebody in this process may still change it."""
        now, active_map = self._desk.now, self._contexts.map
        vids, removed = list(active_map.contexts), list(active_map.removed.items(now))
        for vid in vids:
            known = active_map.contexts.get(vid)
            if known is not None and not self.is_stored(vid, known.owner):
                yield HandedContext(known.body, known.stamp, known.owner)
        for vid, one in removed:
            yield HandedRemoval(vid, one.stamp, one.owner, now - one.since_us)

    def _merge(self, item: HandedContext | HandedRemoval, sender: str) -> None:
        """Keep the newer of two states, whichever side it is from."""
        contexts, desk = self._contexts, self._desk
        if isinstance(item, HandedRemoval):
            gone = Removal(item.stamp, item.owner, desk.now - item.age_us)
            contexts.erase(item.vid, gone)
            return
        try:
            context = context_of(item.body)
            known = contexts.map.contexts.get(context.vid)
            if known is not None and (known.stamp, known.context) == (item.stamp, context):
                return  # the same state: who published it here is nearer than who did there
            if not contexts.put_for(item.owner, context, item.body, item.stamp):
                return
            if known is not None:  # a state from before its publisher's clock was set back
                contexts.outdate(item.owner, context.vid, item.stamp)
        except InputError as error:
            desk.out.append(Drop(str(error)[:200], "map.handover", len(item.body), sender))
            return
        desk.timers.set(GuestDue(item.owner), desk.now + self._stays())
        self.guests.setdefault(item.owner, {})[context.vid] = None


class HandingOver:
    """A map on its way to another server, one page at a time, each repeated until it is taken."""

    def __init__(
        self, desk: Desk, to: str, newer_epoch: int, items: Iterator[HandedContext | HandedRemoval]
    ) -> None:
        self.newer_epoch = newer_epoch
        self.ended = False
        self._desk = desk
        self._to = to
        self._items = items
        self._ahead: HandedContext | HandedRemoval | None = None
        self._page: HandOver | None = None
        self._number = 0
        self._repeat_at = desk.now
        self._give_up_at = desk.now + desk.settings.handover_us
        self._turn()

    def deadline(self) -> int | None:
        """When to send the page again, or to give up."""
        return None if self.ended else min(self._repeat_at, self._give_up_at)

    def taken(self, number: int) -> None:
        """The other server has merged a page."""
        if number == self._number and not self.ended:
            self._turn()

    def advance(self) -> None:
        """Send the page again, or give up."""
        desk = self._desk
        if self.ended:
            return
        if desk.now >= self._give_up_at:
            self._end("nobody takes the map")
        elif desk.now >= self._repeat_at:
            self._send()

    def _turn(self) -> None:
        """Go on to the next page, or end after the last."""
        items: list[HandedContext | HandedRemoval] = []
        size = 0
        while len(items) < ITEMS_MAX:
            item = self._ahead or next(self._items, None)
            self._ahead = None
            if item is None:
                break
            size += item_size(item)
            if items and size > self._desk.settings.page_bytes_max:
                self._ahead = item
                break
            items.append(item)
        if not items:
            self._end("the map is handed over")
            return
        self._number += 1
        self._page = HandOver(self._desk.epoch, self._number, tuple(items))
        self._give_up_at = self._desk.now + self._desk.settings.handover_us
        self._send()

    def _send(self) -> None:
        assert self._page is not None
        self._repeat_at = self._desk.now + self._desk.settings.repeat_us
        self._desk.out.append(Send(Replica(self._to), self._page))

    def _end(self, reason: str) -> None:
        self.ended = True
        epoch = self._desk.epoch
        self._desk.out += [
            ChannelStep("", "stepped down", epoch, self._number, reason),
            SteppedDown(epoch),
        ]
