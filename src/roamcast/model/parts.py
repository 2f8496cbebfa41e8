"""Parts of a broker, their timers, and the router that makes one machine of them.

A part declares what it takes: wire messages, inputs, and the prefix of its keys in the store. The
router hands each input to the part that declares its type, gives each part store tokens of its own,
restores each from its keys, and asserts that nothing is left over. Adding a part to a broker is one
line: its place in the list of parts.

A part's timers have keys: at most one time per key, and only the latest setting counts. A machine
with several kinds has `Timer` structs, one class for each, and a table from class to handler says
what each kind does. So a kind without a handler is found at once, and no name is taken apart.

Parts speak to each other in two ways. What one part lends another is passed when it is made. What
one part tells the others is an effect that they declare among their inputs (`model/events.py`): the
router delivers it to them in their order, before the driver sees what else happened.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from roamcast.model.machine import (
    Effect,
    Entry,
    Input,
    Merge,
    Merged,
    PageRead,
    ReadPage,
    Received,
    Store,
    Stored,
    StoreFailed,
)
from roamcast.model.wire import Message, Registry

Key = TypeVar("Key", bound=Hashable)

Load = Callable[[str], Mapping[str, bytes]]
"""Reads all stored values whose keys begin with a prefix, in the order of the keys."""

Occupancy = dict[str, tuple[int, int]]
"""How much is held of what, and the bound of each."""


# The hash is cached because setting a timer looks its key up several times, on every update.
class Timer(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """A kind of timer; the fields of a subclass are the key."""


Kind = TypeVar("Kind", bound=Timer)


class Timers(Generic[Key]):
    """At most one time per key; equal times fire in the order in which they were set."""

    def __init__(self) -> None:
        self.times: dict[Key, int] = {}
        """Keys → when each fires."""
        self._heap: list[tuple[int, int, Key]] = []
        self._next = count().__next__

    def __len__(self) -> int:
        return len(self.times)

    def __contains__(self, key: Key) -> bool:
        return key in self.times

    def set(self, key: Key, time: int) -> None:
        """Fire at a time, and not at an earlier setting of the key."""
        if self.times.get(key) != time:
            self.times[key] = time
            heappush(self._heap, (time, self._next(), key))
            # Moved and cancelled timers stay in the heap until their time: bound their share.
            if len(self._heap) > 4 * len(self.times) + 64:
                self._heap = [entry for entry in self._heap if self.times.get(entry[2]) == entry[0]]
                heapify(self._heap)

    def sooner(self, key: Key, time: int) -> None:
        """Fire at a time unless the key fires before."""
        known = self.times.get(key)
        if known is None or time < known:
            self.set(key, time)

    def cancel(self, key: Key) -> None:
        """Do not fire."""
        self.times.pop(key, None)

    def clear(self) -> None:
        """Fire nothing."""
        self.times.clear()

    def deadline(self) -> int | None:
        """Give the earliest time; timers that were moved or cancelled are discarded here."""
        heap = self._heap
        while heap and self.times.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: int) -> Iterator[Key]:
        """Take the keys that are due, one by one, including those set meanwhile for now."""
        while (first := self.deadline()) is not None and first <= now:
            key = heappop(self._heap)[2]
            del self.times[key]
            yield key


class TimerTable(Timers[Timer]):
    """The timers of one machine and the handler of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self._handlers: dict[type[Timer], Callable[[Any], None]] = {}

    def handle(self, kind: type[Kind], handler: Callable[[Kind], None]) -> None:
        """Declare what a kind of timer does; a later declaration replaces an earlier one."""
        self._handlers[kind] = handler

    def fire(self, now: int) -> None:
        """Run the handler of every timer that is due; a kind without one is our own mistake."""
        for timer in self.due(now):
            handler = self._handlers.get(type(timer))
            assert handler is not None, f"no handler for {timer!r}"
            handler(timer)


TimerHandler = Callable[[Any, int], Sequence[Effect]]
"""Takes a timer of its kind and the time; gives what follows."""

TimerHandlers = Mapping[type[Timer], TimerHandler]


class PartTimers(Timers[Timer]):
    """The timers of one part, and the handler of each kind."""

    def __init__(self, handlers: TimerHandlers) -> None:
        super().__init__()
        self._handlers = handlers

    def fire(self, now: int) -> list[Effect]:
        """Run the handler of every timer that is due, but of none that these set for now."""
        effects: list[Effect] = []
        for timer in list(self.due(now)):
            handler = self._handlers.get(type(timer))
            assert handler is not None, f"no handler for {timer!r}"
            effects += handler(timer, now)
        return effects


