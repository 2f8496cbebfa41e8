"""The exchange: offers go over the tree, everything at first, and bad ones end the link."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from roamcast.model.machine import Effect
from roamcast.overlay.events import (
    CameByLink,
    CutLink,
    NeighbourDown,
    NeighbourFull,
    NeighbourReady,
    NeighbourUp,
    SendOnLink,
    TablesTouched,
    TreeChanged,
)
from roamcast.overlay.links.chunks import chunks_of
from roamcast.overlay.tables.areas import Areas
from roamcast.overlay.tables.exchange import PAGES_BURST, Exchange
from roamcast.overlay.tables.hearing import TableBounds
from roamcast.overlay.tables.messages import TableChunk, TableReceipt, TablesWanted
from roamcast.overlay.tables.table import Offer, TableEntry
from roamcast.sim.workloads._overlay_parts import area_at

B1, B2 = area_at("campus/b1"), area_at("campus/b2")


class One:
    """An exchange with one table, driven by hand."""

    def __init__(self, **more: Any) -> None:
        self.areas = Areas(linger_us=1_000, **more)
        self.exchange = Exchange((self.areas,))
        self.now = 0

    def give(self, event: Effect) -> Sequence[Effect]:
        return self.exchange.receive(event, self.now)

    def link(self, *names: str) -> list[Effect]:
        out: list[Effect] = []
        for name in names:
            out += self.give(NeighbourUp(name, 1, 0))
        return [*out, *self.give(TreeChanged(names))]

    def offer(self, link: str, offer: Offer, table: str = "areas") -> Sequence[Effect]:
        out: list[Effect] = []
        for number, (chunk, last) in enumerate(chunks_of(msgspec.msgpack.encode(offer))):
            out += self.give(CameByLink(link, TableChunk(table, number, chunk, last)))
        return out


def offers(effects: Sequence[Effect], link: str) -> list[Offer]:
    return [
        msgspec.msgpack.decode(effect.message.chunk, type=Offer)
        for effect in effects
        if isinstance(effect, SendOnLink)
        and effect.node == link
        and isinstance(effect.message, TableChunk)
    ]


def entry_of(place: str) -> TableEntry:
    one = One()
    one.areas.put("own", area_at(place))
    (offer,) = offers(one.link("x"), "x")
    return offer.add[0]


def test_a_link_of_the_tree_gets_everything_and_asks_for_everything() -> None:
    one = One()
    one.areas.put("own", B1)
    assert one.give(NeighbourUp("l", 1, 0)) == []  # not in the tree yet
    effects = one.give(TreeChanged(("l",)))
    assert SendOnLink("l", TablesWanted()) in effects
    (offer,) = offers(effects, "l")
    assert offer.full
    assert len(offer.add) == 1


def test_changes_follow_once_the_last_version_is_confirmed() -> None:
    one = One()
    (first,) = offers(one.link("l"), "l")
    one.areas.put("own", B1)
    assert offers(one.give(TablesTouched()), "l") == []
    receipt = TableReceipt("areas", first.version)
    (change,) = offers(one.give(CameByLink("l", receipt)), "l")
    assert (change.full, len(change.add)) == (False, 1)


def test_what_one_link_offers_goes_to_the_others_and_not_back() -> None:
    one = One()
    started = one.link("l", "r")
    for name in ("l", "r"):
        (first,) = offers(started, name)
        one.give(CameByLink(name, TableReceipt("areas", first.version)))
    effects = one.offer("l", Offer(7, True, 0, True, (entry_of("campus/b1"),)))
    assert SendOnLink("l", TableReceipt("areas", 7)) in effects
    assert offers(effects, "l") == []
    (told,) = offers(effects, "r")
    assert told.add == (entry_of("campus/b1"),)
    assert one.areas.beyond(B1, "r") == ["l"]


def test_offers_outside_the_tree_and_before_a_full_one_are_not_taken() -> None:
    one = One()
    one.give(NeighbourUp("l", 1, 0))
    assert one.offer("l", Offer(1, True, 0, True, (entry_of("campus/b1"),))) == []
    one.give(TreeChanged(("l",)))
    assert one.give(CameByLink("l", TableChunk("areas", 1, b"rest", True))) == []
    assert one.offer("l", Offer(2, False, 0, True, ())) == []
    assert one.offer("l", Offer(2, True, 1, True, ())) == []
    assert one.offer("l", Offer(3, True, 0, True, ()))


def test_what_is_due_is_sent_whatever_comes_at_that_moment() -> None:
    """Found by seed 909 of `filters`: what was not for it took the timer and sent nothing."""
    one = One()
    one.areas.put("own", B1)
    (first,) = offers(one.link("l"), "l")
    one.give(CameByLink("l", TableReceipt("areas", first.version)))
    one.areas.remove("own")
    assert offers(one.give(TablesTouched()), "l") == []  # it lingers
    one.now = one.exchange.deadline() or 0
    assert one.give(CameByLink("no link of the tree", TablesWanted())) == ()
    assert one.exchange.deadline() == one.now
    (gone,) = offers(one.exchange.advance(one.now), "l")
    assert len(gone.remove) == 1


def test_versions_of_a_neighbours_next_life_may_begin_anew() -> None:
    one = One()
    one.link("l")
    one.offer("l", Offer(900, True, 0, True, (entry_of("campus/b1"),)))
    one.give(NeighbourDown("l", "silent"))
    one.give(NeighbourUp("l", 2, 0))
    effects = one.offer("l", Offer(1, True, 0, True, (entry_of("campus/b2"),)))
    assert SendOnLink("l", TableReceipt("areas", 1)) in effects
    assert one.areas.beyond(B2, None) == ["l"]
    one.offer("l", Offer(2, False, 0, True, (entry_of("campus/b3"),)))
    assert one.areas.beyond(area_at("campus/b3"), None) == ["l"]


def test_when_everything_is_wanted_it_is_offered_again() -> None:
    one = One()
    one.areas.put("own", B1)
    one.link("l")
    (again,) = offers(one.give(CameByLink("l", TablesWanted())), "l")
    assert again.full
    assert again.page == 0


def test_entries_of_a_link_that_is_gone_linger_then_go() -> None:
    one = One()
    one.link("l", "r")
    one.offer("l", Offer(1, True, 0, True, (entry_of("campus/b1"),)))
    one.give(NeighbourDown("l", "silent"))
    assert one.areas.beyond(B1, None) == ["l", "r"]  # r has offered nothing: unknown means yes
    one.now = one.exchange.deadline() or 0
    one.exchange.advance(one.now)
    assert one.areas.beyond(B1, None) == ["r"]


@pytest.mark.parametrize(
    "bad",
    [
        Offer(5, True, 0, True, (TableEntry("k", b"junk"),)),
        Offer(5, True, 0, True, (), ("k",)),
        Offer(1, True, 0, True, ()),
        Offer(9, False, 0, True, ()),
        Offer(4, False, 3, True, ()),
    ],
)
def test_a_bad_offer_ends_the_link_and_nobody_else_notices(bad: Offer) -> None:
    one = One()
    one.link("l", "r")
    one.offer("l", Offer(3, True, 0, True, (entry_of("campus/b1"),)))
    one.offer("r", Offer(3, True, 0, True, ()))
    (cut,) = [effect for effect in one.offer("l", bad) if isinstance(effect, CutLink)]
    assert cut.node == "l"
    assert one.areas.beyond(B1, None) == ["l"]


def test_a_table_larger_than_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Areas, "bounds", TableBounds(5, 1_000_000))
    one = One()
    one.link("l")
    made = tuple(entry_of(f"campus/x{number}") for number in range(6))
    receipt = SendOnLink("l", TableReceipt("areas", 1))
    assert receipt in one.offer("l", Offer(1, True, 0, True, made[1:]))
    (cut,) = [e for e in one.offer("l", Offer(2, True, 0, True, made)) if isinstance(e, CutLink)]
    assert "5 entries" in cut.reason
    assert one.areas.beyond(area_at("campus/x5"), None) == ["l"]


@pytest.mark.parametrize(
    "chunks",
    [
        [TableChunk("areas", 0, b"\xc1", True)],
        [TableChunk("areas", 0, b"x", False), TableChunk("areas", 2, b"x", True)],
        [TableChunk("areas", n, bytes(48_000), False) for n in range(14)],
    ],
)
def test_chunks_that_are_garbage_end_the_link(chunks: list[TableChunk]) -> None:
    one = One()
    one.link("l")
    out = [effect for chunk in chunks for effect in one.give(CameByLink("l", chunk))]
    assert any(isinstance(effect, CutLink) for effect in out)


def test_a_full_link_gets_nothing_until_it_is_ready_and_many_pages_come_in_bursts() -> None:
    one = One(page_bytes=1)
    for number in range(PAGES_BURST + 3):
        one.areas.put(f"n{number}", area_at(f"campus/x{number}"))
    one.give(NeighbourUp("l", 1, 0))
    one.give(NeighbourFull("l"))
    assert offers(one.give(TreeChanged(("l",))), "l") == []
    first = offers(one.give(NeighbourReady("l")), "l")
    assert len(first) == PAGES_BURST
    one.now = one.exchange.deadline() or 0
    assert len(offers(one.exchange.advance(one.now), "l")) == 3


def test_an_offer_of_an_unknown_table_is_read_past() -> None:
    one = One()
    one.link("l")
    assert one.offer("l", Offer(1, True, 0, True, ()), table="newer") == []
