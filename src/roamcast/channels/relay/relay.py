"""Who listens for clients that cannot hear groups? A relay, which turns channels into unicast.

AMS, "Dealing With Unicast Wireless Links". To the server a relay is one client: it listens to the
channels of everything its clients ask for. To its clients it is a server that only speaks unicast:
it filters for them, keeps to their limits, and for a slow one it keeps the latest state of each
object. Neither server nor client can tell the difference.

A driver runs it like any machine; its clients' links need to carry no groups. Clients of one relay
see what the relay may see, so it serves only those of its own view class. Where a publication must
be its publisher's own, each client publishes `apart`: the driver says it in that client's name.
"""

from collections.abc import Callable, Sequence
from typing import Final

from roamcast.channels.client.map_client import MapClient, UnsubscribeFilter
from roamcast.channels.client.publications import DisownContext, PublishContext, UnpublishContext
from roamcast.channels.client.watching import Cut
from roamcast.channels.relay.server import RelayServer
from roamcast.channels.server.desk import Policy, Public
from roamcast.channels.server.map_server import compiled_matcher
from roamcast.channels.server.messages import Receipt, Request
from roamcast.channels.server.queries import Matcher
from roamcast.channels.server.settings import MapSettings
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
from roamcast.model.records import ChannelStep, Drop, Record


class OnBehalf(Effect, frozen=True):
    """Say this to the server in a client's own name."""

    client: str
    given: PublishContext | UnpublishContext | DisownContext


class Heard(Input, frozen=True):
    """What the server told about something said in a client's own name."""

    client: str
    effect: Effect


_FROM_CLIENTS: Final = (Request, Receipt)
_FOR_DRIVER: Final = (Send, Listen, Ignore, Record)
_PUBLISHING: Final = (PublishContext, UnpublishContext, DisownContext)
_TO_CLIENTS: Final = (Send, Drop, ChannelStep)
"""Nobody would hear its groups; its map, queries and updates are the server's to record."""


class MapRelay:
    """One relay: a client of the map service, and a server to clients on unicast links."""

    def __init__(
        self,
        name: str,
        *,
        server: str,
        epoch: int,
        now: int,
        settings: MapSettings,
        draw: Draw,
        site: str = "",
        server_epoch: int = 0,
        apart: bool = False,
        policy: Policy | None = None,
        make_matcher: Callable[[], Matcher] = compiled_matcher,
    ) -> None:
        """`epoch` grows with every start of the relay, as a server's does.

        `apart`: what clients publish leaves as `OnBehalf`, else all of it is the relay's.
        """
        self.name = name
        self.up = MapClient(
            name,
            server=server,
            epoch=server_epoch,
            now=now,
            settings=settings,
            draw=draw,
            site=site,
            relay=True,
        )
        self.down = RelayServer(
            name,
            epoch=epoch,
            now=now,
            settings=settings,
            policy=policy or Public(),
            make_matcher=make_matcher,
        )
        self._settings = settings
        self._draw = draw
        self._apart = apart
        self._again_at: int | None = None

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How much is held of what, and the bound of each."""
        return self.down.occupancy()

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        """Take what a client says, or what the server says."""
        if isinstance(given, Received) and isinstance(given.message, _FROM_CLIENTS):
            return self._upwards(self.down.receive(given, now), now)
        if isinstance(given, Heard):
            return self._upwards(self.down.heard(given.client, given.effect, now), now)
        return self._downwards(self.up.receive(given, now), now)

    def advance(self, now: int) -> Sequence[Effect]:
        """Do what is due on both sides."""
        if self._again_at is not None and now >= self._again_at:
            self._again_at = None
            self.down.said += self.down.subscriptions.watches()
        effects = self._downwards(self.up.advance(now), now)
        return [*effects, *self._upwards(self.down.advance(now), now)]

    def deadline(self) -> int | None:
        """The next thing due on either side."""
        return earliest(self.up.deadline(), self.down.deadline(), self._again_at)

    def leave(self) -> list[Effect]:
        """Stop listening; the server notices the silence, and so do the clients."""
        return self.up.leave()

    def _downwards(self, effects: Sequence[Effect], now: int) -> list[Effect]:
        """Let out what is for the driver, and tell our clients what is for our user."""
        out: list[Effect] = [effect for effect in effects if isinstance(effect, _FOR_DRIVER)]
        told = [effect for effect in effects if not isinstance(effect, _FOR_DRIVER)]
        if any(isinstance(effect, Cut) for effect in told):
            # We were too slow for the server: ask again for everything, a little later.
            self._again_at = now + 1 + int(self._draw() * self._settings.restart_spread_us)
        if told:
            out += self._upwards(self.down.told(told, self.up.watching.copy, now), now)
        return out

    def _upwards(self, effects: Sequence[Effect], now: int) -> list[Effect]:
        """Let out what is for our clients, and say to the server what they said."""
        out: list[Effect] = [effect for effect in effects if isinstance(effect, _TO_CLIENTS)]
        copy = self.up.watching.copy
        said, self.down.said = self.down.said, []
        for client, one in said:
            if self._apart and isinstance(one, _PUBLISHING):
                out.append(OnBehalf(client, one))
                continue
            view = copy.views.get(one.subscription) if isinstance(one, UnsubscribeFilter) else None
            unseen = [] if view is None else list(view.shown)
            out += self._downwards(self.up.receive(one, now), now)
            if isinstance(one, UnsubscribeFilter):
                out += self._upwards(self.down.follow(unseen, copy, now), now)
        return out
