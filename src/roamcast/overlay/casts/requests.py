"""What a part has asked for and waits for: writes, parcels, values; each answered once."""

from collections.abc import Callable, Sequence

from roamcast.errors import RoamcastError
from roamcast.model.machine import Effect, Store, Writes
from roamcast.overlay.casts.messages import CastBody, PlanFilter, ReadPayload
from roamcast.overlay.events import PostParcel

Then = Callable[[bool, int], Sequence[Effect]]
"""Takes whether it was done, and the time."""

ThenRead = Callable[[bytes | None, int], Sequence[Effect]]

ThenPlanned = Callable[[RoamcastError | None, int], Sequence[Effect]]
"""Takes why a filter cannot be followed, and the time."""


class Requests:
    """Requests under way by their tokens."""

    def __init__(self, part: str) -> None:
        self.posts: dict[int, Then] = {}
        self.reads: dict[int, ThenRead] = {}
        self._part = part
        self.plans: dict[int, ThenPlanned] = {}
        self._stores: dict[int, Then] = {}
        self._token = 0

    def token(self) -> int:
        """Give a token that nothing else has."""
        self._token += 1
        return self._token

    def store(self, writes: Writes, then: Then) -> Effect:
        """Write something."""
        self._stores[self.token()] = then
        return Store(self._token, writes)

    def post(
        self, kind: str, targets: Sequence[str], body: bytes, writes: Writes, then: Then
    ) -> Effect:
        """Post a parcel and write something, both or neither."""
        self.posts[self.token()] = then
        return PostParcel(self._part, self._token, kind, tuple(targets), body, writes)

    def plan(self, body: CastBody, then: ThenPlanned) -> Effect:
        """Let a cast's filter be taken apart."""
        self.plans[self.token()] = then
        return PlanFilter(self._token, body)

    def read(self, name: str, then: ThenRead) -> Effect:
        """Read what is stored under a key."""
        self.reads[self.token()] = then
        return ReadPayload(self._token, name)

    def stored(self, token: int, done: bool, now: int) -> Sequence[Effect]:
        """Take the disk's answer."""
        return self._stores.pop(token)(done, now)

    def posted(self, token: int, done: bool, now: int) -> Sequence[Effect]:
        """Take custody's answer."""
        return self.posts.pop(token)(done, now)

    def was_read(self, token: int, payload: bytes | None, now: int) -> Sequence[Effect]:
        """Take the driver's answer."""
        return self.reads.pop(token)(payload, now)

    def planned(self, token: int, problem: RoamcastError | None, now: int) -> Sequence[Effect]:
        """Take the driver's word that a filter is taken apart."""
        return self.plans.pop(token)(problem, now)
