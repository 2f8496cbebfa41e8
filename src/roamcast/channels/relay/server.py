"""The server side of a relay: publications go up, what clients subscribe to comes down.

A map server that only speaks unicast, whose map is what a client of the real server is shown. What
its own clients publish goes to the real server and comes back to whoever subscribes to it. Equal
filters are subscribed to once, and answered when their current set has arrived.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from roamcast.channels.client.copy import Appeared, Changed, Left, MapCopy
from roamcast.channels.client.map_client import SubscribeFilter, UnsubscribeFilter
from roamcast.channels.client.publications import DisownContext, PublishContext, UnpublishContext
from roamcast.channels.client.watching import Current, Cut, Overtaken, Pending, Refusal
from roamcast.channels.reliable.receiver import Stale
from roamcast.channels.server.contexts import ActiveMap, MapContexts
from roamcast.channels.server.current_sets import CurrentSets
from roamcast.channels.server.desk import ClientState, Desk, Policy, Public
from roamcast.channels.server.map_server import MapServer
from roamcast.channels.server.messages import REASON_LENGTH_MAX, Refused
from roamcast.channels.server.queries import Matcher
from roamcast.channels.server.settings import MapSettings, Mode
from roamcast.channels.server.subscriptions import Subscriptions
from roamcast.channels.spread.dissemination import Dissemination
from roamcast.errors import ConflictError, InputError, LimitError
from roamcast.model.contexts import Context, body_of
from roamcast.model.filters import recent
from roamcast.model.machine import Effect, Input
from roamcast.model.records import Drop

Forward = Callable[[str, Input], None]
"""Hands an input to the relay's client side, in the name of one client or of all ("")."""


class Served(Public):
    """The policy of a relay: it serves only clients that may see the same as itself."""

    def __init__(self, relay: str, policy: Policy) -> None:
        self._relay = relay
        self._policy = policy

    def view_class(self, client: str) -> str:
        """There is one class; raise for a client of another."""
        # 0080: the relay has one copy of the map, the one that its own class may see.
        if self._policy.view_class(client) != self._policy.view_class(self._relay):
            raise InputError(f"{client} may not see the same as {self._relay}: serve it elsewhere")
        return ""

    def may_take(self, client: str, owner: str) -> bool:
        """Decide as the server would between two of our clients."""
        return self._policy.may_take(client, owner)


class Owner(msgspec.Struct):
    """Who publishes a context, and the stamp of its state."""

    client: str
    stamp: int


