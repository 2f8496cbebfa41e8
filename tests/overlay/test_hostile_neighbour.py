"""A linked neighbour that does its worst: its link ends with a reason, and nobody else notices."""

from collections.abc import Callable, Iterator

import msgspec
import pytest

from roamcast.model.addresses import Neighbour
from roamcast.model.areas import EVERYWHERE, Area, Patch
from roamcast.model.machine import Effect, Send
from roamcast.model.wire import Message
from roamcast.overlay.events import SendOnLink
from roamcast.overlay.links.chunks import chunks_of
from roamcast.overlay.links.messages import LinkFrame
from roamcast.overlay.tables import exchange
from roamcast.overlay.tables.areas import Areas
from roamcast.overlay.tables.digest_table import digest_of
from roamcast.overlay.tables.hearing import TableBounds
from roamcast.overlay.tables.messages import TableChunk
from roamcast.overlay.tables.table import PAGE_ENTRIES_MAX, Offer, TableEntry
from roamcast.overlay.topology.items import LinkItem
from roamcast.overlay.topology.messages import ITEMS_MAX, TopologyItems
from roamcast.overlay.topology.topology import TopologySettings
from roamcast.sim.workloads._overlay_parts import area_at
from roamcast.sim.workloads.overlay import SETTINGS
from tests.overlay_net import Net, OneNode, beside

HONEST = area_at("campus/honest")
FEW = msgspec.structs.replace(SETTINGS, topology=TopologySettings(items_max=2_000))
ENTRIES = 3_000
"""Bounds of a node that is soon full; the real ones differ in number alone."""


class Scene(Net):
    """An honest node, the node in the middle, and one that does its worst."""

    def __init__(self) -> None:
        names = {"honest": ("middle",), "middle": ("honest", "worst"), "worst": ("middle",)}
        made = []
        for name, near in names.items():
            areas = Areas(linger_us=1_000_000)
            areas.put("own", area_at(f"campus/{name}"))
            made.append(OneNode(name, beside(*near), tables=(areas,), settings=FEW))
        super().__init__(*made)
        self.run(3_000_000)
        assert self.middle.links.up() == ["honest", "worst"]
        self.began = self.middle.links._neighbours["honest"].session

    @property
    def middle(self):  # type: ignore[no-untyped-def]
        return self.nodes["middle"].overlay

    def send(self, *effects: Effect) -> None:
        """Let the worst one send what its parts would never."""
        self._perform(self.nodes["worst"], effects)

    def say(self, *messages: Message) -> None:
        """Let it say something over its link, in its turn."""
        links = self.nodes["worst"].overlay.links
        for message in messages:
            self.send(*links.receive(SendOnLink("middle", message), self.now))

    def offer(self, offer: Offer) -> None:
        pieces = enumerate(chunks_of(msgspec.msgpack.encode(offer)))
        self.say(*(TableChunk("areas", number, chunk, last) for number, (chunk, last) in pieces))

    @property
    def version(self) -> int:
        """The version of the areas that the middle last heard from it."""
        incoming = self.middle.exchange._incoming["areas", "worst"]
        return incoming.upto - (incoming.shift or 0)


def garbage(scene: Scene) -> None:
    session = scene.nodes["worst"].overlay.links._neighbours["middle"].session
    assert session is not None
    scene.send(*session.send(b"\xc1 garbage", scene.now))


def flood(scene: Scene) -> None:
    session = scene.nodes["worst"].overlay.links._neighbours["middle"].session
    assert session is not None
    frame = LinkFrame(session.session, 0)
    scene.send(*(Send(Neighbour("middle"), frame) for _ in range(21_000)))


def area_of_no_place(scene: Scene) -> None:
    value = msgspec.msgpack.encode(Area((Patch(boxes=((9.0, 50.0, 8.0, 40.0),)),)))
    entry = TableEntry(digest_of(value), value)
    scene.offer(Offer(scene.version + 1, False, 0, True, (entry,)))


def old_version(scene: Scene) -> None:
    scene.offer(Offer(scene.version, True, 0, True, ()))
    scene.offer(Offer(scene.version - 1, True, 0, True, ()))


def million_entries(scene: Scene) -> None:
    version = scene.version + 1
    for page, entries in enumerate(_pages()):
        scene.offer(Offer(version, True, page, False, entries))
        scene.run(200_000)
        if "worst" not in scene.middle.links.up():
            return


def _pages() -> Iterator[tuple[TableEntry, ...]]:
    for page in range(1_000):
        values = [
            msgspec.msgpack.encode(area_at(f"x/{page}/{number}"))
            for number in range(PAGE_ENTRIES_MAX)
        ]
        yield tuple(TableEntry(digest_of(value), value) for value in values)


def million_links(scene: Scene) -> None:
    for page in range(1_100):
        made = (LinkItem(f"n{page}", f"m{number}", 1, 1, True) for number in range(ITEMS_MAX))
        scene.say(TopologyItems(tuple(made)))
        scene.run(100_000)
        if "worst" not in scene.middle.links.up():
            return


def half_an_offer(scene: Scene) -> None:
    scene.say(TableChunk("areas", 0, b"x", False))
    scene.run(6_000_000)


def silence(scene: Scene) -> None:
    scene.cut |= {("worst", "middle")}
    scene.run(20_000_000)


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        (garbage, "garbage"),
        (flood, "flood"),
        (area_of_no_place, "areas: a box"),
        (old_version, "areas: "),
        (million_entries, f"{ENTRIES} entries"),
        (million_links, "at most 2000 ends"),
        (half_an_offer, "stalled in the middle of an offer"),
        (silence, "silent"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
@pytest.mark.slow
def test_its_link_ends_with_a_reason_and_nobody_else_notices(
    does: Callable[[Scene], None], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "PATIENCE_US", 5_000_000)
    monkeypatch.setattr(Areas, "bounds", TableBounds(ENTRIES, 16 * 1024 * 1024))
    scene = Scene()
    does(scene)
    scene.run(200_000)
    told = [one for one in scene.steps("middle") if one.startswith("down: ")]
    assert reason in told[0]
    assert scene.middle.links._neighbours["honest"].session is scene.began
    assert "honest" in scene.middle.exchange.tables["areas"].beyond(HONEST, None)
    assert not any("down" in one for one in scene.steps("honest"))


def test_one_that_claims_everything_gets_more_and_takes_nothing_from_others() -> None:
    scene = Scene()
    value = msgspec.msgpack.encode(EVERYWHERE)
    scene.offer(Offer(scene.version + 1, False, 0, True, (TableEntry(digest_of(value), value),)))
    scene.run(1_000_000)
    assert scene.middle.exchange.tables["areas"].beyond(HONEST, None) == ["honest", "worst"]
    assert scene.middle.links.up() == ["honest", "worst"]
