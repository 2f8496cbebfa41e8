"""The relay machine: a client of the map service, and a server to clients on unicast links.

AMS, "Dealing With Unicast Wireless Links"; the paper calls it an agent. To the server a relay is
one client, which listens to the channels of everything its clients subscribe to. To its clients it
is a server that only speaks unicast: it filters for them, respects their limits, and holds the
latest state of each context for a slow one. Neither side can tell the difference (decision 0067).

Clients of one relay see what the relay may see, so it serves only those of its own view class.
Where a publication must be its publisher's own, clients publish `apart`: what they publish leaves
as `OnBehalf`, to be published in that client's name (`admission`).
"""

from collections.abc import Callable, Sequence
from typing import Final

from roamcast.channels.client.map_client import MapClient, UnsubscribeFilter
from roamcast.channels.client.publications import DisownContext, PublishContext, UnpublishContext
from roamcast.channels.client.watching import Cut, Overtaken, Refusal
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
    """Publish or unpublish this in a client's own name."""

    client: str
    given: PublishContext | UnpublishContext | DisownContext


class BehalfAnswered(Input, frozen=True):
    """What the server answered to something published in a client's own name."""

    client: str
    effect: Overtaken | Refusal


_FROM_CLIENTS: Final = (Request, Receipt)
_FOR_DRIVER: Final = (Send, Listen, Ignore, Record)
_PUBLISHING: Final = (PublishContext, UnpublishContext, DisownContext)
_TO_CLIENTS: Final = (Send, Drop, ChannelStep)
"""Not its groups, which nobody joins; its map, queries and updates are the server's to record."""


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

        `apart`: what clients publish leaves as `OnBehalf`; otherwise the relay publishes it.
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
        up = {f"up: {what}": pair for what, pair in self.up.occupancy().items()}
        return {**self.down.occupancy(), **up}

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        """Take a client's message, or the server's."""
        if isinstance(given, Received) and isinstance(given.message, _FROM_CLIENTS):
            return self._upwards(self.down.receive(given, now), now)
        if isinstance(given, BehalfAnswered):
            return self._upwards(self.down.answered(given.client, given.effect, now), now)
        return self._downwards(self.up.receive(given, now), now)

    def advance(self, now: int) -> Sequence[Effect]:
        """Do what is due on both sides."""
        if self._again_at is not None and now >= self._again_at:
            # The clients are not told: they keep what they see, and it becomes current again.
            self._again_at = None
            self.down.forwarded += self.down.subscriptions.all_upward()
        effects = self._downwards(self.up.advance(now), now)
        return [*effects, *self._upwards(self.down.advance(now), now)]

    def deadline(self) -> int | None:
        """The next thing due on either side."""
        return earliest(self.up.deadline(), self.down.deadline(), self._again_at)

    def leave(self) -> list[Effect]:
        """Leave all groups; server and clients notice the silence."""
        return self.up.leave()

    def _downwards(self, effects: Sequence[Effect], now: int) -> list[Effect]:
        """Let out what is for the driver; what is for a user goes to our clients."""
        out: list[Effect] = [effect for effect in effects if isinstance(effect, _FOR_DRIVER)]
        shown = [effect for effect in effects if not isinstance(effect, _FOR_DRIVER)]
        if any(isinstance(effect, Cut) for effect in shown):
            # We were too slow for the server: subscribe to everything again, a little later.
            self._again_at = now + 1 + int(self._draw() * self._settings.restart_spread_us)
        if shown:
            out += self._upwards(self.down.show(shown, self.up.watching.copy, now), now)
        return out

    def _upwards(self, effects: Sequence[Effect], now: int) -> list[Effect]:
        """Let out what is for our clients, and forward to the server what they want."""
        out: list[Effect] = [effect for effect in effects if isinstance(effect, _TO_CLIENTS)]
        copy = self.up.watching.copy
        # Taken before the loop, because what is forwarded may come back down and forward more.
        forwarded, self.down.forwarded = self.down.forwarded, []
        for client, given in forwarded:
            if self._apart and isinstance(given, _PUBLISHING):
                out.append(OnBehalf(client, given))
                continue
            unseen: list[str] = []
            if isinstance(given, UnsubscribeFilter):
                view = copy.views.get(given.subscription)
                unseen = [] if view is None else list(view.shown)
            out += self._downwards(self.up.receive(given, now), now)
            if isinstance(given, UnsubscribeFilter):
                # Without the subscription nobody reports what only it had shown.
                out += self._upwards(self.down.follow(unseen, copy, now), now)
        return out
