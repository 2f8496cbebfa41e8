"""Replication of the broker's store: what is acknowledged is on every current follower's disk.

It is the broker's `disk` part: the other parts' writes pass through it. A write goes to the local
disk first, then to every follower, and is answered when all followers that count have it
(decision 0078). One batch of writes is on its way at a time; what parts write meanwhile is the next
batch, so that a sync here, a message and a sync there are shared (decision 0430).

A host that stands by asks to follow; it gets the whole store in pages and every change meanwhile,
and counts as current once both are on its disk. One that does not confirm in time is dropped, and
asks again.

When a server of a newer epoch is heard, this one steps down: it takes no more writes, waits for
those on their way, offers its whole store to the newer one, and only then lets the map be handed
over, so that no context arrives before its rules (decision 0079).

Every message is repeated until it is confirmed and may arrive twice: entries are ranked, so the
order does not matter. At most one message is on its way to each follower; what is written meanwhile
waits and leaves together, one entry for each key.
"""

import enum
from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from roamcast.channels.failover.epochs import genuine
from roamcast.channels.failover.replica_messages import (
    PAGE_BYTES_MAX,
    Follow,
    FollowerAck,
    OfferTaken,
    StoreChanges,
    StoreOffer,
    StorePage,
    pages,
)
from roamcast.channels.server.messages import ServerHere
from roamcast.model.addresses import Address, Replica, Watchdog
from roamcast.model.machine import (
    ENTRY_BYTES,
    KEY,
    VALUE_BYTES_MAX,
    Effect,
    Entry,
    Input,
    Merge,
    Merged,
    PageRead,
    ReadPage,
    Received,
    Send,
    Store,
    Stored,
    StoreFailed,
    Writes,
    step,
)
from roamcast.model.parts import (
    Adopt,
    Forward,
    Occupancy,
    Part,
    StoreAnswer,
    StoreRequest,
    Timers,
)
from roamcast.model.records import ChannelStep
from roamcast.model.wire import Message

STEPPING_DOWN: Final = "this host hands over to another: ask again in a moment"


class ReplicationSettings(msgspec.Struct, frozen=True):
    """Intervals in microseconds."""

    follow_us: int = 5_000_000
    """A current follower that confirms nothing for this long is dropped."""
    copy_us: int = 60_000_000
    """Patience with a follower that still copies."""
    repeat_us: int = 1_000_000
    """Interval after which an unconfirmed message is sent again."""
    hand_over_us: int = 10_000_000
    """A newer server that confirms nothing for this long is not waited for."""
    behind_max: int = 100_000
    """Maximum entries that wait for one follower; beyond it the follower is dropped."""
    requests_max: int = 200_000
    """Maximum writes that wait for disks at once."""


class ReplicaGone(Input, frozen=True):
    """The connection to a part of another host is over."""

    address: Address


class DropReplica(Effect, frozen=True):
    """End the connection to a part of another host; it connects again."""

    address: Address
    reason: str


class ServerState(enum.StrEnum):
    """What the server does with writes."""

    SERVING = "writes are taken"
    DRAINING = "a newer server was heard; writes on their way are awaited"
    OFFERING = "the store is being offered to the newer server"
    HANDED = "the newer server has the store"


class ServerEvent(enum.StrEnum):
    """What moves a server from state to state."""

    NEWER = "a newer server was heard"
    DRAINED = "no write is on its way any more"
    TAKEN = "the newer server has the whole store"
    LOST = "the newer server is not heard any more"


_STATE, _EVENT = ServerState, ServerEvent

REPLICATION_TABLE: Final = {
    (_STATE.SERVING, _EVENT.NEWER): _STATE.DRAINING,
    (_STATE.DRAINING, _EVENT.DRAINED): _STATE.OFFERING,
    (_STATE.DRAINING, _EVENT.LOST): _STATE.SERVING,
    (_STATE.OFFERING, _EVENT.TAKEN): _STATE.HANDED,
    (_STATE.OFFERING, _EVENT.LOST): _STATE.SERVING,
    (_STATE.HANDED, _EVENT.NEWER): _STATE.DRAINING,
}


BATCH_WRITES: Final = 128
"""Those who wait for a batch are answered at once, and all others wait for that."""
BATCH_BYTES: Final = 4 * 1024 * 1024
"""Of what has gathered, so much goes to the disk together, and one write more."""


class WriteRequest(msgspec.Struct, frozen=True):
    """A part's write."""

    part: str
    token: int
    writes: Writes

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        size = 0
        for key, value in self.writes:
            size += len(key) + len(value or b"") + ENTRY_BYTES
        return size


