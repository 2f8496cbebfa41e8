"""Invariant checkers. They know the promise and nothing of the machine that must keep it.

A workload reports to a checker what should happen and what did. The checker raises `Violation` at
once for a safety property, and in `finish` if something that should have happened did not.
"""

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol

from roamcast.model.time import MICROSECONDS


class Violation(Exception):  # noqa: N818 — a finding about a machine, not an error of the world
    """A broken promise: which one, and how."""

    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(f"{promise}: {detail}")
        self.promise = promise
        self.detail = detail


class DeliveryLedger:
    """No loss, no duplicate: records who should receive what, and who has."""

    def __init__(self) -> None:
        self._owed: dict[Hashable, dict[Hashable, None]] = {}
        self._got: dict[Hashable, set[Hashable]] = {}

    def expect(self, receiver: Hashable, item: Hashable) -> None:
        """Record that the receiver must get the item by the end."""
        self._owed.setdefault(receiver, {})[item] = None

    def excuse(self, receiver: Hashable, item: Hashable) -> None:
        """Record that the receiver was notified that it would not get the item."""
        self._owed.get(receiver, {}).pop(item, None)

    def deliver(self, receiver: Hashable, item: Hashable) -> None:
        """Record that the receiver got the item."""
        got = self._got.setdefault(receiver, set())
        if item in got:
            raise Violation("no duplicate", f"{receiver} got {item} twice")
        got.add(item)

    def finish(self) -> None:
        """Check that everything expected has been delivered."""
        for receiver, owed in self._owed.items():
            got = self._got.get(receiver, set())
            missing = [item for item in owed if item not in got]
            if missing:
                shown = ", ".join(map(str, missing[:5]))
                raise Violation("no loss", f"{receiver} lacks {len(missing)}: {shown}")


class OrderPerProducer:
    """Each receiver sees each producer's numbers in ascending order."""

    def __init__(self) -> None:
        self._last: dict[tuple[Hashable, Hashable], int] = {}

    def deliver(self, receiver: Hashable, producer: Hashable, number: int) -> None:
        """Record that the receiver got the producer's message with this number."""
        last = self._last.get((receiver, producer))
        if last is not None and number <= last:
            detail = f"{receiver} got {producer}'s {number} after {last}"
            raise Violation("order per producer", detail)
        self._last[receiver, producer] = number


class AtMostOncePerUser:
    """A user gets a cast at most once, however many contexts and brokers it passed."""

    def __init__(self) -> None:
        self._seen: set[tuple[Hashable, Hashable]] = set()

    def deliver(self, user: Hashable, cast: Hashable) -> None:
        """Record that the user got the cast."""
        if (user, cast) in self._seen:
            raise Violation("at most once per user", f"{user} got {cast} again")
        self._seen.add((user, cast))


class BandwidthLimit:
    """No client gets more bytes than its limit in any second, wherever the second begins."""

    def __init__(self, limits_bytes: Mapping[Hashable, int]) -> None:
        self._limits = limits_bytes
        self._window: dict[Hashable, deque[tuple[int, int]]] = {}
        self._sums: dict[Hashable, int] = {}

    def deliver(self, client: Hashable, size: int, now: int) -> None:
        """Record that the client got `size` bytes now."""
        limit = self._limits.get(client)
        if limit is None:
            return
        window = self._window.setdefault(client, deque())
        window.append((now, size))
        total = self._sums.get(client, 0) + size
        while window[0][0] <= now - MICROSECONDS:
            total -= window.popleft()[1]
        self._sums[client] = total
        if total > limit:
            detail = f"{client} got {total} bytes in the second before {now} µs, limit {limit}"
            raise Violation("never above a bandwidth limit", detail)


class OnlyMatching:
    """Nothing is delivered to a context that does not match."""

    def __init__(self, matches: Callable[[Any, Any], bool]) -> None:
        self._matches = matches

    def deliver(self, context: Any, wanted: Any) -> None:
        """Record a delivery for the filter `wanted` to the context."""
        if not self._matches(context, wanted):
            detail = f"{context} does not match {wanted}"
            raise Violation("no delivery to a context that does not match", detail)


class Bounded(Protocol):
    """A machine that reports how much state it holds."""

    def occupancy(self) -> Mapping[str, tuple[int, int]]:
        """Return the state held: name → (count, bound)."""


def check_bounds(owner: str, machine: Bounded) -> None:
    """Check that nothing a machine holds exceeds its bound."""
    for name, (count, bound) in machine.occupancy().items():
        if count > bound:
            raise Violation("bounded state", f"{owner} holds {count} {name}, bound {bound}")


class SequenceOrSnapshot:
    """A receiver has exactly the sender's sequence, or was given a snapshot instead (AMS 6)."""

    def __init__(self) -> None:
        self._sent: dict[tuple[int, int], bytes] = {}
        self._at: dict[Hashable, tuple[int, int]] = {}

    def sent(self, incarnation: int, sequence: int, payload: bytes) -> None:
        """Record a message sent; within an incarnation the numbers have no gaps."""
        before = (incarnation, sequence - 1)
        if (incarnation, sequence) in self._sent or (sequence > 1 and before not in self._sent):
            raise Violation("sequence", f"the sender numbered {incarnation}/{sequence} out of turn")
        self._sent[incarnation, sequence] = payload

    def starts(self, receiver: Hashable, incarnation: int, sequence: int) -> None:
        """Record where the receiver begins; incarnation 0 for a newcomer."""
        self._at[receiver] = (incarnation, sequence)

    def delivered(
        self, receiver: Hashable, incarnation: int, sequence: int, payload: bytes
    ) -> None:
        """Record that the receiver delivered the next message."""
        at = self._at[receiver]
        newcomer = at == (0, 0) and sequence == 1
        if not newcomer and (incarnation, sequence) != (at[0], at[1] + 1):
            detail = f"{receiver} at {at[0]}/{at[1]} got {incarnation}/{sequence} unannounced"
            raise Violation("sequence or snapshot", detail)
        if self._sent.get((incarnation, sequence)) != payload:
            detail = f"{receiver} got bytes that were never sent as {incarnation}/{sequence}"
            raise Violation("sequence or snapshot", detail)
        self._at[receiver] = (incarnation, sequence)

    def replaced(self, receiver: Hashable, incarnation: int, sequence: int) -> None:
        """Record that the receiver started over from a snapshot."""
        if (incarnation, sequence) < self._at[receiver]:
            detail = f"{receiver} was thrown back to {incarnation}/{sequence}"
            raise Violation("sequence or snapshot", detail)
        self._at[receiver] = (incarnation, sequence)

    def position(self, receiver: Hashable) -> tuple[int, int]:
        """Return the receiver's position in the sequence."""
        return self._at[receiver]
