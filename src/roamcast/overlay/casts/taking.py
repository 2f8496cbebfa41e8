"""Taking casts in, from users and from neighbours: room for them, their filters, and the disk.

A cast waits here for people. When so many do that there is no room, those for places that this node
does not serve are pushed down: handed at once to every neighbour beyond which their area lies,
whoever is there now, and waited for no longer (TCC III-E). This node remembers where they went.
"""

from collections.abc import Callable, Sequence

from roamcast.errors import ConflictError, LimitError, RoamcastError, StoreError
from roamcast.model import casts as model
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.machine import Effect
from roamcast.model.records import CastStep
from roamcast.overlay.casts.desk import HeldCasts, ignore
from roamcast.overlay.casts.handing import Handing
from roamcast.overlay.casts.held import HeldCast, StoredCast, plan_of
from roamcast.overlay.casts.keeping import written
from roamcast.overlay.casts.messages import CastBody, CastParcel, SendCast
from roamcast.overlay.casts.orders import draft_of, with_expiry
from roamcast.overlay.casts.requests import ThenPlanned
from roamcast.overlay.casts.results import Results
from roamcast.overlay.events import HandleParcel, ParcelArrived


class Taking:
    """Casts on their way in."""

    def __init__(
        self,
        desk: HeldCasts,
        handing: Handing,
        results: Results,
        hold: Callable[[HeldCast, int], list[Effect]],
    ) -> None:
        """`hold`: what to do with a cast that is on disk."""
        self._desk = desk
        self._handing = handing
        self._results = results
        self._hold = hold

    # --- from users

    def send(self, given: SendCast, now: int) -> Sequence[Effect]:
        """Take a cast of a user here; raise if it may not be."""
        cast, desk = given.cast, self._desk
        model.check(cast)
        if cast.id in desk.casts:
            if desk.casts[cast.id].body.sender != given.viewer.name:
                raise ConflictError("this id is another cast's")
            return [Acknowledged(given.ticket)]
        if cast.id in desk.endings or cast.id in desk.writing:
            raise ConflictError("a cast of this id is over, or on its way to the disk")
        if desk.full:
            raise self._no_room()
        sender, most = given.viewer.name, desk.settings.sender_max
        if desk.by_sender[sender] >= most:
            raise LimitError(f"{most} casts of yours are held: cancel some, or let them expire")
        draft = draft_of(given, desk.node, now)

        def planned(problem: RoamcastError | None, now: int) -> Sequence[Effect]:
            if problem is None and not self._has_room(draft, now):
                problem = self._no_room()
            if problem is not None:
                self._leave(draft, sender)
                return [Failed(given.ticket, problem)]
            body = with_expiry(draft, cast.expires, desk.settings)
            held = HeldCast(StoredCast(body, "", (), desk.settings.patience_us))

            def then(done: bool, now: int) -> Sequence[Effect]:
                self._leave(draft, sender)
                if not done:
                    return [Failed(given.ticket, StoreError("the disk refused the cast"))]
                step = CastStep(cast.id, f"sent, {plan_of(body).tense}")
                return [Acknowledged(given.ticket, fresh=True), step, *self._hold(held, now)]

            return [desk.requests.store(written(held, cast.payload), then)]

        desk.writing[cast.id] = None
        desk.by_sender[sender] += 1
        return self._plan(draft, planned, now)

    def _leave(self, body: CastBody, sender: str) -> None:
        del self._desk.writing[body.id]
        self._desk.count_out(sender)

    def _no_room(self) -> LimitError:
        return LimitError(f"{len(self._desk.casts)} casts are held: try again later")

    def _plan(self, body: CastBody, then: ThenPlanned, now: int) -> Sequence[Effect]:
        """Take a filter apart: a long one takes a while, and others are served meanwhile."""
        if len(body.filter) > self._desk.settings.plan_chars:
            return [self._desk.requests.plan(body, then)]
        try:
            plan_of(body)
        except RoamcastError as error:
            return then(error, now)
        return then(None, now)

    # --- from neighbours

    def arrived(self, given: ParcelArrived, content: CastParcel, now: int) -> Sequence[Effect]:
        """Take a cast from a neighbour; without room it stays in custody."""
        body, desk = content.body, self._desk
        known = desk.casts.get(body.id)
        if known is not None:
            return desk.handle(
                given.parcel, (), lambda now: self._results.repeated(known, content, now)
            )
        if body.id in desk.endings or body.over_us <= now:
            return desk.handle(
                given.parcel, (), lambda _: self._results.answer_none(body, content.came_from)
            )
        # A parcel comes again if the disk refused it.
        if desk.writing.get(body.id, given.parcel) != given.parcel or (
            desk.full and body.id not in desk.writing
        ):
            return desk.wait_for_room(given, now)
        if given.parcel in desk.planning:
            return []
        desk.writing[body.id] = given.parcel
        desk.planning.add(given.parcel)

        def planned(problem: RoamcastError | None, now: int) -> Sequence[Effect]:
            desk.planning.discard(given.parcel)
            if problem is not None:
                del desk.writing[body.id]
                refused = CastStep(body.id, f"refused: {problem}"[:200])
                return [refused, HandleParcel(given.parcel)]
            if not self._has_room(body, now):
                del desk.writing[body.id]
                return desk.wait_for_room(given, now)
            return self._write(given, content)

        return self._plan(body, planned, now)

    def _write(self, given: ParcelArrived, content: CastParcel) -> Sequence[Effect]:
        body, desk = content.body, self._desk
        held = HeldCast(StoredCast(body, content.came_from, content.branches, content.patience_us))

        def handled(now: int) -> Sequence[Effect]:
            desk.writing.pop(body.id, None)
            if body.id in desk.endings:
                return [desk.requests.store(held.forgets(), ignore)]
            return [CastStep(body.id, "taken", content.came_from), *self._hold(held, now)]

        return desk.handle(given.parcel, written(held, content.payload), handled)

    # --- room

    def _has_room(self, body: CastBody, now: int) -> bool:
        """Whether one more may wait here, or need not; one for elsewhere makes room for it."""
        # What is on its way to the disk, this one among it, may all come to wait.
        coming = len(self._desk.waiting.casts) + len(self._desk.writing)
        if coming <= self._desk.settings.cache_max or self._is_elsewhere(body):
            return True
        return self._push_one(now)

    def wait(self, held: HeldCast, now: int) -> None:
        """Let a cast wait for people here, unless there is no room and nobody here can match."""
        elsewhere = self._is_elsewhere(held.body)
        if len(self._desk.waiting.casts) >= self._desk.settings.cache_max:
            if elsewhere:
                held.pushed = True
                return
            self._push_one(now)
        self._desk.waiting.add(held, elsewhere=elsewhere)

    def _is_elsewhere(self, body: CastBody) -> bool:
        spreading = self._desk.spreading
        return spreading is not None and not spreading.serves(body)

    def _push_one(self, now: int) -> bool:
        """Push the oldest cast down that nobody here can match; False if there is none."""
        for cast in self._desk.waiting.elsewhere:
            held = self._desk.casts[cast]
            self._desk.waiting.remove(cast)
            held.pushed = True
            self._handing.later(held, now)
            return True
        return False
