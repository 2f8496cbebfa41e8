"""The choice of access nodes and trusted nodes among routers (TCC section IV, decision 0033).

TCC sorts nodes by degree and draws 7,000 of 10,000 as access nodes "such that 80 % … were selected
from the 20 % of nodes with the lowest degree". That is impossible: 20 % of the nodes are 2,000. We
keep the intention: a Zipf law over the ranks with 80 % of its weight on the lowest 20 %, and
weighted sampling without replacement. Trusted nodes are drawn uniformly, as printed; people choose
among them by a Zipf law under which 20 % of the trusted nodes serve 80 % of the people.
"""

import numpy as np

from roamcast.errors import LimitError
from roamcast.sim.topology.graph import Floats, Ints, Topology

TCC_ACCESS_NODES = 7_000
TCC_TRUSTED_NODES = 300


def zipf_exponent(count: int, head: float = 0.2, share: float = 0.8) -> float:
    """Return s such that of weights 1/rank^s the first `head` of the ranks have `share`.

    The share grows with s, so bisection finds it.
    """
    first = round(head * count)
    if not 0 < first < count or not first / count <= share < 1:
        raise LimitError(f"no Zipf law puts {share} of the weight on {head} of {count} ranks")
    ranks = np.log(np.arange(1, count + 1))
    low, high = 0.0, 64.0
    for _ in range(200):
        middle = (low + high) / 2
        weights = np.exp(-middle * ranks)
        low, high = (
            (middle, high) if weights[:first].sum() < share * weights.sum() else (low, middle)
        )
    return (low + high) / 2


def zipf_weights(count: int, head: float = 0.2, share: float = 0.8) -> Floats:
    """Return the weights of that law, summing to 1, the heaviest first."""
    ranks = np.arange(1, count + 1, dtype=np.float64)
    weights: Floats = ranks ** -zipf_exponent(count, head, share)
    weights /= weights.sum()
    return weights


def access_nodes(topology: Topology, count: int, generator: np.random.Generator) -> Ints:
    """Draw access nodes, those of low degree more likely; ascending.

    Nodes of equal degree are ranked at random. Sampling without replacement by exponential keys:
    the `count` smallest of E/weight, E standard exponential (Efraimidis and Spirakis 2006).
    """
    if not 0 <= count <= topology.nodes:
        raise LimitError(f"cannot choose {count} of {topology.nodes} nodes")
    lots = generator.permutation(topology.nodes)
    by_degree = np.lexsort((lots, topology.degrees))
    keys = generator.standard_exponential(topology.nodes) / zipf_weights(topology.nodes)
    chosen = np.argsort(keys, kind="stable")[:count]
    return np.sort(by_degree[chosen])


def trusted_nodes(topology: Topology, count: int, generator: np.random.Generator) -> Ints:
    """Draw trusted nodes uniformly; their order is their popularity, the most popular first."""
    if not 0 <= count <= topology.nodes:
        raise LimitError(f"cannot choose {count} of {topology.nodes} nodes")
    return generator.choice(topology.nodes, size=count, replace=False).astype(np.int64)


def choose_trusted(trusted: Ints, people: int, generator: np.random.Generator) -> Ints:
    """Let each person choose a trusted node by popularity."""
    return generator.choice(trusted, size=people, p=zipf_weights(len(trusted)))
