"""What should the map hold after servers fell, sides parted and met again? The newest of all said.

`Truth` knows what users did and nothing of servers: of everything said about an object, the version
with the latest stamp counts, as if there had been one map all the time. A client that crashed has
forgotten what it said, and nobody can know how far it had come: such objects are only held to be
the same for everybody.
"""

import msgspec

from roamcast.channels.client.map_client import MapClient
from roamcast.channels.server.messages import context_of
from roamcast.model.contexts import Context
from roamcast.sim.host import Host
from roamcast.sim.world import World


class Utterance(msgspec.Struct, frozen=True):
    """What a client's user said about an object, and in which life of the client."""

    stamp: int
    client: str
    boots: int
    context: Context | None = None


class Truth:
    """Everything that users published and cancelled, by vid."""

    def __init__(self) -> None:
        self._said: dict[str, list[Utterance]] = {}
        self._stamps: dict[tuple[str, int], int] = {}

    def say(self, host: Host, vid: str, context: Context | None, now: int) -> None:
        """A user publishes or cancels now."""
        life = (host.name, host.boots)
        self._stamps[life] = stamp = max(now, self._stamps.get(life, 0) + 1)
        self._said.setdefault(vid, []).append(Utterance(stamp, *life, context))

    def contexts(self, world: World) -> dict[str, Context]:
        """Give the map as it must be, once everybody has told everything."""
        published: dict[str, list[tuple[int, str, Context]]] = {}
        for host in world.hosts.values():
            if isinstance(host.machine, MapClient):
                for vid, one in host.machine.published.items():
                    version = (one.stamp, host.name, context_of(one.body))
                    published.setdefault(vid, []).append(version)
        found = {}
        for vid, said in self._said.items():
            newest = max(said, key=lambda one: (one.stamp, one.client))
            right = newest.context
            if any(world.hosts[one.client].boots != one.boots for one in said):
                held = max(published.get(vid, ()), key=lambda one: one[:2], default=None)
                right = None if held is None else held[2]
            if right is not None:
                found[vid] = right
        return found


def rivals(world: World) -> str:
    """Say who still publishes what somebody else has a newer state of, "" if nobody does."""
    publishers: dict[str, str] = {}
    for host in world.hosts.values():
        if isinstance(host.machine, MapClient):
            for vid in host.machine.published:
                if vid in publishers:
                    return f"{publishers[vid]} and {host.name} publish {vid}"
                publishers[vid] = host.name
    return ""
