"""The event desk as a part of a broker: what sessions publish and subscribe to of events.

It names producers and consumers so that nobody learns a subject's name, shows of an event what
everybody may see (0160), and paces what a session is sent. A session that is slow, or has used up
its limit, loses nothing: its consumer stands still, and the log has the rest.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Final

from roamcast.channels.server.standing import Standing
from roamcast.channels.sessions.events import Frame, SessionDrained, SessionSlow
from roamcast.channels.sessions.hub import Hub
from roamcast.channels.sessions.messages import EVENT_DATA_BYTES_MAX
from roamcast.channels.spread.streams import Ledger, Window
from roamcast.errors import ForbiddenError, InputError, LimitError, NotFoundError
from roamcast.identity.policy import RulesPolicy, subject_of
from roamcast.identity.rules import Viewer
from roamcast.model.events import Acknowledged, SessionClosed, SessionOpened
from roamcast.model.filters import Filter
from roamcast.model.filters.here import rewritten
from roamcast.model.machine import Effect
from roamcast.model.parts import Forward, Occupancy, Part, Timers
from roamcast.model.time import MICROSECONDS
from roamcast.overlay.consumers.attended import Attended, WaitingFrames, answered, digest, framed
from roamcast.overlay.consumers.events import (
    ConfirmSessionEvents,
    ConsumerMoved,
    PublishEventFor,
    ReportSessionPlace,
    SubscribeSessionEvents,
    UnsubscribeSessionEvents,
)
from roamcast.overlay.consumers.frames import PART_BYTES, EventFrames, parts_of
from roamcast.overlay.consumers.headings import Headings
from roamcast.overlay.consumers.settings import EventSettings
from roamcast.overlay.flows.events import (
    EventsDelivered,
    EventsLost,
    EventsStanding,
    PublishEvent,
)
from roamcast.overlay.flows.messages import DATA_BYTES_MAX
from roamcast.overlay.flows.vector import merge, pairs
from roamcast.overlay.handoff.events import (
    AttachConsumer,
    ConsumerAttached,
    ConsumerGone,
    ConsumerReleased,
    DetachConsumer,
    ReportPlace,
)
from roamcast.overlay.handoff.messages import Attachment
from roamcast.overlay.homes.events import (
    AttachModulated,
    ConfirmModulated,
    DetachModulated,
    ModulatedAttached,
    ModulatorsAnew,
    ModulatorsStopped,
    MoveClient,
    ServedElsewhere,
)

assert EVENT_DATA_BYTES_MAX == DATA_BYTES_MAX

EVERYBODY: Final = Viewer("")
"""Whoever has a token and is in no group: what they may see is what travels."""

SLEEP: Final = "sleep"
ROOM: Final = "room"
HOLD: Final = "hold"
LEFT: Final = "left"
HOLD_US: Final = 2_000_000
"""A client with a limit waits so long for its old home, which it leaves after a second (0260)."""


class EventDesk(Part):
    """All subscriptions of events of one broker's sessions."""

    part: ClassVar[str] = "event desk"
    inputs: ClassVar = (
        PublishEventFor, SubscribeSessionEvents, UnsubscribeSessionEvents, ReportSessionPlace,
        EventsStanding, EventsDelivered, EventsLost, ConsumerAttached, ConsumerGone,
        ConsumerReleased, ConfirmSessionEvents, ModulatedAttached, ModulatorsAnew,
        ModulatorsStopped, ServedElsewhere, MoveClient, SessionOpened, SessionClosed, SessionSlow,
        SessionDrained,
    )  # fmt: skip

    def __init__(
        self,
        hub: Hub,
        policy: RulesPolicy,
        settings: EventSettings,
        *,
        check_owner: Callable[[str, str], None],
        served: Callable[[], Collection[str]],
        check_attach: Callable[[AttachConsumer | AttachModulated, int], None],
        standing: Standing,
        nodes: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`check_owner` refuses others' vids; `served` names the consumers that flows serve.

        `check_attach` refuses a consumer that is elsewhere, or another's. `standing` counts what a
        subject's subscriptions cost every update, of states and of events. `nodes`: where people
        reach each of them.
        """
        self.settings = settings
        self._hub = hub
        self._policy = policy
        self._check_owner = check_owner
        self._served = served
        self._check_attach = check_attach
        self._standing = standing
        self._nodes = nodes
        self._frames = EventFrames()
        self.consumers: dict[str, Attended] = {}
        self._of_session: dict[str, dict[str, str]] = {}
        """Sessions → their subscriptions → consumers."""
        self._asleep: dict[str, dict[str, None]] = {}
        """Subjects → their consumers that are asleep, the oldest first."""
        self._slow: dict[str, None] = {}
        self._held: dict[str, dict[str, None]] = {}
        """Sessions with a limit → consumers that their old homes may still send something to."""
        self._left: dict[str, Ledger] = {}
        """Consumers that went a moment ago → what their clients were sent."""
        self._headings = Headings(settings.handoff.surroundings)
        self._waiting: dict[str, WaitingFrames] = {}
        self.timers: Timers[tuple[str, str]] = Timers()
        self._by_type: dict[type, Callable[[Any, int], list[Effect]]] = {
            EventsDelivered: self._delivered,
            EventsStanding: self._stands,
            EventsLost: self._lost,
            PublishEventFor: answered(self._publish),
            SubscribeSessionEvents: answered(self._subscribe),
            UnsubscribeSessionEvents: answered(self._unsubscribe),
            ReportSessionPlace: self._report,
            ConsumerAttached: self._attached,
            ConsumerGone: self._gone,
            ConsumerReleased: self._released,
            ConfirmSessionEvents: self._confirm,
            ModulatedAttached: self._attached,
            ModulatorsAnew: self._modulators,
            ModulatorsStopped: self._modulators,
            ServedElsewhere: self._gone,
            MoveClient: self._move,
            SessionSlow: self._stalled,
            SessionDrained: self._drained,
            SessionOpened: self._session_over,
            SessionClosed: self._session_over,
        }

    # --- the part

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take what sessions ask, what flows bring, and the state of sessions."""
        return self._by_type[type(given)](given, now)

    def advance(self, now: int) -> Sequence[Effect]:
        """Send what has waited, and forget who did not come back."""
        effects: list[Effect] = []
        for what, name in self.timers.due(now):
            if what == ROOM:
                effects += self._go_on(name, now)
            elif what == HOLD:
                effects += self._release(name, now)
            elif what == LEFT:
                self._left.pop(name, None)
            elif name in self.consumers:
                effects += self._forget(self.consumers[name])
        return effects

    def occupancy(self) -> Occupancy:
        """How much is held of what, and the bound of each."""
        settings = self.settings
        waiting = max((one.bytes for one in self._waiting.values()), default=0)
        placed = max(map(len, self._of_session.values()), default=0)
        asleep = max(map(len, self._asleep.values()), default=0)
        # A batch more than the mark, and the largest event with its context, in base64.
        room = settings.queue_bytes_max + 4 * DATA_BYTES_MAX
        return {
            "consumers": (len(self.consumers), settings.flows.consumers_max),
            "subscriptions of a session": (placed, settings.subscriptions_per_session_max),
            "asleep of one subject": (asleep, settings.sleeping_per_owner_max),
            "bytes waiting for a session": (waiting, room),
            "slow sessions": (len(self._slow), self._hub.settings.sessions_max),
            "seen sessions": (len(self._headings), self._hub.settings.sessions_max),
            "held sessions": (len(self._held), self._hub.settings.sessions_max),
            "windows of who left": (len(self._left), settings.flows.consumers_max),
        }

    # --- reads

    def consumers_of(self, session: str) -> Collection[str]:
        """Name the consumers of a session."""
        return self._of_session.get(session, {}).values()

    def modulated_of(self, session: str) -> list[str]:
        """Name those with modulators: they have homes."""
        return [name for name in self.consumers_of(session) if self.consumers[name].specs]

    def __len__(self) -> int:
        return len(self.consumers)

    # --- publishing

    def _publish(self, given: PublishEventFor, now: int) -> list[Effect]:
        """Let the form that everybody may see go its way."""
        if not given.producer:
            raise InputError("an event needs its producer's name")
        context = given.context
        self._check_owner(context.vid, given.owner)
        shown = self._policy.visible_to(context, EVERYBODY, now)
        if shown is None:
            raise ForbiddenError(
                f"by its rules not everybody may see {context.vid[:60]!r}, and an event is for "
                "everybody: publish it under another vid"
            )
        # A digest: others see who published what only as far as one life of a program goes.
        producer = digest(given.owner, given.producer)
        made = PublishEvent(
            given.ticket, producer, given.life, given.number, shown, given.data, given.needs
        )
        return [Forward(made)]

    # --- subscribing

    def _subscribe(self, given: SubscribeSessionEvents, now: int) -> list[Effect]:
        session = given.session
        opened = self._hub.sessions.get(session)
        if opened is None:
            raise NotFoundError("this session is over: connect again")
        own = self._of_session.get(session, {})
        most = self.settings.subscriptions_per_session_max
        if given.subscription not in own and len(own) >= most:
            raise LimitError(f"a session has at most {most} subscriptions of events")
        wanted, text = self._read(given)
        name = digest(session, given.subscription)
        known = self.consumers.get(name)
        begun = Attachment(now, 0) if known is None else known.attachment
        made = Attended(
            name,
            session,
            given.subscription,
            opened.form,
            text,
            wanted,
            given.attachment or begun,
            given.place,
            min(given.expires_us, self.settings.sleep_us_max),
            "still" if session in self._slow else "served",
            dict(given.vector),
            given.modulators,
            given.relocation,
            given.served,
            given.trail,
        )
        # Modulators begin once their state is here and on disk: `standing` says when.
        ticket = 0 if given.modulators else given.ticket
        attach = self._attach(made, ticket, given.previous, given.why)
        self._check_attach(attach, now)
        self._change_price(session, None if known is None else known.filter, wanted)
        self._wake(name)
        self.consumers[name] = made
        self._of_session.setdefault(session, {})[given.subscription] = name
        if given.previous and opened.ledger is not None and not given.modulators:
            self._hold(session, name, opened.ledger, now)
        return [Forward(attach), *([Acknowledged(given.ticket)] if given.modulators else ())]

    # --- the limit of who comes from another node (trap 23)

    def _hold(self, session: str, name: str, ledger: Ledger, now: int) -> None:
        """Send nothing to a client with a limit before its old home has stopped."""
        ledger.assume_full(now)
        self._held.setdefault(session, {})[name] = None
        self.timers.set((HOLD, session), now + HOLD_US)

    def _released(self, given: ConsumerReleased, now: int) -> list[Effect]:
        """Count what the old home has sent; when all have stopped, go on from there."""
        one = self.consumers.get(given.consumer)
        waited = None if one is None else self._held.get(one.session)
        if one is None or waited is None or given.consumer not in waited:
            return []
        del waited[given.consumer]
        session = self._hub.sessions.get(one.session)
        if waited or session is None:
            return []
        if session.ledger is not None:
            session.ledger.adopt(now, given.spent)
        return self._release(one.session, now)

    def _release(self, session: str, now: int) -> list[Effect]:
        self._held.pop(session, None)
        self.timers.cancel((HOLD, session))
        return self._go_on(session, now)

    def spent(self, consumer: str, now: int) -> Window:
        """Give what a consumer's client was sent in the last second, also if it went just now."""
        one = self.consumers.get(consumer)
        ledger = self._left.get(consumer) if one is None else self._hub.ledger_of(one.session)
        return () if ledger is None else ledger.window(now)

    def _change_price(self, session: str, before: Filter | None, after: Filter) -> None:
        """Charge a subject for one subscription instead of another, or change nothing."""
        if before is not None:
            self._standing.give_back(session, before)
        try:
            self._standing.check(session, after)
        except LimitError:
            if before is not None:
                self._standing.add(session, before)
            raise
        self._standing.add(session, after)

    def _read(self, given: SubscribeSessionEvents) -> tuple[Filter, str]:
        """Give a filter as it is meant now, for its price, and its text."""
        if isinstance(given.wanted, Filter):
            return given.wanted, given.wanted.text
        level = self.settings.handoff.level
        return rewritten(given.wanted, (given.place,), level), given.wanted

    def _attach(
        self, attended: Attended, ticket: int, previous: str = "", why: str = ""
    ) -> AttachConsumer | AttachModulated:
        owner = digest(subject_of(attended.session))
        vector = pairs(attended.vector)
        if attended.specs:
            wanted = rewritten(attended.text, (attended.place,), self.settings.handoff.level).text
            return AttachModulated(
                ticket, attended.name, owner, attended.attachment, wanted, attended.specs,
                attended.relocation, vector, attended.was_served, attended.trail,
            )  # fmt: skip
        return AttachConsumer(
            ticket, attended.name, owner, attended.attachment, attended.text, vector,
            attended.place, previous, why,
        )  # fmt: skip

    def _attached(self, given: ConsumerAttached | ModulatedAttached, now: int) -> list[Effect]:
        del now
        one = self.consumers.get(given.consumer)
        if one is None:
            return []
        still = [self._detach(one)] if one.state == "still" else []
        if one.specs:
            return still
        if one.name not in self._served():  # refused: there is no room for it
            return self._forget(one)
        return [Acknowledged(given.ticket), *still]

    def _unsubscribe(self, given: UnsubscribeSessionEvents, now: int) -> list[Effect]:
        del now
        name = self._of_session.get(given.session, {}).get(given.subscription)
        if name is None:
            raise InputError(f"there is no subscription {given.subscription!r} of events to end")
        return [*self._forget(self.consumers[name]), Acknowledged(given.ticket)]

    def _detach(self, attended: Attended, *, final: bool = False) -> Effect:
        if attended.specs:
            return Forward(DetachModulated(attended.name, attended.attachment, final))
        return Forward(DetachConsumer(attended.name, attended.attachment, final))

    def _silence(self, attended: Attended) -> list[Effect]:
        return [self._detach(attended)] if attended.state == "served" else []

    def _forget(self, attended: Attended) -> list[Effect]:
        """End a subscription for good."""
        self._drop(attended)
        return [self._detach(attended, final=True)]

    def _drop(self, attended: Attended) -> None:
        self._wake(attended.name)
        del self.consumers[attended.name]
        self._standing.give_back(attended.session, attended.filter)
        own = self._of_session.get(attended.session, {})
        if own.get(attended.subscription) == attended.name:
            del own[attended.subscription]
            if not own:
                del self._of_session[attended.session]

    def _wake(self, name: str) -> None:
        """Count a consumer as asleep no more."""
        self.timers.cancel((SLEEP, name))
        one = self.consumers.get(name)
        if one is not None and one.state == "asleep":
            subject = subject_of(one.session)
            del self._asleep[subject][name]
            if not self._asleep[subject]:
                del self._asleep[subject]

    def _confirm(self, given: ConfirmSessionEvents, now: int) -> list[Effect]:
        del now
        name = self._of_session.get(given.session, {}).get(given.subscription)
        if name is None:
            return []
        one = self.consumers[name]
        return [Forward(ConfirmModulated(name, one.attachment, given.vector))] if one.specs else []

    def _modulators(self, given: ModulatorsAnew | ModulatorsStopped, now: int) -> list[Effect]:
        """Say why modulators do not go on; stopped ones end their subscription."""
        one = self.consumers.get(given.consumer)
        if one is None:
            return []
        stopped = isinstance(given, ModulatorsStopped)
        frame = self._frames.modulators(one.form, one.subscription, given.reason, stopped=stopped)
        effects = self._send(one, [frame], 0, now)
        if stopped:
            self._drop(one)
        return effects

    def _move(self, given: MoveClient, now: int) -> list[Effect]:
        """Ask a client to go to a better home; it is served here until it does."""
        one = self.consumers.get(given.client)
        if one is None:
            return []
        url = self._nodes().get(given.to, "")
        frame = self._frames.elsewhere(one.form, one.subscription, given.to, url)
        return self._send(one, [frame], 0, now)

    def _gone(self, given: ConsumerGone | ServedElsewhere, now: int) -> list[Effect]:
        """A consumer is at another node, or was away too long."""
        one, to = self.consumers.get(given.consumer), given.to
        if one is None:
            return []
        if one.state == "still" and not to:
            return []  # its session is here: it reads on from the log
        effects: list[Effect] = []
        session = self._hub.sessions.get(one.session)
        if to:
            effects.append(ConsumerMoved(one.name, to))
            if session is not None and session.ledger is not None:
                self._stop(one, session.ledger, now)  # its new home counts on that
            elif one.state != "asleep":
                url = self._nodes().get(to, "")
                frame = self._frames.elsewhere(one.form, one.subscription, to, url)
                effects += self._send(one, [frame], 0, now)
        self._drop(one)
        return effects

    def _stop(self, attended: Attended, ledger: Ledger, now: int) -> None:
        """Send nothing more to a client with a limit that is served elsewhere."""
        self._left[attended.name] = ledger
        self.timers.set((LEFT, attended.name), now + MICROSECONDS)
        if len(self._of_session.get(attended.session, {})) == 1:
            self._waiting.pop(attended.session, None)
            self.timers.cancel((ROOM, attended.session))

    def _report(self, given: ReportSessionPlace, now: int) -> list[Effect]:
        """Let homes know where somebody is, and which nodes they are heading for."""
        if given.session not in self._hub.sessions:
            return []
        toward = self._headings.toward(given.session, given.place, given.point, now)
        effects: list[Effect] = []
        for name in self._of_session.get(given.session, {}).values():
            self.consumers[name].place = given.place
            if not self.consumers[name].specs:
                effects.append(Forward(ReportPlace(name, given.place, toward)))
        return effects

    # --- sessions

    def _session_over(self, given: SessionOpened | SessionClosed, now: int) -> list[Effect]:
        """Hold what comes for a session that may be back, for as long as it asked for.

        One that is opened again under the same name has no subscriptions yet.
        """
        session = given.session
        self._slow.pop(session, None)
        self._headings.forget(session)
        self._waiting.pop(session, None)
        self._held.pop(session, None)
        self.timers.cancel((ROOM, session))
        self.timers.cancel((HOLD, session))
        effects: list[Effect] = []
        for name in list(self._of_session.pop(session, {}).values()):
            one = self.consumers[name]
            held_us = one.expires_us
            if one.specs and one.relocation.state:  # what modulators know outlives a session
                held_us = max(held_us, self.settings.homes.lease_us)
            if one.form == "sse" or not held_us:
                effects += self._forget(one)
                continue
            effects += self._silence(one)
            one.state = "asleep"
            self.timers.set((SLEEP, name), now + held_us)
            asleep = self._asleep.setdefault(subject_of(session), {})
            asleep[name] = None
            if len(asleep) > self.settings.sleeping_per_owner_max:
                effects += self._forget(self.consumers[next(iter(asleep))])
        return effects

    def _stalled(self, given: SessionSlow, now: int) -> list[Effect]:
        del now
        self._slow[given.session] = None
        return self._stand_still(given.session)

    def _drained(self, given: SessionDrained, now: int) -> list[Effect]:
        self._slow.pop(given.session, None)
        return self._go_on(given.session, now)

    def _stand_still(self, session: str) -> list[Effect]:
        """Let no more come for a session: the log has it."""
        effects: list[Effect] = []
        for name in self._of_session.get(session, {}).values():
            one = self.consumers[name]
            effects += self._silence(one)
            one.state = "still"
        return effects

    def _go_on(self, session: str, now: int) -> list[Effect]:
        """Send what waits as far as the limit goes; when nothing waits, let more come."""
        if session in self._slow:
            return []
        effects = self._pump(session, now)
        if session in self._waiting:
            return effects
        for name in self._of_session.get(session, {}).values():
            one = self.consumers[name]
            if one.state == "still":
                one.state = "served"
                effects.append(Forward(self._attach(one, 0)))
        return effects

    # --- what consumers are told

    def _stands(self, given: EventsStanding, now: int) -> list[Effect]:
        one, vector = self.consumers.get(given.consumer), dict(given.vector)
        if one is None:
            return []
        one.vector = merge(vector, one.vector)
        attachment = one.attachment if one.specs else None
        frame = self._frames.standing(one.form, one.subscription, vector, attachment)
        return self._send(one, [frame], 0, now)

    def _delivered(self, given: EventsDelivered, now: int) -> list[Effect]:
        one = self.consumers.get(given.consumer)
        if one is None:
            return []
        one.vector[given.origin] = given.upto
        known = self._frames if not one.specs else EventFrames()  # what modulators leave is theirs
        frames = known.delivered(one.form, one.subscription, given, one.vector)
        return self._send(one, frames, len(given.events), now)

    def _lost(self, given: EventsLost, now: int) -> list[Effect]:
        one = self.consumers.get(given.consumer)
        if one is None:
            return []
        one.vector[given.origin] = given.upto
        return self._send(one, [self._frames.lost(one.form, one.subscription, given)], 0, now)

    def _send(self, attended: Attended, frames: list[bytes], events: int, now: int) -> list[Effect]:
        """Send frames, or let them wait behind others for the session's limit."""
        session = self._hub.sessions.get(attended.session)
        if session is None or attended.state == "asleep":
            return []
        if attended.form == "sse":
            to = (attended.session,)
            return [Frame(to, frame, "sse", events, of_map=False) for frame in frames]
        limited = session.ledger is not None or attended.session in self._waiting
        if not limited:
            cut = [part for frame in frames for part in parts_of(frame, PART_BYTES)]
            return [
                framed(attended.session, part, events * (not at)) for at, part in enumerate(cut)
            ]
        waiting = self._waiting.setdefault(attended.session, WaitingFrames())
        # A part of a sixth of the limit: others, and the state plane, get their turn.
        room = PART_BYTES if session.ledger is None else session.ledger.usable_bytes // 6
        for at, frame in enumerate(frames):
            for part in parts_of(frame, max(128, min(PART_BYTES, room))):
                waiting.frames.append((part, events * (not at)))
                waiting.bytes += len(part)
        effects = self._pump(attended.session, now)
        left = self._waiting.get(attended.session)
        if left is not None and left.bytes > self.settings.queue_bytes_max:
            effects += self._stand_still(attended.session)
        return effects

    def _pump(self, name: str, now: int) -> list[Effect]:
        """Send of what waits for a session as much as its limit allows now (0064)."""
        waiting, session = self._waiting.get(name), self._hub.sessions.get(name)
        effects: list[Effect] = []
        if waiting is None or session is None or name in self._held:
            return effects
        ledger = session.ledger
        while waiting.frames:
            frame, events = waiting.frames[0]
            if ledger is not None:
                # One that was cut for a higher limit than there is now leaves alone.
                if ledger.room(now) < len(frame) and ledger.spent_bytes:
                    freed = ledger.freed_at()
                    assert freed is not None
                    self.timers.sooner((ROOM, name), freed)
                    return effects
                ledger.charge(now, len(frame))
            waiting.frames.popleft()
            waiting.bytes -= len(frame)
            effects.append(framed(name, frame, events))
        del self._waiting[name]
        return effects
