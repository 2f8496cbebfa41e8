"""The router: each part gets what it declares, in order, and nothing is left over."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from roamcast.model.machine import (
    Effect,
    Entry,
    Input,
    Merge,
    Received,
    Store,
    Stored,
    StoreFailed,
)
from roamcast.model.parts import (
    Adopt,
    Forward,
    Part,
    Router,
    StoreAnswer,
    StoreRequest,
)
from roamcast.model.wire import Message


class Ring(Message, frozen=True, tag="test.ring"):
    """A message."""

    number: int


class Ask(Input, frozen=True):
    """An input."""

    number: int


class Heard(Effect, frozen=True):
    """An event between parts."""

    number: int


class Shown(Effect, frozen=True):
    """An effect for the driver."""

    by: str
    number: int


class Noting(Part):
    """A part that notes what it is given."""

    part: ClassVar[str] = "noting"

    def __init__(self) -> None:
        self.given: list[Any] = []
        self.stored: dict[str, bytes] = {}
        self.adopted: list[Entry] = []
        self.due: int | None = None

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        self.stored = dict(stored)
        return [Shown(self.part, len(stored))]

    def adopt(self, entries: Sequence[Entry], now: int) -> Sequence[Effect]:
        self.adopted += entries
        return [Shown(self.part, len(entries))]

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        self.given.append(given)
        return []

    def deadline(self) -> int | None:
        return self.due


class First(Noting):
    part: ClassVar[str] = "first"
    messages: ClassVar = (Ring,)
    inputs: ClassVar = (Ask, Heard)
    prefix: ClassVar[str] = "first/"

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        super().receive(given, now)
        if isinstance(given, Received):
            return [Shown("first", 0), Forward(given)]
        if isinstance(given, Ask):
            return [Shown("first", 1), Heard(given.number), Shown("first", 2)]
        if isinstance(given, Heard) and given.number > 0:
            return [Heard(given.number - 1)]
        if isinstance(given, Stored | StoreFailed):
            return [Shown("first", given.token)]
        return []


class Second(Noting):
    part: ClassVar[str] = "second"
    messages: ClassVar = (Ring,)
    inputs: ClassVar = (Heard,)
    prefix: ClassVar[str] = "second/"

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        super().receive(given, now)
        if isinstance(given, Heard):
            return [Shown("second", given.number)]
        return []

    def advance(self, now: int) -> Sequence[Effect]:
        self.due = None
        return [Shown("second", now)]


def test_an_event_reaches_its_parts_in_order_and_depth_first() -> None:
    first, second = First(), Second()
    effects = Router((first, second)).receive(Ask(1), 0)
    # What `first` makes of the event is over, the second Heard included, before `second` has it.
    assert effects == [
        Shown("first", 1),
        Shown("second", 0),
        Shown("second", 1),
        Shown("first", 2),
    ]


def test_a_message_goes_to_the_first_part_and_on_only_if_that_forwards_it() -> None:
    first, second = First(), Second()
    given = Received("a", Ring(1))
    assert Router((first, second)).receive(given, 0) == [Shown("first", 0)]
    assert (first.given, second.given) == ([given], [given])
    alone = Second()
    assert Router((alone,)).receive(given, 0) == []
    assert alone.given == [given]


class Brought(Effect, frozen=True):
    """A message that a part has taken out of another one."""

    message: Message


class Unpacking(Noting):
    part: ClassVar[str] = "unpacking"
    messages: ClassVar = (Ring,)

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        super().receive(given, now)
        return [Brought(given.message), Brought(Message())]


class Ringing(Noting):
    part: ClassVar[str] = "ringing"
    carried: ClassVar = {Brought: (Ring,)}


class Listening(Noting):
    part: ClassVar[str] = "listening"
    inputs: ClassVar = (Brought,)


def test_an_event_that_brings_a_message_goes_to_the_parts_that_take_that_message() -> None:
    ringing, listening = Ringing(), Listening()
    router = Router((Unpacking(), ringing, listening))
    assert router.receive(Received("a", Ring(1)), 0) == []
    assert ringing.given == [Brought(Ring(1))]
    assert listening.given == [Brought(Ring(1)), Brought(Message())]


def test_what_no_part_declares_is_our_own_mistake() -> None:
    router = Router((Second(),))
    for given in (Ask(1), Received("a", Message()), Stored(7)):
        with pytest.raises(AssertionError):
            router.receive(given, 0)
    assert not router.takes(Message())
    assert router.takes(Ring(1))


def test_each_part_has_store_tokens_of_its_own() -> None:
    class Writing(First):
        def receive(self, given: Any, now: int) -> Sequence[Effect]:
            if isinstance(given, Ask):
                return [Store(1, (("first/k", b"v"),))]
            return super().receive(given, now)

    class AlsoWriting(Second):
        inputs: ClassVar = (Ask,)

        def receive(self, given: Any, now: int) -> Sequence[Effect]:
            if isinstance(given, Ask):
                return [Store(1, (("second/k", b"v"),))]
            return [Shown("second", given.token)]

    router = Router((Writing(), AlsoWriting()))
    one, other = router.receive(Ask(1), 0)
    assert isinstance(one, Store)
    assert isinstance(other, Store)
    assert one.token != other.token
    assert router.receive(Stored(other.token), 0) == [Shown("second", 1)]
    assert router.receive(StoreFailed(one.token, "full"), 0) == [Shown("first", 1)]
    with pytest.raises(AssertionError, match="nobody asked the disk"):
        router.receive(Stored(one.token), 0)


class Disk(Noting):
    part: ClassVar[str] = "disk"

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        super().receive(given, now)
        if isinstance(given, StoreRequest):
            return [Store(9, given.effect.writes, stamp=now)]
        if isinstance(given, Stored):
            request = self.given[0]
            return [StoreAnswer(request.part, Stored(request.effect.token))]
        return []


def test_a_disk_part_stands_between_the_others_and_the_driver() -> None:
    class Writing(First):
        def receive(self, given: Any, now: int) -> Sequence[Effect]:
            if isinstance(given, Ask):
                return [Store(5, (("first/k", b"v"),))]
            return super().receive(given, now)

    disk = Disk()
    router = Router((disk, Writing()), disk=disk)
    (effect,) = router.receive(Ask(1), 42)
    assert isinstance(effect, Store)
    assert effect.stamp == 42
    assert router.receive(Stored(effect.token), 43) == [Shown("first", 5)]


def test_only_the_disk_part_merges() -> None:
    class Merging(First):
        def receive(self, given: Any, now: int) -> Sequence[Effect]:
            return [Merge(1, ())]

    disk = Disk()
    with pytest.raises(AssertionError, match="disk's own part"):
        Router((disk, Merging()), disk=disk).receive(Ask(1), 0)


def test_parts_are_restored_by_prefix_and_adopt_in_their_order() -> None:
    first, second = First(), Second()
    router = Router((first, second))
    stored = {"first/a": b"1", "second/b": b"2"}
    router.restore(
        lambda prefix: {key: value for key, value in stored.items() if key.startswith(prefix)}, 0
    )
    assert (first.stored, second.stored) == ({"first/a": b"1"}, {"second/b": b"2"})
    assert router.deadline() == 0
    assert router.advance(0) == [Shown("first", 1), Shown("second", 1)]
    assert router.deadline() is None
    entries = (Entry("second/b", b"3", 1), Entry("first/a", None, 2), Entry("other", b"", 3))
    effects = router.perform(first, [Adopt(entries)], 0)
    assert effects == [Shown("first", 1), Shown("second", 1)]


def test_prefixes_that_overlap_are_refused() -> None:
    class Overlapping(Second):
        prefix: ClassVar[str] = "first/more/"

    with pytest.raises(AssertionError, match="restored twice"):
        Router((First(), Overlapping()))


def test_only_who_is_due_advances() -> None:
    first, second = First(), Second()
    second.due = 5
    router = Router((first, second))
    assert router.deadline() == 5
    assert router.advance(4) == []
    assert router.advance(5) == [Shown("second", 5)]
    assert router.deadline() is None
