"""Places subscriptions through sessions of one broker and updates a context; prints CPU seconds.

A program of its own, so that `bench.subscriptions` can run it on an older commit's package as well:
it uses nothing but the broker and the filters.
"""

import json
import sys
import time
from collections.abc import Iterable
from typing import Any

from roamcast.broker import Broker, Failed, OpenSession, PublishFor, SetRules, SubscribeSession
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.sessions.settings import HubSettings
from roamcast.identity.rules import Rule, Viewer
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Store, Stored

PER_SESSION = 1_000
START_US = 1_700_000_000_000_000


class Load:
    """One broker, with a disk that stores at once."""

    def __init__(self) -> None:
        self.now = START_US
        self.broker = Broker(
            "bench",
            epoch=1,
            now=self.now,
            load=lambda *_: {},
            map_settings=MapSettings(),
            hub_settings=HubSettings(
                sessions_max=100_000, subscriptions_per_session_max=PER_SESSION
            ),
        )
        self._ticket = 0

    def give(self, make: Any) -> None:
        """Give an input with the next ticket, and store what it writes."""
        self._ticket += 1
        self.now += 1_000
        waiting: Iterable[Any] = self.broker.receive(make(self._ticket), self.now)
        while waiting:
            more: list[Any] = []
            for effect in waiting:
                if isinstance(effect, Failed):
                    raise effect.error
                if isinstance(effect, Store):
                    more += self.broker.receive(Stored(effect.token), self.now)
            waiting = more

    def publish(self, vid: str, room: int) -> None:
        """Publish a printer in a room."""
        context = Context(vid, f"b0/{room}", None, {"type": "printer"}, self.now)
        self.give(lambda ticket: PublishFor(ticket, "ada", context))

    def subscribe(self, session: str, name: str, text: str) -> None:
        """Read a filter and place it, at its price."""
        wanted = Filter.parse(text)
        if hasattr(self.broker, "price"):
            self.broker.price(Viewer("crowd"), wanted, self.now)
        self.give(lambda ticket: SubscribeSession(ticket, session, name, wanted))


def placed(subscriptions: int, contexts: int) -> list[float]:
    """Place subscriptions on a map of some contexts; give the CPU seconds of each thousand."""
    load = Load()
    for number in range(contexts):
        load.publish(f"v{number}", number)
    spent = []
    for session in range(subscriptions // PER_SESSION):
        name = f"crowd#{session}"
        load.give(lambda ticket, name=name: OpenSession(ticket, name, Viewer("crowd")))
        began = time.process_time()
        for number in range(PER_SESSION):
            where = f"type = 'printer' AND place = 'b{session}/{number}'"
            load.subscribe(name, str(number), where)
        spent.append(time.process_time() - began)
    return spent


def updated(viewers: int, updates: int, *, named: bool, interested: bool) -> float:
    """Give the CPU seconds of an update with so many viewers, named by rules or not.

    `interested`: all of them watch the place where it happens.
    """
    load = Load()
    if named:
        for first in range(0, viewers, 100):
            names = tuple(f"viewer-{number}" for number in range(first, min(first + 100, viewers)))
            rules = (Rule(viewers=names, precision="exact"),)
            vid = f"private-{first}"
            load.give(lambda ticket, vid=vid, rules=rules: SetRules(ticket, "ada", vid, rules))
    for number in range(viewers):
        name = f"viewer-{number}"
        load.give(lambda ticket, name=name: OpenSession(ticket, name, Viewer(name)))
        room = "b0" if interested else f"b{number + 1}"
        load.subscribe(name, "1", f"within(place, '{room}')")
    for number in range(10):
        load.publish(f"v{number}", number)
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        for number in range(updates):
            load.publish(f"v{number % 10}", number % 7)
        best = min(best, (time.process_time() - began) / updates)
    return best


if __name__ == "__main__":
    what = json.loads(sys.argv[1])
    print(json.dumps({"spent": globals()[what.pop("run")](**what)}))  # noqa: T201