class RelayedContexts(MapContexts):
    """The clients' contexts, which go up, and those that the server shows, which are the map."""

    def __init__(
        self,
        desk: Desk,
        active_map: ActiveMap,
        policy: Policy,
        dissemination: Dissemination,
        forward: Forward,
    ) -> None:
        super().__init__(desk, active_map, policy, dissemination)
        self.owners: dict[str, Owner] = {}
        self._forward = forward
        self._shown = 0

    def check_owner(self, vid: str, owner: str) -> None:
        """Refuse to change what another of our clients publishes; the server checks the rest."""
        known = self.owners.get(vid)
        if known is None or known.client == owner:
            return
        if not self._policy.may_take(owner, known.client):
            raise ConflictError(f"{vid!r} is published by somebody else: choose another vid")

    def put_for(
        self, owner: str, context: Context, body: bytes, stamp: int, *, stored: bool = False
    ) -> bool:
        """Publish a client's context with the server, under the client's own stamp."""
        del body, stored  # the client side encodes it again, under the same stamp
        known = self.owners.get(context.vid)
        if known is not None and stamp <= known.stamp:
            if stamp == known.stamp and known.client != owner:
                known.client = owner  # the same state, published again
                self._forward(owner, PublishContext(context, stamp))
            elif known.client != owner:
                self._overtake(owner, context.vid, known.stamp)
            elif stamp < known.stamp:
                self.outdate(owner, context.vid, known.stamp)
            return True
        most = self._desk.settings.publications_max
        if known is None and len(self.owners) >= most:
            raise LimitError(f"the clients of a relay publish at most {most} contexts together")
        if known is not None and known.client != owner:
            self._overtake(known.client, context.vid, stamp)
        self.owners[context.vid] = Owner(owner, stamp)
        self._forward(owner, PublishContext(context, stamp))
        return True

    def withdraw(
        self,
        owner: str,
        vid: str,
        stamp: int = 0,
        *,
        ended: int | None = None,
        stored: bool = False,
    ) -> bool:
        """Cancel a client's context with the server, or disown it without a stamp."""
        del ended, stored  # the server keeps the past
        known = self.owners.get(vid)
        if known is None:
            return True
        if stamp and known.client == owner and known.stamp > stamp:
            return False
        if stamp and known.stamp <= stamp and self._may_take(owner, known.client):
            self.overtaken(vid, stamp, by=owner)
            self._forward(known.client, UnpublishContext(vid, stamp))
        elif not stamp and known.client == owner:
            del self.owners[vid]
            self._forward(owner, DisownContext(vid))
        return True

    def stamp_of(self, vid: str) -> int:
        """Give the stamp under which a context was published upwards."""
        return self.owners[vid].stamp if vid in self.owners else 0

    def outdated(self, vid: str, stamp: int) -> None:
        """The server has a later stamp than ours, by a clock that was set back: tell its client."""
        known = self.owners.get(vid)
        if known is not None and known.stamp <= stamp:
            self.outdate(known.client, vid, stamp)

    def overtaken(self, vid: str, stamp: int, by: str = "") -> None:
        """Somebody published a later state, or cancelled it: tell the client whose it was."""
        known = self.owners.get(vid)
        if known is not None and known.stamp <= stamp:
            del self.owners[vid]
            if known.client != by:
                self._overtake(known.client, vid, stamp)

    def refused(self, vid: str, reason: str, client: str = "") -> None:
        """The server does not accept a publication (of this client): tell its publisher."""
        known = self.owners.get(vid)
        if known is None or client not in ("", known.client):
            return  # somebody else publishes it by now
        del self.owners[vid]
        self._forward(known.client, DisownContext(vid))
        publisher = self._desk.clients.get(known.client)
        if publisher is not None:
            publisher.publications.pop(vid, None)
            self._desk.deliver(publisher, Refused("publish", vid, reason))

    def follow(self, vid: str, copy: MapCopy) -> None:
        """Bring the map up to what the server shows of a context."""
        known = copy.known.get(vid)
        here = self.map.contexts.get(vid)
        if known is None or known.context is None or not known.shown:
            super().withdraw("", vid)
        elif here is None or here.context is not known.context:
            # A stamp of our own: the map takes only later ones, and publishers' stamps never come
            # down. The server has decided already which state is the newest (0026).
            self._shown += 1
            super().put_for("", known.context, body_of(known.context), self._shown)


class Upward(msgspec.Struct):
    """A filter subscribed to with the server, once for all (client, subscription) that want it."""

    name: str
    text: str
    users: dict[tuple[str, str], str]
    """(client, subscription) → the filter as that client wrote it."""
    current: bool = False
    whole: bool = True


