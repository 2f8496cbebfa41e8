"""How much does each part of a tree want? f(v) out of journals, in the form `roamcast place` reads.

f(v) of CBM counts the distinct items that a subtree wants; an item is an update of a broker. The
tree is given, or it is the one the journals know: a root, its brokers, and their clients as leaves.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from roamcast.errors import InputError, LimitError, TreeError
from roamcast.placement.tree import Tree

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LEAVES_MAX = 10_000_000
Place = tuple[str, str, str]
"""(run, broker, client): where an update is wanted."""


class TreeOfHosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A dissemination tree and which vertex each client is, or hangs under."""

    parent: list[int]
    hosts: dict[str, int]


def read_tree(path: Path) -> TreeOfHosts:
    """Read {"parent": [-1, 0, …], "hosts": {"client-1": 3, …}}."""
    try:
        tree = msgspec.json.decode(path.read_bytes(), type=TreeOfHosts)
        Tree.of(tree.parent)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=str(path)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TreeError(f"not a tree of hosts: {error}", source=str(path)) from None
    except InputError as error:
        raise error.located(str(path)) from None
    for host, vertex in tree.hosts.items():
        if not 0 <= vertex < len(tree.parent):
            raise TreeError(f"{host!r} is at vertex {vertex}, which is none", source=str(path))
    return tree


def places_of(pairs: "DataFrame") -> "DataFrame":
    """Give where updates are wanted: (run, host, receiver), each once."""
    return pairs.select("run", "host", "receiver").distinct()


def star_of_brokers(places: list[Place]) -> tuple[list[int], dict[Place, int]]:
    """Make the tree that journals know: vertex 0, then the brokers, then their clients."""
    if len(places) > LEAVES_MAX:
        raise LimitError(f"a tree has at most {LEAVES_MAX} clients")
    brokers = sorted({(run, broker) for run, broker, _ in places})
    numbers = {broker: number for number, broker in enumerate(brokers, 1)}
    parent = [-1] + [0] * len(brokers)
    vertices = {}
    for place in sorted(places):
        vertices[place] = len(parent)
        parent.append(numbers[place[:2]])
    return parent, vertices


def located(tree: TreeOfHosts, places: list[Place]) -> dict[Place, int]:
    """Give each place its vertex of a tree; a client it does not name is an error."""
    missing = sorted({client for _, _, client in places if client not in tree.hosts})
    if missing:
        raise TreeError(f"the tree has no vertex for {missing[0]!r} ({len(missing)} in all)")
    return {place: tree.hosts[place[2]] for place in places}


def flows(
    spark: "SparkSession", pairs: "DataFrame", parent: list[int], vertices: Mapping[Place, int]
) -> "DataFrame":
    """Give (vertex, flow): the distinct updates that somebody at or below a vertex wants."""
    from pyspark.sql import functions as f

    above = [(*place, _upwards(parent, vertex)) for place, vertex in vertices.items()]
    ways = spark.createDataFrame(
        above, "run string, host string, receiver string, vertices array<int>"
    )
    joined = pairs.join(f.broadcast(ways), ["run", "host", "receiver"], "inner")
    each = joined.select("run", "host", "epoch", "number", f.explode("vertices").alias("vertex"))
    counted = each.groupBy("vertex").agg(_distinct_updates().alias("flow"))
    return counted.select("vertex", "flow")


def demand(pairs: "DataFrame") -> "DataFrame":
    """Give where each client's traffic arises: at which broker, of objects at which place."""
    counted = pairs.groupBy("run", "receiver", "host", "place").agg(
        _distinct_updates().alias("updates")
    )
    return counted.select("run", "receiver", "host", "place", "updates")


def _distinct_updates() -> "Column":
    from pyspark.sql import functions as f

    return f.count_distinct("run", "host", "epoch", "number")


def _upwards(parent: list[int], vertex: int) -> list[int]:
    way = [vertex]
    while parent[way[-1]] >= 0:
        way.append(parent[way[-1]])
    return way


def tree_document(parent: list[int], found: list[dict[str, Any]]) -> dict[str, Any]:
    """Give TREE.json: the tree and its flows."""
    flow = [0] * len(parent)
    for row in found:
        flow[row["vertex"]] = row["flow"]
    return {"parent": parent, "flow": flow}
