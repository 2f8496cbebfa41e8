"""OO's producers and consumers at their home brokers: path lengths and loads over time.

A client looks for its nearest broker once a discovery period; its home then chooses between itself
and that one (`choose_home`): by the mean path from the producers and the way to the client, and by
load where brokers have a limit. An event goes from the producer to its home, over the overlay to
the consumer's home, and to the consumer.
"""

from typing import Any

import msgspec
import numpy as np

from roamcast.lab._oo import (
    NEIGHBOURS,
    Floats,
    Ints,
    RoamingOverlay,
    Trace,
    follow,
    path_lengths,
    shortest,
)
from roamcast.overlay.homes.choice import HomeCandidate, LoadGauge, LoadState, choose_home

UNBOUNDED = float("inf")


class Roles(msgspec.Struct, frozen=True):
    """Which nodes are brokers (the first ones), producers and consumers."""

    brokers: int
    producers: Ints
    consumers: Ints


OO_ROLES = Roles(20, np.arange(20, 30), np.arange(30, 90))
"""20 brokers, 10 producers, 60 consumers of 100 nodes."""

OO_SMALL = Roles(5, np.arange(15, 20), np.arange(15))
"""20 nodes: 5 brokers on nodes of the 15 consumers, 5 producers."""


class Lengths(msgspec.Struct, frozen=True):
    """Paths among brokers in each second, under each way to renew the overlay."""

    static: Floats
    opportunistic: Floats
    best: Floats


def broker_lengths(found: Trace, roles: Roles, seed: int, update_s: int) -> Lengths:
    """Compute the paths once; homes are then chosen on top of them.

    Best: the overlay is renewed at every change, and paths are the shortest by physical hops.
    """
    hops = found.hops[:, : roles.brokers, : roles.brokers]
    overlay = RoamingOverlay(hops[0], NEIGHBOURS, np.random.default_rng(seed))
    static = path_lengths(overlay.trees(), hops)
    fresh = shortest(np.stack([overlay.weights(one) for one in hops]))
    return Lengths(static, follow(overlay, hops, update_s), fresh)


def followed_lengths(found: Trace, roles: Roles, seed: int, update_s: int) -> Floats:
    """Compute the paths of the overlay that follows the network alone."""
    hops = found.hops[:, : roles.brokers, : roles.brokers]
    overlay = RoamingOverlay(hops[0], NEIGHBOURS, np.random.default_rng(seed))
    return follow(overlay, hops, update_s)