class WriteBatch(msgspec.Struct):
    """Writes on their way together: whose they are, and from which change on they are safe."""

    token: int
    requests: list[WriteRequest]
    entries: tuple[Entry, ...]
    change: int = 0
    """Its place in the order of changes once it is on the local disk; 0 until then."""

    @property
    def writes(self) -> Writes:
        """What goes to the local disk."""
        return tuple([(entry.key, entry.value) for entry in self.entries])


class WriteBatches:
    """All writes that are not answered."""

    def __init__(self) -> None:
        self.under_way: WriteBatch | None = None
        self._gathered: deque[WriteRequest] = deque()

    def __len__(self) -> int:
        return len(self._gathered) + (self.under_way is not None and len(self.under_way.requests))

    def add(self, request: WriteRequest) -> None:
        """Take a write into the next batch."""
        self._gathered.append(request)

    @property
    def is_due(self) -> bool:
        """Whether a batch can begin."""
        return bool(self._gathered) and self.under_way is None

    def begin(self, token: int, stamp: int) -> WriteBatch:
        """Begin the next batch; of several writes to a key the latest counts."""
        assert self.is_due
        requests: list[WriteRequest] = []
        writes: dict[str, bytes | None] = {}
        size = 0
        while self._gathered and size < BATCH_BYTES and len(writes) < BATCH_WRITES:
            request = self._gathered.popleft()
            requests.append(request)
            writes.update(request.writes)
            size += request.size
        entries = tuple([Entry(key, value, stamp) for key, value in writes.items()])
        self.under_way = WriteBatch(token, requests, entries)
        return self.under_way

    def end(self) -> list[WriteRequest]:
        """End the batch that is under way; give those whose it was."""
        assert self.under_way is not None
        requests, self.under_way = self.under_way.requests, None
        return requests


class _Follower(msgspec.Struct):
    """A host that copies the store."""

    host: str
    copied_to: str | None = ""
    """The last key of the copy; None when the copy is complete."""
    backlog: dict[str, Entry] = {}
    """Changes that wait for the message on its way."""
    in_flight: StorePage | StoreChanges | None = None
    reading: bool = False
    covers: int = 0
    """The last change that is on its disk once the message on its way is confirmed."""
    confirmed: int = 0
    awaited: bool = False
    """Whether writes are answered only when it has them: from the end of its copy on."""
    awaited_from: int = 0
    current: bool = False
    give_up_at: int = 0


class _Offer(msgspec.Struct):
    """The store on its way to a newer server."""

    host: str
    here: Received
    epoch: int
    after: str = ""
    in_flight: StoreOffer | None = None
    give_up_at: int = 0


class _FollowerTimer(msgspec.Struct, frozen=True):
    host: str


class _OfferTimer(msgspec.Struct, frozen=True):
    pass


