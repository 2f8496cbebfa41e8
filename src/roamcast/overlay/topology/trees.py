"""Trees over a graph of nodes: the same at every node that knows the same graph.

A tree is breadth-first, so paths from its root are shortest; where several parents are as near, the
one whose name comes first is taken.
"""

from roamcast.overlay.topology.items import Graph

Tree = dict[str, str]
"""Nodes → their parents; the root is its own."""


def tree_from(graph: Graph, root: str) -> Tree:
    """Give the tree of shortest paths from a source; nodes out of reach are not in it."""
    parents = {root: root}
    level = [root]
    while level:
        following: list[str] = []
        for node in level:
            for other in graph.get(node, ()):
                if other not in parents:
                    parents[other] = node
                    following.append(other)
        following.sort()
        level = following
    return parents


def shared_tree(graph: Graph, member: str) -> Tree:
    """Give the one tree that all nodes within reach of a member share.

    Its root is the node whose name comes first: far from the shortest tree, but a link that comes
    or goes elsewhere moves few of its branches (0101).
    """
    return tree_from(graph, min(tree_from(graph, member)))


def branches(tree: Tree, node: str) -> dict[str, str]:
    """Say for every other node of a tree which of this node's tree links leads to it."""
    beside: dict[str, list[str]] = {}
    for child, parent in tree.items():
        if child != parent:
            beside.setdefault(parent, []).append(child)
            beside.setdefault(child, []).append(parent)
    hops: dict[str, str] = {}
    for link in beside.get(node, ()):
        hops[link] = link
        waiting = [link]
        while waiting:
            for other in beside[waiting.pop()]:
                if other != node and other not in hops:
                    hops[other] = link
                    waiting.append(other)
    return hops


def path_of(tree: Tree, node: str) -> list[str]:
    """Give the path from a tree's root to a node, both included; empty if there is none."""
    if node not in tree:
        return []
    path = [node]
    while tree[path[-1]] != path[-1]:
        path.append(tree[path[-1]])
    return path[::-1]
