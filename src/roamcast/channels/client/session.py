"""A client's session: one `MapClient` after another, over one link after another.

`MapClient` follows one life of a map service. `ClientSession` is what a user sees over all of them:
contexts appear once, stay while the service restarts, and are hidden when they have really left.
It decides which host to accept, when a context that a restarted service does not list counts as
gone, when to ask again after the service gave up on the client, and what to do about refusals.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from roamcast.channels.client.copy import Appeared, Changed, Left
from roamcast.channels.client.link_messages import LinkWelcome, settings_of
from roamcast.channels.client.map_client import MapClient, SubscribeFilter, UnsubscribeFilter
from roamcast.channels.client.publications import PublishContext, UnpublishContext
from roamcast.channels.client.watching import Current, Cut, Overtaken, Pending, Refusal
from roamcast.channels.reliable.receiver import Stale
from roamcast.channels.server.messages import Answer, Request, ServerHere
from roamcast.channels.server.settings import MapSettings
from roamcast.errors import LimitError
from roamcast.model.addresses import Server
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import (
    Draw,
    Effect,
    Ignore,
    Input,
    Listen,
    Received,
    Send,
    earliest,
)
from roamcast.model.records import Record

CONTEXTS_MAX: Final = 1_000_000
"""Contexts one subscription may show: as many as a map service holds by default."""

ASK_AGAIN_US: Final = 1_000_000
"""After the service gave up on a slow client, the client asks again within this time."""

DOUBT_US: Final = 500_000
"""Grace period after a restart before an unlisted context counts as gone, beyond the time that
its publisher needs to reconnect and to register."""

OUTAGE_PART: Final = 0.25
"""A client dials again within this part of the outage so far (decision 0075)."""

SILENCE_BEATS: Final = 5
"""A link on which the service missed this many of its own beats is dead."""


class LinkUp(Input, frozen=True):
    """A link is open and the service has sent its welcome."""

    welcome: LinkWelcome


class LinkDown(Input, frozen=True):
    """The link that was accepted last is over."""


class LinkAccepted(Effect, frozen=True):
    """Use this link; it is dead after so much silence."""

    silence_us: int


class LinkRejected(Effect, frozen=True):
    """This host serves an older map than the session has seen: look for another one."""


class Shown(Effect, frozen=True):
    """A subscription shows a context, or a new state of it."""

    subscription: str
    context: Context


class Hidden(Effect, frozen=True):
    """A context left a subscription."""

    subscription: str
    vid: str


class Taken(Effect, frozen=True):
    """The service has taken the latest publication, or cancellation, of these contexts."""

    vids: tuple[str, ...]


class PublicationRefused(Effect, frozen=True):
    """The service does not accept a context; the session publishes it no more."""

    vid: str
    reason: str


class SubscriptionRefused(Effect, frozen=True):
    """The service does not accept a subscription; the session has ended it."""

    subscription: str
    reason: str


class SubscriptionOverflowed(Effect, frozen=True):
    """A subscription would show more contexts than the session may hold; it has ended."""

    subscription: str
    contexts_max: int


class _Followed(msgspec.Struct):
    """One subscription of the user's, as it outlives restarts of the service."""

    filter: str
    shown: set[str]
    doubtful: dict[str, None]
    """Shown, but missing from the list of a service that has just restarted."""
    relists: bool = False
    """Its next list comes from a `MapClient` that does not know what was shown before."""


def silence_us(settings: MapSettings) -> int:
    """How much silence means that a link to this service is dead."""
    return max(SILENCE_BEATS * settings.server_here_us, settings.client_timeout_us)