class Replication(Part):
    """The disk part of a broker."""

    part: ClassVar[str] = "replication"
    messages: ClassVar = (ServerHere, Follow, FollowerAck, StoreOffer, OfferTaken)
    inputs: ClassVar = (ReplicaGone,)

    def __init__(
        self,
        name: str,
        *,
        epoch: int,
        replicas: Sequence[str],
        stamp: int,
        settings: ReplicationSettings,
    ) -> None:
        """`replicas`: the hosts that may serve, by seat; `stamp`: the newest on this disk."""
        self.host = name
        self.state = ServerState.SERVING
        self._epoch = epoch
        self._replicas = tuple(replicas)
        self._settings = settings
        self._stamp = stamp
        self._token = 0
        self._number = 0
        self._offered = 0
        self._change = 0
        self._followers: dict[str, _Follower] = {}
        self._batches = WriteBatches()
        self._pages: dict[int, str] = {}
        """Tokens of pages that are read for followers."""
        self._offers: dict[int, tuple[Address, int]] = {}
        """Tokens of merges → who offered them, and under which number."""
        self._offer: _Offer | None = None
        self._offer_token = 0
        self.timers: Timers[_FollowerTimer | _OfferTimer] = Timers()
        self._out: list[Effect] = []

    def stamp(self, now: int) -> int:
        """Give a stamp later than every one seen here, which no write of this host has had."""
        self._stamp = max(self._stamp + 1, now)
        return self._stamp

    @property
    def current(self) -> int:
        """How many followers have everything that was acknowledged."""
        return sum(follower.current for follower in self._followers.values())

    @property
    def behind(self) -> int:
        """How many entries wait for followers, over all of them."""
        return sum(len(follower.backlog) for follower in self._followers.values())

    def occupancy(self) -> Occupancy:
        """How much waits, and the bound of each."""
        behind = max((len(one.backlog) for one in self._followers.values()), default=0)
        return {
            "followers": (len(self._followers), len(self._replicas)),
            "backlog of a follower": (behind, self._settings.behind_max),
            "writes": (len(self._batches), self._settings.requests_max),
        }

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a part's write, the disk's answer, or what another host says."""
        match given:
            case StoreRequest(part, effect):
                self._store(part, effect, now)
            case Stored(token):
                self._stored(token, now)
            case StoreFailed(token, reason):
                self._failed(token, reason, now)
            case Merged(token, newer):
                self._merged(token, newer, now)
            case PageRead(token, entries):
                self._page_read(token, entries, now)
            case ReplicaGone(address):
                self._gone(address, now)
            case Received(sender, message):
                self._message(given, sender, message, now)
            case _:
                raise AssertionError(f"replication takes no {type(given).__name__}")
        return self._done()

    def advance(self, now: int) -> Sequence[Effect]:
        """Repeat what is not confirmed, and give up on those who do not answer."""
        for timer in self.timers.due(now):
            if isinstance(timer, _OfferTimer):
                self._repeat_offer(now)
            else:
                self._repeat(timer.host, now)
        return self._done()

    def _done(self) -> list[Effect]:
        out, self._out = self._out, []
        return out

    def _step(self, event: ServerEvent) -> None:
        self.state = step(REPLICATION_TABLE, self.state, event)

    # --- writes of this broker ---------------------------------------------------------------

    def _store(self, part: str, effect: Store, now: int) -> None:
        if self.state is not ServerState.SERVING:
            self._answer(part, StoreFailed(effect.token, STEPPING_DOWN))
            return
        for key, value in effect.writes:
            # Before others share its batch: one that no disk takes would hold all of them up.
            assert KEY.fullmatch(key)
            if value is not None and len(value) > VALUE_BYTES_MAX:
                reason = f"what is stored exceeds the limit of {VALUE_BYTES_MAX} bytes"
                self._answer(part, StoreFailed(effect.token, reason))
                return
        if len(self._batches) >= self._settings.requests_max:
            self._answer(part, StoreFailed(effect.token, "too many writes wait for the disk"))
            return
        self._batches.add(WriteRequest(part, effect.token, effect.writes))
        self._write(now)

    def _write(self, now: int) -> None:
        """Write what has gathered, unless something before it is not yet safe."""
        if self._batches.is_due:
            self._token += 1
            # Stamps order the copies of a key on all hosts. What names its keys by stamps took them
            # before this, so that the newest stamp on a disk is later than all of its keys.
            stamp = self.stamp(now)
            batch = self._batches.begin(self._token, stamp)
            self._out.append(Store(batch.token, batch.writes, stamp))

    def _stored(self, token: int, now: int) -> None:
        batch = self._batches.under_way
        assert batch is not None
        assert batch.token == token
        self._spread(batch.entries, now)
        batch.change = self._change
        self._release(now)

    def _failed(self, token: int, reason: str, now: int) -> None:
        batch = self._batches.under_way
        if batch is not None and batch.token == token:
            for request in self._batches.end():
                self._answer(request.part, StoreFailed(request.token, reason))
            self._release(now)
        elif token in self._pages:
            follower = self._followers.get(self._pages.pop(token))
            if follower is not None:
                follower.reading = False  # its timer tries again
        elif token == self._offer_token:
            self._offer_token = 0
        else:
            self._offers.pop(token, None)  # whoever offered it repeats it

    def _answer(self, part: str, answer: Stored | StoreFailed) -> None:
        if answer.token:  # nobody waits for the writes with token 0
            self._out.append(StoreAnswer(part, answer))

    def _spread(self, entries: Sequence[Entry], now: int) -> None:
        """Send what is on the local disk to every follower."""
        self._change += 1
        for follower in [*self._followers.values()]:
            for entry in entries:
                known = follower.backlog.get(entry.key)
                if known is None or entry.rank > known.rank:
                    follower.backlog[entry.key] = entry
            if len(follower.backlog) > self._settings.behind_max:
                self._drop(follower, "too far behind", now)
            else:
                self._pump(follower, now)

    def _release(self, now: int) -> None:
        """Answer writes that every follower that counts has, and let the next ones go."""
        awaited = [follower.confirmed for follower in self._followers.values() if follower.awaited]
        safe = min(awaited, default=self._change)
        batch = self._batches.under_way
        if batch is not None and 0 < batch.change <= safe:
            for request in self._batches.end():
                self._answer(request.part, Stored(request.token))
        self._write(now)
        if self.state is ServerState.DRAINING and not self._batches:
            self._step(ServerEvent.DRAINED)
            self._read_offer(now)

    # --- followers ---------------------------------------------------------------------------

    def _message(self, given: Received, sender: str, message: Message, now: int) -> None:
        if sender not in self._replicas or sender == self.host:
            return
        match message:
            case Follow(epoch):
                if epoch == self._epoch and sender not in self._followers:
                    follower = self._followers[sender] = _Follower(sender)
                    self._pump(follower, now)
            case FollowerAck(epoch, number):
                if epoch == self._epoch:
                    self._confirmed(sender, number, now)
            case StoreOffer(number, entries, serving):
                self._token += 1
                address = Replica(sender) if serving else Watchdog(sender)
                self._offers[self._token] = address, number
                self._out.append(Merge(self._token, entries))
            case OfferTaken(number):
                self._offer_taken(sender, number, now)
            case ServerHere(epoch=epoch):
                self._newer(given, sender, epoch, now)

    def _pump(self, follower: _Follower, now: int) -> None:
        """Send the next message to a follower that waits for none: changes, else a page."""
        if follower.in_flight is not None or follower.reading:
            return
        if follower.backlog:
            page = pages([*follower.backlog.values()])[0]
            for entry in page:
                del follower.backlog[entry.key]
            covers = self._change if not follower.backlog else follower.confirmed
            self._dispatch(follower, StoreChanges(self._epoch, self._next(), page), covers, now)
        elif follower.copied_to is not None:
            self._token += 1
            self._pages[self._token] = follower.host
            follower.reading = True
            self.timers.set(_FollowerTimer(follower.host), now + self._settings.repeat_us)
            self._out.append(ReadPage(self._token, follower.copied_to, bytes_max=PAGE_BYTES_MAX))

    def _next(self) -> int:
        # Never used again in this epoch, so that a late confirmation fits nothing else.
        self._number += 1
        return self._number

    def _dispatch(
        self, follower: _Follower, message: StorePage | StoreChanges, covers: int, now: int
    ) -> None:
        settings = self._settings
        follower.in_flight, follower.covers = message, covers
        patience = settings.follow_us if follower.awaited else settings.copy_us
        follower.give_up_at = now + patience
        self.timers.set(_FollowerTimer(follower.host), now + settings.repeat_us)
        self._out.append(Send(Watchdog(follower.host), message))

    def _page_read(self, token: int, entries: tuple[Entry, ...], now: int) -> None:
        if token == self._offer_token:
            self._offer_page(entries, now)
            return
        follower = self._followers.get(self._pages.pop(token, ""))
        if follower is None or not follower.reading:
            return
        follower.reading = False
        assert follower.copied_to is not None
        after = follower.copied_to
        until = entries[-1].key if entries else ""
        if not entries:
            # What is written from now on is waited for; what was written before is in the pages
            # or in the backlog, and it counts as current when both are confirmed.
            follower.awaited, follower.awaited_from = True, self._change
        message = StorePage(self._epoch, self._next(), after, until, entries)
        self._dispatch(follower, message, follower.confirmed, now)

    def _confirmed(self, host: str, number: int, now: int) -> None:
        follower = self._followers.get(host)
        if follower is None or follower.in_flight is None or follower.in_flight.number != number:
            return
        message, follower.in_flight = follower.in_flight, None
        follower.confirmed = max(follower.confirmed, follower.covers)
        if isinstance(message, StorePage):
            follower.copied_to = message.until or None
        self.timers.cancel(_FollowerTimer(host))
        if not follower.backlog:
            # Nothing waits and nothing is on its way: it has every change there is.
            follower.confirmed = self._change
        done = follower.copied_to is None and follower.confirmed >= follower.awaited_from
        if follower.awaited and done and not follower.current:
            follower.current = True
            self._out.append(ChannelStep("", "follower current", self._epoch, reason=host))
        self._pump(follower, now)
        self._release(now)

    def _repeat(self, host: str, now: int) -> None:
        follower = self._followers.get(host)
        if follower is None:
            return
        if follower.in_flight is None:
            follower.reading = False  # the disk did not answer: ask again
            self._pump(follower, now)
        elif now >= follower.give_up_at:
            self._drop(follower, "it does not confirm in time", now)
        else:
            again = min(now + self._settings.repeat_us, follower.give_up_at)
            self.timers.set(_FollowerTimer(host), again)
            self._out.append(Send(Watchdog(host), follower.in_flight))

    def _drop(self, follower: _Follower, reason: str, now: int) -> None:
        address = Watchdog(follower.host)
        self._out.append(DropReplica(address, reason))
        self._gone(address, now)

    def _gone(self, address: Address, now: int) -> None:
        """A part of another host is gone: nobody waits for it any more."""
        if isinstance(address, Replica):
            if self._offer is not None and self._offer.host == address.name:
                self._offer_lost()
            return
        follower = self._followers.pop(address.name, None)
        if follower is not None:
            self.timers.cancel(_FollowerTimer(address.name))
            self._out.append(ChannelStep("", "follower gone", self._epoch, reason=address.name))
            self._release(now)

    # --- what other hosts have newer ---------------------------------------------------------

    def _merged(self, token: int, newer: tuple[Entry, ...], now: int) -> None:
        """Entries of another host are on disk: let them come into force, and spread them."""
        if token not in self._offers:
            return
        address, number = self._offers.pop(token)
        if newer:
            self._stamp = max(self._stamp, *(entry.stamp for entry in newer))
            self._spread(newer, now)
            self._out.append(Adopt(newer))
        self._out.append(Send(address, OfferTaken(number)))

    # --- stepping down -----------------------------------------------------------------------

    def _newer(self, given: Received, host: str, epoch: int, now: int) -> None:
        """Another server announces itself; if it is newer, hand over the store and then the map."""
        if epoch <= self._epoch or not genuine(epoch, host, self._replicas, now):
            return
        if self._offer is not None:
            if self._offer.host == host and self._offer.epoch >= epoch:
                if self.state is ServerState.HANDED:
                    self._out.append(Forward(given))  # the map may still be on its way
                return
            if epoch <= self._offer.epoch:
                return
            if self.state is not ServerState.HANDED:
                self._step(ServerEvent.LOST)
        self._step(ServerEvent.NEWER)
        self._offer = _Offer(host, given, epoch)
        self._offer.give_up_at = now + self._settings.hand_over_us
        self._offer_token = 0
        self.timers.set(_OfferTimer(), self._offer.give_up_at)
        self._out.append(ChannelStep("", "handing the store over", self._epoch, reason=host))
        self._release(now)

    def _read_offer(self, now: int) -> None:
        assert self._offer is not None
        self._token += 1
        self._offer_token = self._token
        self.timers.set(_OfferTimer(), now + self._settings.repeat_us)
        self._out.append(ReadPage(self._token, self._offer.after, bytes_max=PAGE_BYTES_MAX))

    def _offer_page(self, entries: tuple[Entry, ...], now: int) -> None:
        offer = self._offer
        self._offer_token = 0
        if offer is None or self.state is not ServerState.OFFERING:
            return
        if not entries:
            self._step(ServerEvent.TAKEN)
            self.timers.cancel(_OfferTimer())
            step_taken = ChannelStep("", "store handed over", self._epoch, reason=offer.host)
            self._out += [step_taken, Forward(offer.here)]
            return
        # By time, so that the answer to an offer of an earlier attempt is none to this one: it may
        # come seconds late, when the entries that this one holds are on no disk but ours.
        self._offered = max(self._offered + 1, now)
        offer.after = entries[-1].key
        offer.in_flight = StoreOffer(self._offered, entries, serving=True)
        offer.give_up_at = now + self._settings.hand_over_us
        self.timers.set(_OfferTimer(), now + self._settings.repeat_us)
        self._out.append(Send(Replica(offer.host), offer.in_flight))

    def _offer_taken(self, host: str, number: int, now: int) -> None:
        offer = self._offer
        if offer is None or offer.host != host or offer.in_flight is None:
            return
        if offer.in_flight.number == number:
            offer.in_flight = None
            self._read_offer(now)

    def _repeat_offer(self, now: int) -> None:
        offer = self._offer
        if offer is None or self.state is ServerState.HANDED:
            return
        if now >= offer.give_up_at:
            self._offer_lost()
        elif self.state is ServerState.DRAINING:
            self.timers.set(_OfferTimer(), offer.give_up_at)
        elif offer.in_flight is None:
            self._read_offer(now)  # the disk did not answer
        else:
            self.timers.set(_OfferTimer(), now + self._settings.repeat_us)
            self._out.append(Send(Replica(offer.host), offer.in_flight))

    def _offer_lost(self) -> None:
        """The newer server is gone: serve on, and hand over when it is heard again."""
        if self.state is ServerState.HANDED:
            return  # the map is on its way; the map server gives up by itself
        self._offer, self._offer_token = None, 0
        self.timers.cancel(_OfferTimer())
        self._step(ServerEvent.LOST)
