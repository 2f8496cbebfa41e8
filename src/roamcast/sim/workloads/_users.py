"""What users gave to their clients, and what their clients told them: the truth of map workloads.

Nothing here is read from a machine. A user has one life with each boot of its client: it publishes,
subscribes and builds its views from the effects addressed to it. All the time: nothing appears
twice, goes back, or does not match. In the end every view is what all users publish, filtered by
the query and by what the user may see; only a user with a bandwidth limit may be told that its view
is incomplete, and then what it shows is right.
"""

from collections.abc import Iterable, Iterator

import msgspec

from roamcast.channels.client.copy import Appeared, Changed, Left
from roamcast.channels.client.map_client import SubscribeFilter, UnsubscribeFilter
from roamcast.channels.client.publications import PublishContext, UnpublishContext
from roamcast.channels.client.watching import Current, Cut, Overtaken, Pending, Refusal
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect
from roamcast.sim.checkers import Violation
from roamcast.sim.host import Host
from roamcast.sim.kernel import FAULT
from roamcast.sim.world import World

Given = PublishContext | UnpublishContext | SubscribeFilter | UnsubscribeFilter


class UserView(msgspec.Struct):
    """One subscription as its user sees it."""

    text: str
    filter: Filter
    shown: dict[str, Context]
    last: dict[str, tuple[int, int]]
    """Contexts, also those that left → (epoch, number) of the last state shown."""
    complete: bool | None = None
    """What the user was told of the current set; None: nothing yet."""


class Life(msgspec.Struct):
    """One user from a boot of its client to the next."""

    boots: int
    published: dict[str, Context]
    views: dict[str, UserView]
    pending: int = 0


class Users:
    """All users of a world, by the names of their hosts."""

    def __init__(self) -> None:
        self._lives: dict[str, Life] = {}

    def life(self, host: Host) -> Life:
        """Return a user's present life; with another boot of its client it begins anew."""
        life = self._lives.get(host.name)
        if life is None or life.boots != host.boots:
            life = self._lives[host.name] = Life(host.boots, {}, {})
        return life

    def give(self, world: World, host: Host, given: Given) -> None:
        """Let a user give something to its client, which is up."""
        life = self.life(host)
        match given:
            case PublishContext(context):
                life.published[context.vid] = context
            case UnpublishContext(vid):
                life.published.pop(vid, None)
            case SubscribeFilter(name, text):
                life.views[name] = UserView(text, Filter.parse(text), {}, {})
            case UnsubscribeFilter(name):
                life.views.pop(name, None)
        # At once: what a message of this very instant shows belongs to the subscription before.
        world.kernel.give(world.now, host, given, FAULT)

    def tell(self, host: Host, effect: Effect) -> None:
        """Take an effect that a client addressed to its user."""
        life = self.life(host)
        match effect:
            case Appeared() | Changed() | Left() | Current():
                view = life.views.get(effect.subscription)
                where = f"{host.name} {effect.subscription}"
                if view is None:
                    raise Violation("only what was asked for", f"{where}: {effect}")
                _show(view, where, effect)
            case Pending(count):
                life.pending = count
            case Refusal(kind, name):
                if kind == "subscribe":
                    life.views.pop(name, None)
                elif life.published.pop(name, None) is not None:
                    raise Violation("nothing sound is refused", f"{host.name}: {effect}")
            case Cut():
                life.views.clear()
            case Overtaken(vid):
                if life.published.pop(vid, None) is None:
                    raise Violation("no duplicate", f"{host.name} lost {vid}, which it had not")

    def published(self, hosts: Iterable[Host]) -> Iterator[tuple[Host, Context]]:
        """Give what the users of these hosts publish."""
        for host in hosts:
            for context in self.life(host).published.values():
                yield host, context

    def wrong(self, host: Host, visible: Iterable[Context | None], *, limited: bool) -> str:
        """Say how a user's views differ from what it may see of the map, "" if they do not."""
        life = self.life(host)
        seen = [one for one in visible if one is not None]
        if life.pending:
            return f"{life.pending} updates are pending"
        for name, view in life.views.items():
            right = {one.vid: one for one in seen if view.filter.matches(one)}
            if view.complete is None:
                return f"{name} was never called current"
            if not view.complete and not limited:
                return f"{name} ({view.text}) is called incomplete, and there is no limit"
            stale = [vid for vid, one in view.shown.items() if right.get(vid) != one]
            lacking = [vid for vid in right if vid not in view.shown] if view.complete else []
            if stale or lacking:
                return f"{name} ({view.text}) lacks {sorted(lacking)}, has stale {sorted(stale)}"
        return ""


def _show(view: UserView, where: str, effect: Appeared | Changed | Left | Current) -> None:
    """Take one change of a view, and check it."""
    if isinstance(effect, Current):
        view.complete = effect.complete
        return
    if isinstance(effect, Left):
        if view.shown.pop(effect.vid, None) is None:
            raise Violation("no duplicate", f"{where} lost {effect.vid}, which was not shown")
        return
    context, number = effect.context, (effect.epoch, effect.number)
    vid, appears = context.vid, isinstance(effect, Appeared)
    if (vid in view.shown) is appears:
        raise Violation("no duplicate", f"{where}: {type(effect).__name__} {vid}")
    # The same number again: it left a query's view by the clock alone; or its user has been moved
    # to another view class, which has a state of its own for the same update.
    again = view.last.get(vid) == number and (appears or view.shown[vid] != context)
    if not again and number <= view.last.get(vid, (0, 0)):
        raise Violation("order per object", f"{where}: {vid} went back to {number}")
    if not view.filter.matches(context):
        raise Violation("only what matches", f"{where}: {context} for {view.text}")
    view.shown[vid], view.last[vid] = context, number