class ClientHomes:
    """The homes of all clients of one run."""

    def __init__(
        self,
        found: Trace,
        roles: Roles,
        lengths: Floats,
        *,
        discovery_s: int | None,
        limit: float = UNBOUNDED,
        share: float = 0.0,
        low: float | None = None,
        by_path: bool = True,
    ) -> None:
        """`discovery_s`: None if homes never change; `share`: load of one consumer.

        A broker at its `limit` takes nobody until its load is at most `low`. Without `by_path` only
        the way from home to client counts, not the one from the producers.
        """
        self._found = found
        self._roles = roles
        self._lengths = lengths
        self._limit = limit
        self._share = share
        self._by_path = by_path
        clients = np.concatenate([roles.producers, roles.consumers])
        self._clients = clients
        self._home = np.full(len(clients), -1)
        high = min(limit, 1e9) + 1e-12  # a broker may reach its limit, not exceed it
        self._gauges = [
            LoadGauge(high, low if low is not None else high) for _ in range(roles.brokers)
        ]
        self.moves = 0
        self.load_max = np.zeros(found.seconds + 1)
        """Load of the most loaded broker in each second."""
        history = np.empty((found.seconds + 1, len(clients)), dtype=np.int64)
        for second in range(found.seconds + 1):
            if second == 0 or (discovery_s and second % discovery_s == 0):
                self._search(second)
            history[second] = self._home
            self.load_max[second] = self._loads().max()
        self.hops = self._means(history)
        """Mean path from producer to consumer in each second."""

    def _search(self, second: int) -> None:
        """Let every client look for its nearest broker, producers first."""
        producers = len(self._roles.producers)
        nothing = np.zeros(self._roles.brokers)
        away = self._found.hops[second][self._clients, : self._roles.brokers]
        # Where only the way to the client counts, nobody moves who has no nearer broker.
        now = np.where(self._home >= 0, away[np.arange(len(away)), self._home], np.inf)
        nearer = self._by_path | (away.min(axis=1) < now) | (self._home < 0)
        for client in np.flatnonzero(nearer[:producers]).tolist():
            self._discover(client, nothing, away[client])
        before = self._before(second) if self._by_path else nothing
        for client in (producers + np.flatnonzero(nearer[producers:])).tolist():
            self._discover(client, before, away[client])

    def _loads(self) -> Floats:
        homes = self._home[len(self._roles.producers) :]
        counts = np.bincount(homes[homes >= 0], minlength=self._roles.brokers)
        loads: Floats = counts.astype(np.float64) * self._share
        return loads

    def _discover(self, client: int, before: Floats, away: Floats) -> None:
        """Let a client report the nearest broker that takes clients; its home chooses."""
        home = int(self._home[client])
        bounded = self._limit < UNBOUNDED and client >= len(self._roles.producers)
        near = int(away.argmin())
        if bounded:
            self._measure(home)
            order = np.argsort(away, kind="stable").tolist()
            near = next((broker for broker in order if self._free(broker)), home)
        current = self._candidate(home, before, away) if home >= 0 else None
        found = [] if near == home else [self._candidate(near, before, away)]
        choice = choose_home(current, found)
        if choice.broker and int(choice.broker) != home:
            self._home[client] = int(choice.broker)
            self.moves += home >= 0
        elif home < 0:  # nobody in reach: the least loaded one, until the next discovery
            self._home[client] = int(self._loads().argmin())

    def _candidate(self, broker: int, before: Floats, away: Floats) -> HomeCandidate:
        return HomeCandidate(str(broker), float(before[broker]), float(away[broker]))

    def _measure(self, home: int) -> None:
        """Measure what each broker would have with this consumer."""
        for broker, load in enumerate(self._loads()):
            with_it = load + (self._share if broker != home else 0)
            self._gauges[broker].measure(with_it - 1e-9)

    def _free(self, broker: int) -> bool:
        return self._gauges[broker].state is LoadState.OPEN

    def _before(self, second: int) -> Floats:
        """Give the mean path from the producers' homes to each broker that can be reached."""
        homes = self._home[: len(self._roles.producers)]
        paths = self._lengths[second, homes[homes >= 0]]
        finite = np.isfinite(paths)
        total: Floats = np.where(finite, paths, 0.0).sum(axis=0)
        return np.where(finite.any(axis=0), total / np.maximum(finite.sum(axis=0), 1), np.inf)

    def _means(self, history: Ints) -> Floats:
        """Average over the pairs of producer and consumer that have a path."""
        producers = len(self._roles.producers)
        seconds = np.arange(len(history))[:, None]
        first, last = history[:, :producers], history[:, producers:]
        paths = (
            self._found.hops[seconds, self._roles.producers, first][:, :, None]
            + self._lengths[seconds[:, :, None], first[:, :, None], last[:, None, :]]
            + self._found.hops[seconds, self._roles.consumers, last][:, None, :]
        )
        finite = np.isfinite(paths)
        total: Floats = np.where(finite, paths, 0.0).sum(axis=(1, 2))
        counts = finite.sum(axis=(1, 2))
        return np.where(counts > 0, total / np.maximum(counts, 1), np.nan)


def approaches(
    found: Trace, roles: Roles, lengths: Lengths, discovery_s: int
) -> dict[str, dict[str, Any]]:
    """Run the paper's four approaches; give the mean hops over time, and moves."""
    cases: dict[str, tuple[Floats, int | None]] = {
        "static": (lengths.static, None),
        "static-opportunistic": (lengths.static, discovery_s),
        "opportunistic-opportunistic": (lengths.opportunistic, discovery_s),
        "best": (lengths.best, 1),
    }
    made = {}
    for name, (paths, period) in cases.items():
        homes = ClientHomes(found, roles, paths, discovery_s=period)
        made[name] = {"hops": homes.hops, "moves": homes.moves}
    return made