class Part:
    """One part of a broker; the defaults are those of a part that takes and stores nothing."""

    part: ClassVar[str]
    """Its name among the parts."""
    messages: ClassVar[tuple[type[Message], ...]] = ()
    """The wire messages it takes."""
    inputs: ClassVar[tuple[type[Input | Effect], ...]] = ()
    """The inputs it takes, from the driver or from other parts."""
    carried: ClassVar[Mapping[type[Effect], tuple[type[Message], ...]]] = {}
    """Events of other parts that bring a `message`, and the messages of which it takes them."""
    prefix: ClassVar[str] = ""
    """What its keys in the store begin with; empty if it stores nothing."""
    timers: Timers[Any] | None = None
    """Its timers, if they alone say when it is due; the same ones for good."""

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Take up what was on disk under its prefix, before anything else happens.

        What follows from it is done when the router first advances.
        """
        raise AssertionError(f"{self.part} stores nothing: {sorted(stored)!r} at {now}")

    def adopt(self, entries: Sequence[Entry], now: int) -> Sequence[Effect]:
        """Let come into force what a replica had newer; it is on disk here, too."""
        raise AssertionError(f"{self.part} stores nothing that {now} could change: {entries!r}")

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take one input, or one event of another part."""
        raise AssertionError(f"{self.part} takes no input: {given!r} at {now}")

    def advance(self, now: int) -> Sequence[Effect]:
        """Do what time demands."""
        del now
        return ()

    def deadline(self) -> int | None:
        """When to call `advance`."""
        return None if self.timers is None else self.timers.deadline()

    def occupancy(self) -> Occupancy:
        """How much is held of what, and the bound of each."""
        return {}


class Forward(Effect, frozen=True):
    """Hand this input to the next part that declares it: this one has done its share."""

    given: Input


class Adopt(Effect, frozen=True):
    """Entries that a replica had newer are on this host's disk: parts take up their own."""

    entries: tuple[Entry, ...]


class StoreRequest(Effect, frozen=True):
    """A part's `Store` on its way to the part that owns the disk."""

    part: str
    effect: Store


class StoreAnswer(Effect, frozen=True):
    """The answer to a part's `Store`, in that part's own tokens."""

    part: str
    answer: Stored | StoreFailed


ROUNDS_MAX: Final = 8
"""Rounds of parts that make each other due; the next wake-up takes what is left."""

DISK_ANSWERS = (Stored, StoreFailed, Merged, PageRead)
DISK_EFFECTS = (Store, Merge, ReadPage)


_Step = tuple[Part, Effect | None, Any]
"""An effect of a part, or None and something that the part is given."""