class RelayedSubscriptions(Subscriptions):
    """The clients' subscriptions, and the filters subscribed to in their place."""

    def __init__(
        self, desk: Desk, current: CurrentSets, dissemination: Dissemination, forward: Forward
    ) -> None:
        super().__init__(desk, current, dissemination)
        self.upward: dict[str, Upward] = {}
        self._by_name: dict[str, Upward] = {}
        self._asked: dict[str, dict[str, str]] = {}
        self._forward = forward
        self._made = 0

    def subscribe(self, client: ClientState, name: str, text: str) -> None:
        """Subscribe with the server if nobody has, and answer when the current set is here."""
        wanted = recent.read(text)
        self.withdraw(client, name)
        asked = self._asked.setdefault(client.name, {})
        if len(asked) >= self.most(client):
            raise LimitError(f"a client has at most {self.most(client)} subscriptions")
        client.outbox.reopen()
        # By canonical text: equal filters of many clients cost the server one subscription.
        upward = self.upward.get(wanted.text)
        if upward is None:
            self._made += 1
            upward = Upward(f"u{self._made}", wanted.text, {})
            self.upward[wanted.text] = self._by_name[upward.name] = upward
            self._forward("", SubscribeFilter(upward.name, wanted.text))
        asked[name] = wanted.text
        upward.users[client.name, name] = text
        if upward.current:
            self._answer(client, name, text)

    def _answer(self, client: ClientState, name: str, text: str) -> None:
        try:
            super().subscribe(client, name, text)
        except InputError as error:
            self._release(client.name, name)
            self._desk.deliver(client, Refused("subscribe", name, str(error)[:REASON_LENGTH_MAX]))

    def withdraw(self, client: ClientState, name: str) -> None:
        """End a client's subscription, answered or not."""
        self._release(client.name, name)
        super().withdraw(client, name)

    def withdraw_all(self, client: ClientState) -> None:
        """End all subscriptions of a client."""
        for name in list(self._asked.get(client.name, ())):
            self.withdraw(client, name)

    def refresh(self, client: ClientState, name: str) -> None:
        """List a current set again, unless it has not come yet."""
        # Its first listing is on its way up and down; another one would only repeat it.
        waits = name in self._asked.get(client.name, ()) and name not in client.subscriptions
        if not waits:
            super().refresh(client, name)

    def whole(self, client: ClientState, name: str) -> bool:
        """A current set is whole if the server's answer was."""
        return self.upward[self._asked[client.name][name]].whole

    def _release(self, client: str, name: str) -> None:
        """End a client's part in a filter; with the last one, unsubscribe at the server."""
        asked = self._asked.get(client, {})
        text = asked.pop(name, None)
        if not asked:
            self._asked.pop(client, None)
        if text is None:
            return
        upward = self.upward[text]
        del upward.users[client, name]
        if not upward.users:
            del self.upward[text], self._by_name[upward.name]
            self._forward("", UnsubscribeFilter(upward.name))

    def current(self, name: str, whole: bool) -> None:
        """The server has listed a current set: answer those who wait for it."""
        upward = self._by_name.get(name)
        if upward is None:
            return
        upward.current, upward.whole = True, whole
        for (client_name, subscription), text in list(upward.users.items()):
            client = self._desk.clients[client_name]
            if subscription not in client.subscriptions:
                self._answer(client, subscription, text)

    def refused(self, name: str, reason: str) -> None:
        """The server does not accept a filter: refuse it to our clients."""
        upward = self._by_name.get(name)
        if upward is None:
            return
        for client_name, subscription in list(upward.users):
            client = self._desk.clients[client_name]
            self.withdraw(client, subscription)
            self._desk.deliver(client, Refused("subscribe", subscription, reason))

    def lost(self) -> None:
        """The server gave up on all subscriptions: what they show is not current."""
        for upward in self.upward.values():
            upward.current = False

    def all_upward(self) -> list[tuple[str, Input]]:
        """Give every filter to subscribe to with the server."""
        filters = self.upward.values()
        return [("", SubscribeFilter(upward.name, upward.text)) for upward in filters]