class ClientSession:
    """One client over any number of links and restarts of its service."""

    def __init__(
        self, *, draw: Draw, limit_bytes: int = 0, contexts_max: int = CONTEXTS_MAX
    ) -> None:
        self.settings = MapSettings()
        self.published: dict[str, Context] = {}
        """What the user publishes, by vid, as it was last given."""
        self.client: MapClient | None = None
        """The machine of the service's present life; there is one from the first link on."""
        self._draw = draw
        self._limit_bytes = limit_bytes
        self._contexts_max = contexts_max
        self._server = ""
        self._followed: dict[str, _Followed] = {}
        self._untaken: dict[str, None] = {}
        self._down_at: int | None = None
        self._outage_us = 0
        self._believe_at: int | None = None
        self._ask_again_at: int | None = None

    @property
    def server(self) -> str:
        """The name of the server that welcomed this session last."""
        return self._server

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How much is held of what, and the bound of each."""
        settings = self.settings
        largest = max((len(one.shown) for one in self._followed.values()), default=0)
        client = {} if self.client is None else self.client.occupancy()
        return {
            **{f"client: {what}": pair for what, pair in client.items()},
            "publications": (len(self.published), settings.publications_max),
            "untaken": (len(self._untaken), 2 * settings.publications_max),
            "subscriptions": (len(self._followed), settings.subscriptions_max),
            "contexts of a subscription": (largest, self._contexts_max),
        }

    def taken(self, vid: str) -> bool:
        """Whether the service has taken the latest that the user gave about a context."""
        return vid not in self._untaken

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        """Take what happened to the link, what the user wants, or what the server sent.

        An error about the user's input leaves everything as it was.
        """
        match given:
            case LinkUp(welcome):
                return self._up(welcome, now)
            case LinkDown():
                self._down_at = now
                return ()
            case PublishContext() | UnpublishContext():
                return self._publish(given, now)
            case SubscribeFilter(name, text):
                return self._subscribe(name, text, now)
            case UnsubscribeFilter(name):
                if self._followed.pop(name, None) is None:
                    return ()
                return self._pass(self._machine.receive(given, now), now)
            case Received(sender):
                # It was sent to an earlier life of this host, or came by a link that is over: the
                # server behind that may have a newer epoch, and we could not hear its groups.
                if self.client is None or sender != self._server:
                    return ()
                return self._received(given, now)
            case _:
                raise AssertionError(f"nobody takes {type(given).__name__}")

    def advance(self, now: int) -> Sequence[Effect]:
        """Do what is due: believe departures, ask again, and whatever `MapClient` has to do."""
        effects: list[Effect] = []
        if self._believe_at is not None and now >= self._believe_at:
            self._believe_at = None
            effects += self._believe()
        if self._ask_again_at is not None and now >= self._ask_again_at:
            self._ask_again_at = None
            effects += self._ask_again(now)
        if self.client is not None:
            effects += self._pass(self.client.advance(now), now)
        return effects

    def deadline(self) -> int | None:
        """The next of these."""
        client = None if self.client is None else self.client.deadline()
        return earliest(self._believe_at, self._ask_again_at, client)

    @property
    def _machine(self) -> MapClient:
        assert self.client is not None, "the first link comes first"
        return self.client

    def _up(self, welcome: LinkWelcome, now: int) -> list[Effect]:
        """Accept a link, and learn whether the service has restarted meanwhile."""
        settings = settings_of(welcome.settings)
        outage_us = 0 if self._down_at is None else max(0, now - self._down_at)
        client = self.client
        if client is not None and welcome.hosts and welcome.epoch < client.epoch:
            return [*self._report_newer(welcome, settings, outage_us), LinkRejected()]
        self._server, self._outage_us, self._down_at = welcome.server, outage_us, None
        effects: list[Effect] = [LinkAccepted(silence_us(settings))]
        if client is not None and welcome.epoch != client.epoch:
            self._doubt(settings.restart_spread_us, now)
        if client is None or settings != self.settings or welcome.epoch < client.epoch:
            # Without other hosts there is no newer map to wait for: a service whose data was
            # lost begins at an older epoch, and the session begins with it.
            return [*effects, *self._begin(welcome, settings, now)]
        here = ServerHere(welcome.epoch, settings.restart_spread_us)
        return [*effects, *self._received(Received(self._server, here), now)]

    def _report_newer(
        self, welcome: LinkWelcome, settings: MapSettings, outage_us: int
    ) -> list[Effect]:
        """Tell a server of a newer epoch that this client cannot find any more (0059).

        A client never goes back to an older epoch. The older server's host must start a newer one,
        and cannot know it where all other hosts have forgotten.
        """
        if outage_us <= settings.server_timeout_us:
            return []
        client = self._machine
        return [Send(Server(welcome.server), Request(client.epoch, client.session, 1, ()))]

    def _begin(self, welcome: LinkWelcome, settings: MapSettings, now: int) -> list[Effect]:
        """Make a `MapClient`, and give it everything that an earlier one was given."""
        before = self.client
        effects: list[Effect] = [] if before is None else before.leave()
        self.settings = settings
        self.client = MapClient(
            welcome.client,
            server=welcome.server,
            epoch=welcome.epoch,
            now=now,
            settings=settings,
            draw=self._draw,
            limit_bytes=self._limit_bytes,
        )
        if before is not None:  # with their stamps, for somebody else may have newer states
            self.client.publications = before.publications
        for name, followed in self._followed.items():
            followed.relists = True
            effects += self.client.receive(SubscribeFilter(name, followed.filter), now)
        return self._pass([*effects, *self.client.advance(now)], now)

    def _publish(self, given: PublishContext | UnpublishContext, now: int) -> list[Effect]:
        vid = given.context.vid if isinstance(given, PublishContext) else given.vid
        if isinstance(given, UnpublishContext) and vid not in self.published:
            return []
        limit = self.settings.publications_max
        fresh = vid not in self.published
        if isinstance(given, PublishContext) and fresh and len(self.published) >= limit:
            raise LimitError(f"a client publishes at most {limit} contexts")
        if vid not in self._untaken and len(self._untaken) >= 2 * limit:
            raise LimitError(f"{2 * limit} changes wait for the service: wait until it takes them")
        effects = self._machine.receive(given, now)
        if isinstance(given, PublishContext):
            self.published[vid] = given.context
        else:
            del self.published[vid]
        if self._machine.taken(vid):  # a cancellation of what somebody else has overtaken
            self._untaken.pop(vid, None)
        else:
            self._untaken[vid] = None
        return self._pass(effects, now)

    def _subscribe(self, name: str, text: str, now: int) -> list[Effect]:
        limit = self.settings.subscriptions_max
        if name not in self._followed and len(self._followed) >= limit:
            raise LimitError(f"a client has at most {limit} subscriptions; close one first")
        Filter.parse(text)
        self._followed[name] = _Followed(text, set(), {})
        return self._pass(self._machine.receive(SubscribeFilter(name, text), now), now)

    def _received(self, given: Received, now: int) -> list[Effect]:
        client, message = self._machine, given.message
        if isinstance(message, ServerHere) and message.epoch > client.epoch:
            self._doubt(message.spread_us, now)
        effects = self._pass(client.receive(given, now), now)
        if isinstance(message, Answer) and self._untaken:
            taken = tuple(vid for vid in self._untaken if client.taken(vid))
            for vid in taken:
                del self._untaken[vid]
            if taken:
                effects.append(Taken(taken))
        return effects

    def _doubt(self, spread_us: int, now: int) -> None:
        """The service has restarted: it may list its contexts before all publishers are back.

        Publishers dial again within a part of the outage and register within the spread (0075).
        """
        back_us = int(self._outage_us * OUTAGE_PART) + spread_us
        self._believe_at = now + DOUBT_US + back_us

    def _is_doubtful(self, vid: str) -> bool:
        """Whether a context is only missing: the restarted service has not mentioned it yet."""
        if self._believe_at is None:
            return False
        known = self._machine.watching.copy.known.get(vid)
        return known is None or known.number[0] < self._machine.epoch

    def _believe(self) -> list[Effect]:
        """What has not come back by now has left."""
        effects: list[Effect] = []
        for name, followed in self._followed.items():
            for vid in followed.doubtful:
                followed.shown.discard(vid)
                effects.append(Hidden(name, vid))
            followed.doubtful.clear()
        return effects

    def _ask_again(self, now: int) -> list[Effect]:
        """Subscribe again to what the `MapClient` forgot, but its user did not."""
        effects: list[Effect] = []
        for name, followed in self._followed.items():
            if name not in self._machine.wanted:
                followed.relists = True
                again = SubscribeFilter(name, followed.filter)
                effects += self._pass(self._machine.receive(again, now), now)
        return effects

    def _pass(self, effects: Iterable[Effect], now: int) -> list[Effect]:
        """Turn what one life of the service shows into what the user sees."""
        out: list[Effect] = []
        for effect in effects:
            match effect:
                case Send() | Listen() | Ignore() | Record():
                    out.append(effect)
                case Appeared(name, context) | Changed(name, context):
                    out += self._show(name, context, now)
                case Left(name, vid):
                    out += self._hide(name, (vid,))
                case Current(name):
                    out += self._list(name, effect)
                case Refusal("subscribe", name, reason) if name in self._followed:
                    del self._followed[name]
                    out.append(SubscriptionRefused(name, reason))
                case Refusal("publish", vid, reason) if vid in self.published:
                    out += self._end_publication(vid, reason, now)
                case Refusal():
                    out.append(effect)  # the user has ended it meanwhile, or it has no name
                case Cut():
                    self._ask_again_at = now + int(self._draw() * ASK_AGAIN_US)
                    out.append(effect)
                case Overtaken() | Pending() | Stale():
                    # Somebody else's newer state shows as a change; `MapClient` itself lists again
                    # what a stale channel lost.
                    pass
                case _:
                    raise AssertionError(f"nobody carries {type(effect).__name__}")
        return out

    def _show(self, name: str, context: Context, now: int) -> list[Effect]:
        followed = self._followed.get(name)
        if followed is None:
            return []
        if context.vid not in followed.shown and len(followed.shown) >= self._contexts_max:
            del self._followed[name]
            ended = self._pass(self._machine.receive(UnsubscribeFilter(name), now), now)
            return [SubscriptionOverflowed(name, self._contexts_max), *ended]
        followed.shown.add(context.vid)
        followed.doubtful.pop(context.vid, None)
        return [Shown(name, context)]

    def _hide(self, name: str, vids: Iterable[str]) -> list[Effect]:
        """Contexts left, or so it seems."""
        followed = self._followed.get(name)
        if followed is None:
            return []
        effects: list[Effect] = []
        for vid in vids:
            if self._is_doubtful(vid):
                followed.doubtful[vid] = None
            else:
                followed.shown.discard(vid)
                followed.doubtful.pop(vid, None)
                effects.append(Hidden(name, vid))
        return effects

    def _list(self, name: str, current: Current) -> list[Effect]:
        followed = self._followed.get(name)
        if followed is None:
            return []
        missing: list[str] = []
        view = self._machine.watching.copy.views.get(name)
        if followed.relists and view is not None:  # None: it was cut off by the same message
            followed.relists = False
            missing = [vid for vid in followed.shown if vid not in view.shown]
        # In the order of vids: sets have none, and two runs of one seed must be equal.
        return [*self._hide(name, sorted(missing)), current]

    def _end_publication(self, vid: str, reason: str, now: int) -> list[Effect]:
        """Publish no more what the service refuses."""
        del self.published[vid]
        # Else it would be published, and refused, with every registration.
        forgotten = self._pass(self._machine.receive(UnpublishContext(vid), now), now)
        return [PublicationRefused(vid, reason), *forgotten]