class Router:
    """Several parts as one machine.

    The part named `disk`, if there is one, stands between the other parts and the driver's disk: it
    takes their writes as `StoreRequest` and answers with `StoreAnswer` (replication does that).
    Without one, writes go straight to the driver.
    """

    def __init__(self, parts: Iterable[Part], *, disk: Part | None = None) -> None:
        self.parts = {part.part: part for part in parts}
        self._disk = disk
        self._by_input: dict[type[Input | Effect], list[Part]] = {}
        self._by_message: dict[type[Message], list[Part]] = {}
        self._by_carried: dict[type[Effect], dict[type[Message], list[Part]]] = {}
        self._tokens: dict[int, tuple[Part, int]] = {}
        self._token = 0
        self._restored: deque[_Step] = deque()
        # Asked after every input: parts without timers need not be.
        self._timed = [
            part
            for part in self.parts.values()
            if part.timers is not None or type(part).deadline is not Part.deadline
        ]
        self._clocks = [part.timers for part in self._timed if part.timers is not None]
        self._asked = [part for part in self._timed if part.timers is None]
        for part in self.parts.values():
            for kind in part.inputs:
                self._by_input.setdefault(kind, []).append(part)
            for message in part.messages:
                self._by_message.setdefault(message, []).append(part)
            for event, messages in part.carried.items():
                takers = self._by_carried.setdefault(event, {})
                for message in messages:
                    takers.setdefault(message, []).append(part)
        events = {*self._by_input, *self._by_carried}
        self._special = {*events, *DISK_EFFECTS, StoreAnswer, Forward, Adopt}
        """Effects that concern parts; all others are the driver's."""
        prefixes = [part.prefix for part in self.parts.values() if part.prefix]
        for one in prefixes:
            clash = [other for other in prefixes if other is not one and other.startswith(one)]
            assert not clash, f"keys of {clash} would be restored twice"

    def registry(self) -> Registry:
        """Give the protocol of the messages that some part takes."""
        return Registry(tuple(self._by_message))

    def takes(self, message: Message) -> bool:
        """Whether some part takes a message; drivers ask before they give what strangers send."""
        return type(message) in self._by_message

    def restore(self, load: Load, now: int) -> None:
        """Let each part take up what is stored under its prefix."""
        for part in self.parts.values():
            if part.prefix:
                self._restored += _outcome(part, part.restore(load(part.prefix), now))

    def receive(self, given: Input, now: int) -> list[Effect]:
        """Hand an input to the parts that declare it; one that nobody takes is our mistake."""
        return self._settle(deque(self._route(given)), now)

    def receive_event(self, event: Effect, now: int) -> list[Effect]:
        """Deliver an event of the broker's own to the parts that declare it."""
        return self._settle(deque(self._all_takers(event)), now)

    def advance(self, now: int) -> list[Effect]:
        """Let every part do what is due; what one does may make another due at once."""
        out = self._settle(self._restored, now)
        for _ in range(ROUNDS_MAX):
            due = [
                part
                for part in self._timed
                if (part.timers is None or part.timers.times) and _is_due(part, now)
            ]
            if not due:
                break
            for part in due:
                out += self.perform(part, part.advance(now), now)
        return out

    def deadline(self) -> int | None:
        """When the first part is due; at once if something follows from what was restored."""
        first: int | None = 0 if self._restored else None
        for timers in self._clocks:
            if timers.times:  # most parts of most brokers have none, and every input asks all
                due = timers.deadline()
                if due is not None and (first is None or due < first):
                    first = due
        for part in self._asked:
            due = part.deadline()
            if due is not None and (first is None or due < first):
                first = due
        return first

    def occupancy(self) -> Occupancy:
        """How much all parts hold, by part."""
        return {
            f"{part.part}: {what}": held
            for part in self.parts.values()
            for what, held in part.occupancy().items()
        }

    def perform(self, part: Part, effects: Sequence[Effect], now: int) -> list[Effect]:
        """Carry out what concerns other parts; give what is for the driver."""
        return self._settle(deque(_outcome(part, effects)), now)

    def _route(self, given: Input, after: Part | None = None) -> list[_Step]:
        """Say who takes an input, or who takes it after a part that forwarded it."""
        if isinstance(given, DISK_ANSWERS):
            assert given.token in self._tokens, f"nobody asked the disk for {given!r}"
            part, token = self._tokens.pop(given.token)
            return [(part, None, msgspec.structs.replace(given, token=token))]
        if isinstance(given, Received):
            kind = type(given.message)
            takers = self._by_message.get(kind, [])
            assert takers, f"no part takes the message {kind.__name__}"
            return [(takers[0 if after is None else takers.index(after) + 1], None, given)]
        return self._all_takers(given)

    def _all_takers(self, given: Input | Effect) -> list[_Step]:
        takers = self._by_input.get(type(given), [])
        assert takers, f"no part takes the input {type(given).__name__}"
        return [(part, None, given) for part in takers]

    def _takers_of_message(self, event: Any) -> list[_Step]:
        """Say who takes an event for the message that it brings; nobody has to."""
        takers = self._by_carried[type(event)].get(type(event.message), ())
        return [(part, None, event) for part in (*self._by_input.get(type(event), ()), *takers)]

    def _adopt(self, entries: Sequence[Entry]) -> list[_Step]:
        """Let parts take up entries in their own order: rules stand before what they hide.

        What follows from one part's entries is over before the next part takes up its own.
        """
        found: list[_Step] = []
        for part in self.parts.values():
            prefix = part.prefix
            own = tuple(one for one in entries if prefix and one.key.startswith(prefix))
            if own:
                found.append((part, None, Adopt(own)))
        return found

    def _settle(self, steps: "deque[_Step]", now: int) -> list[Effect]:
        """Deliver what is for parts until only the driver's effects are left.

        Depth first: what a part's effect leads to is over before the next part hears of the event.
        So a client whose view class ends is gone before the map shows anything under new rules.
        """
        out: list[Effect] = []
        special = self._special
        while steps:
            part, effect, given = steps.popleft()
            if effect is not None:
                if type(effect) in special:
                    steps.extendleft(reversed(self._delivered(part, effect, out)))
                else:
                    out.append(effect)
                continue
            adopts = type(given) is Adopt
            outcome = part.adopt(given.entries, now) if adopts else part.receive(given, now)
            for at, one in enumerate(outcome, 1):
                if type(one) not in special:  # most effects are for the driver
                    out.append(one)
                    continue
                if at < len(outcome):
                    steps.extendleft(reversed(_outcome(part, outcome[at:])))
                steps.extendleft(reversed(self._delivered(part, one, out)))
                break
        return out

    def _delivered(self, part: Part, effect: Any, out: list[Effect]) -> list[_Step]:
        """Say who is given an effect that concerns parts; what the disk is asked goes out."""
        kind = type(effect)
        if kind in self._by_carried:
            return self._takers_of_message(effect)
        if kind in self._by_input:
            return self._all_takers(effect)
        if kind is StoreAnswer:
            return [(self.parts[effect.part], None, effect.answer)]
        if kind is Forward:
            return self._route(effect.given, part)
        if kind is Adopt:
            return self._adopt(effect.entries)
        if self._disk is None or part is self._disk:
            out.append(self._numbered(part, effect))
            return []
        assert kind is Store, "only the disk's own part reads and merges"
        return [(self._disk, None, StoreRequest(part.part, effect))]

    def _numbered(self, part: Part, effect: Store | Merge | ReadPage) -> Effect:
        """Give a disk effect a token that no other part uses."""
        self._token += 1
        self._tokens[self._token] = part, effect.token
        return msgspec.structs.replace(effect, token=self._token)


def _is_due(part: Part, now: int) -> bool:
    due = part.deadline()
    return due is not None and due <= now


def _outcome(part: Part, effects: Sequence[Effect]) -> list[_Step]:
    return [(part, effect, None) for effect in effects]