class RelayServer(MapServer):
    """The server that a relay is to its clients."""

    contexts: RelayedContexts
    subscriptions: RelayedSubscriptions

    def __init__(
        self,
        name: str,
        *,
        epoch: int,
        now: int,
        settings: MapSettings,
        policy: Policy,
        make_matcher: Callable[[], Matcher],
    ) -> None:
        # Behind a unicast link a channel costs as much as unicast to each (AMS 17).
        alone = msgspec.structs.replace(
            settings, mode=Mode.UNICAST, clients_max=settings.relay_clients_max
        )
        super().__init__(
            name,
            epoch=epoch,
            now=now,
            settings=alone,
            policy=Served(name, policy),
            make_matcher=make_matcher,
        )
        self.forwarded: list[tuple[str, Input]] = []
        """What the relay's client side is to do next, and for whom."""
        self.unswept = False
        """Whether contexts may be left that no subscription shows any more."""
        forward = self._forward
        self.contexts = RelayedContexts(
            self.desk, self.map, self.policy, self.dissemination, forward
        )
        self.current = CurrentSets(self.desk, self.contexts, self.policy, self.dissemination)
        self.subscriptions = RelayedSubscriptions(
            self.desk, self.current, self.dissemination, forward
        )

    def _forward(self, client: str, given: Input) -> None:
        self.forwarded.append((client, given))

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How much is held of what, and the bound of each."""
        settings = self.settings
        return {
            **super().occupancy(),
            "published upwards": (len(self.contexts.owners), settings.publications_max),
            "asked upwards": (
                len(self.subscriptions.upward),
                settings.relay_clients_max * settings.subscriptions_max,
            ),
        }

    def show(self, effects: Sequence[Effect], copy: MapCopy, now: int) -> Sequence[Effect]:
        """Take what the real server shows, and show it to those who subscribed to it."""
        self.desk.now = now
        vids: dict[str, None] = {}
        for effect in effects:
            match effect:
                case Appeared(context=context) | Changed(context=context):
                    vids[context.vid] = None
                case Left(vid=vid):
                    vids[vid] = None
        # The map first: an answer to a subscription lists what the map has.
        self._follow(vids, copy)
        for effect in effects:
            match effect:
                case Current(name, _, complete):
                    self.subscriptions.current(name, complete)
                case Overtaken(vid, stamp, own):
                    (self.contexts.outdated if own else self.contexts.overtaken)(vid, stamp)
                case Refusal("subscribe", name, reason):
                    self.subscriptions.refused(name, reason)
                    self.unswept = True
                case Refusal("publish", vid, reason):
                    self.contexts.refused(vid, reason)
                case Refusal():
                    pass  # an unpublication or a session, which no client of ours waits for
                case Cut():
                    self.subscriptions.lost()
                    self.unswept = True
                case Appeared() | Changed() | Left() | Pending() | Stale():
                    pass  # followed above; the client side lists again what a channel lost
                case _:
                    raise AssertionError(f"nobody carries {type(effect).__name__}")
        return self.follow((), copy, now)

    def answered(self, client: str, effect: Overtaken | Refusal, now: int) -> Sequence[Effect]:
        """Take what the real server answered to what a client published in its own name."""
        self.desk.now = now
        match effect:
            case Overtaken(vid, stamp):
                if vid in self.contexts.owners and self.contexts.owners[vid].client == client:
                    self.contexts.overtaken(vid, stamp)
            case Refusal("publish", vid, reason):
                self.contexts.refused(vid, reason, client)
        return self._done()

    def follow(self, vids: Iterable[str], copy: MapCopy, now: int) -> Sequence[Effect]:
        """Bring contexts up to what the real server shows of them now."""
        self.desk.now = now
        self._follow(vids, copy)
        # Not before everything is current: until then a context may only seem to be unwanted.
        if self.unswept and all(upward.current for upward in self.subscriptions.upward.values()):
            self.unswept = False
            self._follow(list(self.map.contexts), copy)
        return self._done()

    def _follow(self, vids: Iterable[str], copy: MapCopy) -> None:
        for vid in vids:
            try:
                self.contexts.follow(vid, copy)
            except LimitError as error:
                # The client is told by `complete=False`, as by a server at its own limit.
                self.desk.out.append(Drop(str(error), "map.batch", 0))
                for upward in self.subscriptions.upward.values():
                    upward.whole = False
