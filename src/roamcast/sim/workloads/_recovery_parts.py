"""What the map must hold after servers fell, sides parted and met again: the newest of all states.

`Truth` records what users gave and nothing of servers: of everything given about an object, the
state with the latest stamp counts, as if there had been one map all the time. Stamps are those of
the users' own clocks (decision 0026). A client that crashed has forgotten what it was given, and
nobody can know how far it had come: of such objects only what the users of now believe counts.
"""

from collections.abc import Sequence

import msgspec

from roamcast.model.contexts import Context
from roamcast.sim.host import Host
from roamcast.sim.workloads._users import Users
from roamcast.sim.world import World


class Utterance(msgspec.Struct, frozen=True):
    """A state, or a removal, that a user gave, and in which life of its client."""

    stamp: int
    client: str
    boots: int
    context: Context | None = None


class RecoveryTruth:
    """Everything that users published and cancelled, by vid."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self._given: dict[str, list[Utterance]] = {}
        self._stamps: dict[tuple[str, int], int] = {}

    def note(self, host: Host, vid: str, context: Context | None, now: int) -> None:
        """Record that a user publishes or cancels, when its clock shows `now`."""
        life = (host.name, host.boots)
        self._stamps[life] = stamp = max(now, self._stamps.get(life, 0) + 1)
        self._given.setdefault(vid, []).append(Utterance(stamp, *life, context))

    def contexts(self, world: World, hosts: Sequence[Host]) -> tuple[dict[str, Context], str]:
        """Give the map as users believe it, and how that cannot be, "" if it can.

        A user believes in what it published until it unpublishes it or is told of a newer state.
        """
        believed: dict[str, Context] = {}
        publishers: dict[str, str] = {}
        for host, context in self._users.published(hosts):
            vid = context.vid
            if vid in believed:
                return believed, f"{publishers[vid]} and {host.name} publish {vid}"
            believed[vid], publishers[vid] = context, host.name
        for vid, given in self._given.items():
            newest = max(given, key=lambda one: (one.stamp, one.client))
            crashed = any(world.hosts[one.client].boots != one.boots for one in given)
            if not crashed and believed.get(vid) != newest.context:
                return believed, f"{vid} is {newest}, and users believe {believed.get(vid)}"
        return believed, ""
