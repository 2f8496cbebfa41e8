"""Custody: written before taken, taken before forgotten, known by id, bounded."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from roamcast.errors import LimitError, StoreError, UnreachableError
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.machine import Entry
from roamcast.overlay.custody.custody import Custody
from roamcast.overlay.custody.held import HELD, PARCEL_TABLE, ParcelState
from roamcast.overlay.custody.messages import TARGETS_MAX, ParcelAnswer, ParcelChunk, ParcelContent
from roamcast.overlay.events import (
    CameByLink,
    ParcelExpired,
    ParcelId,
    SendOnLink,
    SendParcel,
)
from roamcast.overlay.tables.areas import Areas
from roamcast.sim.workloads._overlay_parts import ParcelInbox
from roamcast.sim.workloads.overlay import SETTINGS
from tests.overlay_net import EPOCH, Net, OneNode, beside

SECOND = 1_000_000


def node(name: str, *others: str, **more: Any) -> OneNode:
    areas = Areas()
    return OneNode(name, beside(*others), tables=(areas,), users=(ParcelInbox(areas),), **more)


def with_custody(**more: int) -> Any:
    return msgspec.structs.replace(
        SETTINGS, custody=msgspec.structs.replace(SETTINGS.custody, **more)
    )


def line(*names: str, **more: Any) -> Net:
    """Nodes in a row."""
    near: dict[str, list[str]] = {name: [] for name in names}
    for one, other in pairwise(names):
        near[one].append(other)
        near[other].append(one)
    net = Net(*(node(name, *near[name], **more) for name in names))
    net.run(SECOND)
    return net


def counts(net: Net, name: str) -> dict[str, bytes]:
    return {key: value for key, value in net.nodes[name].disk.items() if key.startswith("inbox/")}


def custody(net: Net, name: str) -> Custody:
    return net.nodes[name].overlay.custody


def test_a_parcel_reaches_each_of_its_nodes_once_and_nobody_holds_it_after() -> None:
    net = line("a", "b", "c", "d")
    assert Acknowledged(1) in net.give("a", SendParcel(1, "note", ("a", "c", "d"), b"00000001"))
    net.run(SECOND)
    for name in ("a", "c", "d"):
        assert counts(net, name) == {"inbox/00000001": b"1"}
    assert counts(net, "b") == {}
    for name in net.nodes:
        assert not custody(net, name).held
        assert not [key for key in net.nodes[name].disk if key.startswith(HELD)]
    # Explicit multicast: one copy for both crosses the first link.
    sent = [m for s, to, m in net.frames if (s, to) == ("a", "b")]
    chunks = [m for m in sent if b"00000001" in msgspec.msgpack.encode(m)]
    assert len(chunks) == 1


def test_a_parcel_larger_than_a_frame_travels_in_chunks() -> None:
    net = line("a", "b", "c")
    body = b"00000002" + bytes(140_000)
    net.give("a", SendParcel(1, "note", ("c",), body))
    net.run(2 * SECOND)
    assert counts(net, "c") == {"inbox/00000002": b"1"}


def test_it_is_not_acknowledged_before_it_is_on_disk() -> None:
    net = line("a", "b")
    net.nodes["a"].refuses = True
    (failed,) = [
        one
        for one in net.give("a", SendParcel(1, "note", ("b",), b"00000001"))
        if isinstance(one, Failed)
    ]
    assert isinstance(failed.error, StoreError)
    net.nodes["a"].refuses = False
    net.run(SECOND)
    assert counts(net, "b") == {}
    assert not custody(net, "a").held


def test_a_node_whose_disk_fails_is_busy_and_the_sender_holds_it() -> None:
    net = line("a", "b", "c")
    net.nodes["b"].refuses = True
    net.give("a", SendParcel(1, "note", ("c",), b"00000001"))
    net.run(SECOND)
    assert custody(net, "a").held
    assert "busy: full" in net.steps("a")
    net.nodes["b"].refuses = False
    net.run(2 * SECOND)
    assert counts(net, "c") == {"inbox/00000001": b"1"}


@pytest.mark.parametrize("victim", ["a", "b", "c"])
def test_it_survives_a_crash_of_any_node_and_a_take_over(victim: str) -> None:
    net = line("a", "b", "c")
    net.cut = {("b", "c"), ("c", "b")}
    net.give("a", SendParcel(1, "note", ("c",), b"00000001"))
    net.run(500_000)
    old = net.nodes[victim]
    near = [
        name
        for name in net.nodes
        if (victim, name) in {("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")}
    ]
    # Another host with the same disk, in a newer epoch.
    net.nodes[victim] = node(victim, *near, epoch=EPOCH + 1_000, disk=dict(old.disk), now=net.now)
    net.cut = set()
    net.run(4 * SECOND)
    assert counts(net, "c") == {"inbox/00000001": b"1"}
    assert not any(custody(net, name).held for name in net.nodes)


def test_it_goes_another_way_when_the_topology_changes() -> None:
    ring = {"a": "bd", "b": "ac", "c": "bd", "d": "ac"}
    net = Net(*(node(name, *near) for name, near in ring.items()))
    net.run(SECOND)
    net.cut = {("b", "c"), ("c", "b"), ("a", "b"), ("b", "a")}
    net.give("a", SendParcel(1, "note", ("c",), b"00000001"))
    net.run(4 * SECOND)
    assert counts(net, "c") == {"inbox/00000001": b"1"}
    net.cut = set()
    net.run(4 * SECOND)
    assert counts(net, "c") == {"inbox/00000001": b"1"}


class AtB:
    """Node b of a — b, and what it answers to parcels that come by the link."""

    def __init__(self, **more: int) -> None:
        self.net = line("a", "b", settings=with_custody(**more))
        self.node = self.net.nodes["b"]

    def offer(
        self, parcel: ParcelId, *targets: str, body: bytes = b"00000009", age_us: int = 0
    ) -> Any:
        whole = msgspec.msgpack.encode(ParcelContent("note", targets, age_us, body))
        return self.came(ParcelChunk(parcel, whole, True))

    def came(self, message: Any) -> Any:
        """Give custody a message; carry out its writes and give what it says."""
        found = self.node.overlay.custody.receive(CameByLink("a", message), self.net.now)
        done = self.net._perform(
            self.node, self.node.perform(self.node.overlay.custody, found, self.net.now)
        )
        before = [one.message for one in found if isinstance(one, SendOnLink)]
        after = [
            effect.message.part.payload
            for effect in done
            if type(effect).__name__ == "Send" and getattr(effect.message, "part", None) is not None
        ]
        read = [msgspec.msgpack.decode(one[1:]) for one in after if isinstance(one, bytes)]
        return before, [one for one in read if one[0] == "custody.answer"]


ID = ParcelId("z", 1, 1)


def test_a_duplicate_is_answered_with_pruned() -> None:
    at = AtB()
    _, (first,) = at.offer(ID, "b")
    assert first[2:5] == [["b"], [], []]
    _, (again,) = at.offer(ID, "b")
    assert again[2:5] == [[], ["b"], []]
    assert counts(at.net, "b") == {"inbox/00000009": b"1"}


def test_one_that_is_held_and_not_sent_on_is_vouched_for_and_more_nodes_are_taken() -> None:
    at = AtB()
    _, (first,) = at.offer(ID, "far")
    assert first[2:5] == [["far"], [], []]
    _, (again,) = at.offer(ID, "far", "farther")
    assert again[2:5] == [["farther"], ["far"], []]


def test_one_that_is_on_its_way_from_here_is_not_vouched_for() -> None:
    at = AtB()
    at.net.give("b", SendParcel(5, "note", ("a",), b"00000007"))
    (parcel,) = at.node.overlay.custody.held
    assert at.node.overlay.custody.held[parcel].states == {"a": ParcelState.SENT}
    _, (answer,) = at.offer(parcel, "a", body=b"00000007")
    assert answer[2:5] == [[], [], ["a"]]


def test_bounds_are_told_to_whoever_asks() -> None:
    at = AtB(parcels_max=2, parcel_bytes_max=100, bytes_max=150)
    net = at.net

    def refusal(given: SendParcel) -> str:
        (failed,) = [one for one in net.give("b", given) if isinstance(one, Failed)]
        assert isinstance(failed.error, LimitError)
        return str(failed.error)

    assert "at most 100 bytes" in refusal(SendParcel(1, "note", ("x",), bytes(101)))
    assert "each named once" in refusal(SendParcel(1, "note", ("x", "x"), b""))
    assert "each named once" in refusal(SendParcel(1, "note", (), b""))
    many = tuple(f"n{number}" for number in range(TARGETS_MAX + 1))
    assert "each named once" in refusal(SendParcel(1, "note", many, b""))
    assert "unknown kind" in refusal(SendParcel(1, "song", ("b",), b""))
    assert Acknowledged(1) in net.give("b", SendParcel(1, "note", many[1:], bytes(100)))
    assert "full" in refusal(SendParcel(2, "note", ("x",), bytes(51)))
    assert Acknowledged(2) in net.give("b", SendParcel(2, "note", ("x",), bytes(50)))
    assert "full" in refusal(SendParcel(3, "note", ("x",), b""))
    _, (answer,) = at.offer(ID, "x", body=b"")
    assert answer[2:5] == [[], [], ["x"]]
    assert "full" in answer[5]
    assert at.node.overlay.custody.occupancy()["parcels"] == (2, 2)


def test_remembered_parcels_are_bounded_and_forgotten_after_their_life() -> None:
    at = AtB(seen_max=1, life_us=1_000_000)
    at.offer(ID, "b", body=b"00000001")
    other = ParcelId("z", 1, 2)
    _, (answer,) = at.offer(other, "b", body=b"00000002")
    assert answer[4] == ["b"]
    at.net.run(3 * SECOND)
    assert at.node.overlay.custody.occupancy()["seen"] == (0, 1)
    _, (answer,) = at.offer(other, "b", body=b"00000002")
    assert answer[2] == ["b"]


def test_one_that_is_too_old_is_given_up_and_said_so() -> None:
    at = AtB(life_us=1_000_000)
    _, (answer,) = at.offer(ID, "far", age_us=1_000_000)
    assert answer[4:] == [["far"], "too old"]
    at.offer(ID, "far", age_us=400_000)
    at.net.run(500_000)
    assert ID in at.node.overlay.custody.held
    at.net.run(200_000)
    assert ("b", ParcelExpired(ID, ("far",))) in at.net.out
    assert not [key for key in at.node.disk if key.startswith(HELD)]


@pytest.mark.parametrize(
    "messages",
    [
        [ParcelChunk(ID, b"\xc1", True)],
        [ParcelChunk(ID, b"x", False), ParcelChunk(ParcelId("z", 1, 2), b"x", True)],
        [ParcelChunk(ID, bytes(48_000), False)] * 6,
        [ParcelAnswer(ID, ("b",), (), ())],
        [ParcelChunk(ID, msgspec.msgpack.encode(ParcelContent("note", ("b", "b"), 0, b"")), True)],
    ],
)
def test_what_breaks_the_protocol_ends_the_link(messages: list[Any]) -> None:
    at = AtB()
    for message in messages:
        if at.node.overlay.links.up():
            at.came(message)
    assert at.node.overlay.links.up() == []
    assert not at.node.overlay.custody.held


def test_nothing_is_taken_before_the_node_is_open() -> None:
    alone = node("a")
    (failed,) = alone.receive(SendParcel(1, "note", ("b",), b""), 0)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, UnreachableError)


def test_what_a_replica_held_is_adopted() -> None:
    one = line("a", "b")
    one.cut = {("a", "b"), ("b", "a")}
    one.give("a", SendParcel(1, "note", ("b",), b"00000001"))
    other = Net(node("a", "b"), node("b", "a"))
    other.run(SECOND)
    entries = [Entry(k, v, 1) for k, v in one.nodes["a"].disk.items() if "parcel" in k]
    part = custody(other, "a")
    other._perform(
        other.nodes["a"], other.nodes["a"].perform(part, part.adopt(entries, other.now), other.now)
    )
    other.run(SECOND)
    assert counts(other, "b") == {"inbox/00000001": b"1"}


def test_every_state_but_the_last_has_a_way_on() -> None:
    assert {state for state, _ in PARCEL_TABLE} == {*ParcelState} - {ParcelState.TAKEN}
