"""Is what users saw of a map right? All the time, and once everything is healed.

All the time: nothing twice, nothing back, nothing that does not match. In the end: every view is
the map, filtered by its query and by what its client may see; only a client with a bandwidth limit
may be told that its view is incomplete, and then what it shows is right.
"""

from collections.abc import Iterable

from roamcast.channels.client.copy import Appeared, Changed, Left
from roamcast.channels.client.map_client import MapClient
from roamcast.channels.client.watching import Current
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect
from roamcast.sim.checkers import Violation
from roamcast.sim.host import Host


class Shown:
    """What users saw: no duplicate, no step back, nothing that does not match."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int, str, str], tuple[int, int]] = {}
        self._there: dict[tuple[str, int, str], set[str]] = {}
        self.complete: dict[tuple[str, int, str], bool] = {}

    def forget(self, host: Host, subscription: str) -> None:
        """The user placed or withdrew the subscription: its view begins anew."""
        key = (host.name, host.boots, subscription)
        self._there.pop(key, None)
        self.complete.pop(key, None)
        for one in [one for one in self._last if one[:3] == key]:
            del self._last[one]

    def see(self, host: Host, effect: Effect, wanted: str) -> None:
        """One effect of a client for its user."""
        if isinstance(effect, Current):
            key = (host.name, host.boots, effect.subscription)
            self.complete[key] = effect.complete
        elif isinstance(effect, Left):
            key = (host.name, host.boots, effect.subscription)
            if effect.vid not in self._there.get(key, ()):
                raise Violation("no duplicate", f"{key} lost {effect.vid}, which was not shown")
            self._there[key].discard(effect.vid)
        elif isinstance(effect, Appeared | Changed):
            key = (host.name, host.boots, effect.subscription)
            vid, there = effect.context.vid, self._there.setdefault(key, set())
            if (vid in there) is isinstance(effect, Appeared):
                raise Violation("no duplicate", f"{key}: {type(effect).__name__} {vid}")
            there.add(vid)
            number = (effect.epoch, effect.number)
            again = isinstance(effect, Appeared) and self._last.get((*key, vid)) == number
            if not again and number <= self._last.get((*key, vid), (0, 0)):
                raise Violation("order per object", f"{key}: {vid} went back to {number}")
            self._last[*key, vid] = number
            if wanted and not Filter.parse(wanted).matches(effect.context):
                raise Violation("only what matches", f"{key}: {effect.context} for {wanted}")

    def wrong(
        self, host: Host, client: MapClient, visible: Iterable[Context | None], *, limited: bool
    ) -> str:
        """Say how a client's views differ from what it may see of the map, "" if they do not."""
        seen = [one for one in visible if one is not None]
        for name, text in client.wanted.items():
            wanted = Filter.parse(text)
            right = {one.vid: one for one in seen if wanted.matches(one)}
            shown = client.watching.copy.shown(name)
            if not client.watching.complete(name):
                return f"{name} is not complete"
            partial = self.complete.get((host.name, host.boots, name)) is False
            if partial and not limited:
                return f"{name} ({text}) is called incomplete, and there is no limit"
            stale = [vid for vid, one in shown.items() if right.get(vid) != one]
            lacking = [] if partial else [vid for vid in right if vid not in shown]
            if stale or lacking:
                return f"{name} ({text}) lacks {sorted(lacking)}, has stale {sorted(stale)}"
        return ""
