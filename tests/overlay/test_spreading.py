"""What a node knows of the others, as far as casts go."""

from types import SimpleNamespace
from typing import Any

from roamcast.overlay.casts.settings import CastSettings
from roamcast.overlay.casts.spreading import Spreading
from roamcast.overlay.topology.items import LinkItem


class Around:
    """A topology of which nodes come and go."""

    def __init__(self) -> None:
        self.items: dict[str, LinkItem] = {}
        self.topology = SimpleNamespace(tree={"n": "n"}, table=SimpleNamespace(items=self.items))
        overlay: Any = SimpleNamespace(
            links=SimpleNamespace(node="n", neighbours={}),
            exchange=SimpleNamespace(tables={}, links={}),
            topology=self.topology,
        )
        self.spreading = Spreading(overlay, CastSettings(), 0)

    def comes(self, node: str, epoch: int, now: int) -> None:
        self.items[node] = LinkItem(node, "n", epoch, 1, True)
        self.spreading.learn([self.items[node]], now)
        self.topology.tree[node] = "n"
        self.spreading.changed(now)

    def goes(self, node: str, now: int) -> None:
        del self.items[node], self.topology.tree[node]
        self.spreading.changed(now)


def test_nodes_that_are_forgotten_leave_nothing_and_join_anew() -> None:
    around = Around()
    for number in range(50):
        around.comes(f"node {number}", 7, number)
        around.goes(f"node {number}", number)
    assert not around.spreading._epochs
    around.comes("node 3", 7, 99)
    assert around.spreading.joined_us == 99


def test_a_node_that_is_known_joins_anew_with_its_next_life_only() -> None:
    around = Around()
    around.comes("a", 7, 5)
    around.comes("b", 7, 6)
    for epoch, joined in ((7, 6), (6, 6), (8, 9)):
        around.spreading.learn([LinkItem("a", "n", epoch, 2, True)], 9)
        assert around.spreading.joined_us == joined
    assert around.spreading.missing() == []
    del around.topology.tree["a"]
    assert around.spreading.missing() == ["a"]
