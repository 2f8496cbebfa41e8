"""One consumer's way through its modulators at its home, and what of it moves to the next (OO 3.4).

Events come as intervals of origins' logs: everything the consumer wants in (after, upto]. They wait
in a queue; jobs take them to the modulators, one job at a time. A vector, origin → position, says
how far that has got. Relocation has two switches:

| events | state | promise                                                                  |
|--------|-------|--------------------------------------------------------------------------|
| yes    | yes   | every event passes the modulators once, in order, as if nobody had moved |
| yes    | no    | every event once, in order; modulators begin anew                        |
| no     | yes   | what came between the two homes is skipped, and told as intervals        |
| no     | no    | both of these                                                            |

Answers depend on how the events of several origins were mixed. So the steps since the checkpoint
are recorded, on disk before their answers go out, and whoever takes the consumer over follows them
as a script (trap 24): state and vector belong together, after a move as after a crash.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from roamcast.overlay.flows.messages import Events
from roamcast.overlay.flows.vector import ORIGINS_MAX, Pairs, Position, pairs
from roamcast.overlay.links.messages import NodeName
from roamcast.overlay.modulators.modulation import Checkpoint
from roamcast.overlay.modulators.specs import Spec, keeps_state

RENEW_BYTES: Final = 512 * 1024
"""After so much since the last checkpoint a new one is taken."""

STEPS_MAX: Final = 1_024
"""The longest script that a node takes over."""

STEPS_BYTES_MAX: Final = 2 * 1024 * 1024
"""Beyond it modulators wait until the consumer's end confirms what it had."""

QUEUE_BYTES_MAX: Final = 1024 * 1024
"""Beyond it flows are left until the queue is empty: the logs have the rest."""

JOB_SPANS_MAX: Final = 64
PASSED_EVENTS_MIN: Final = 8
"""Of fewer events nobody concludes which share passes."""


class Relocation(msgspec.Struct, frozen=True, gc=False):
    """What moves with a consumer."""

    events: bool = True
    state: bool = True


class LogSpan(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What was taken of an origin's log: (after, upto]."""

    origin: NodeName
    after: Position
    upto: Position


Steps = Annotated[tuple[LogSpan, ...], Meta(max_length=STEPS_MAX)]


class Saved(msgspec.Struct, frozen=True):
    """What is needed to go on: a checkpoint, where it was taken, and what came since."""

    vector: Annotated[Pairs, Meta(max_length=ORIGINS_MAX)] = ()
    checkpoint: Checkpoint | None = None
    """None: modulators that had no event yet."""
    steps: Steps = ()
    mark: bytes = b""
    """Of the answers up to the last step."""


class Work(msgspec.Struct, frozen=True):
    """One span on its way through the modulators, and the consumer's events in it."""

    span: LogSpan
    events: Events = ()
    lost: str = ""
    """Why the log no longer had it."""

    @property
    def size(self) -> int:
        """About how many bytes its events take."""
        return sum(event.size for _, event in self.events)


class ModulatedConsumer:
    """One consumer at its home: its queue, its script, its position, its record for recovery."""

    def __init__(
        self,
        specs: Sequence[Spec],
        relocation: Relocation,
        *,
        renew_steps: int = 128,
        steps_max: int = 512,
    ) -> None:
        assert renew_steps <= steps_max < STEPS_MAX
        self.specs = tuple(specs)
        self._renew_steps = renew_steps
        self._steps_max = steps_max
        self.relocation = relocation
        self.counts = keeps_state(specs)
        """Whether there is a state, …"""
        self.keeps = relocation.state and self.counts
        """… and it has to be kept."""
        self.had: dict[str, Position] = {}
        """What the consumer's end has confirmed."""
        self.vector: dict[str, Position] = {}
        """Up to where modulators' answers have gone out."""
        self.base = Saved()
        self.mark = b""
        self.script: deque[LogSpan] = deque()
        self.cut = False
        """Some of what flows brought was left: ask them again once the script is over."""
        self.queue_bytes = 0
        self.events_in, self.bytes_in, self.bytes_out = 0, 0, 0
        self._steps: list[LogSpan] = []
        self._steps_bytes = 0
        self._candidate: Saved | None = None
        self._queue: deque[Work] = deque()
        self._known: dict[str, Position] = {}
        """Up to where the queue reaches."""

    # --- beginning

    def begin(self, saved: Saved | None, had: Mapping[str, Position]) -> None:
        """Go on from what was saved, or anew from what the consumer had."""
        moves = self.relocation.events
        base = saved or Saved()
        # An origin that was met after the record was written is in it from now on: the next
        # script begins there, not where the consumer's end will be by then.
        vector = {**had, **dict(base.vector)}
        base = msgspec.structs.replace(base, vector=pairs(vector))
        self.base = base if moves else Saved(base.vector, base.checkpoint)
        self.had = dict(had)
        self.vector = vector if moves else {}
        self.script = deque(self.base.steps)
        self.mark = b"" if base.checkpoint is None else base.checkpoint.mark
        self._steps, self._steps_bytes = list(self.script), 0
        self._candidate = None
        self.clear()

    def clear(self) -> None:
        """Forget what flows brought: they are asked again, or no more."""
        self._queue.clear()
        self.queue_bytes = 0
        self._known = dict(self.vector)
        self.cut = False

    def stands(self, start: Mapping[str, Position]) -> list[LogSpan]:
        """Take where flows begin; give what nobody will deliver, if events do not move."""
        skipped: list[LogSpan] = []
        for origin, position in start.items():
            if origin in self.vector:
                continue
            known = self.had.get(origin, position)
            if position > known and not self.relocation.events:
                skipped.append(LogSpan(origin, known, position))
                known = position
            self._meet(origin, known)
        return skipped

    def _meet(self, origin: str, position: Position) -> None:
        """Begin with an origin: no checkpoint has anything of it."""
        self.vector[origin] = self._known[origin] = position
        self.base = _with(self.base, origin, position)
        if self._candidate is not None:
            self._candidate = _with(self._candidate, origin, position)

    # --- the queue

    def add(self, span: LogSpan, events: Events) -> None:
        """Queue what flows bring; what is known is left out."""
        if span.origin not in self.vector:
            self._meet(span.origin, span.after)
        known, upto = self._known[span.origin], span.upto
        if self.script:  # what the script does not need is asked for later
            needed = max(
                (one.upto for one in self.script if one.origin == span.origin), default=known
            )
            self.cut |= needed < upto
            upto = min(upto, needed)
        if upto <= known:
            return
        fresh = tuple(one for one in events if known < Position(span.upto.epoch, one[0]) <= upto)
        self._push(Work(LogSpan(span.origin, known, upto), fresh))

    def lose(self, span: LogSpan, reason: str) -> None:
        """Queue that a log no longer has something."""
        if span.origin not in self.vector:
            self._meet(span.origin, span.after)
        known = self._known[span.origin]
        self._push(Work(LogSpan(span.origin, known, span.upto), (), reason))

    def _push(self, work: Work) -> None:
        self._queue.append(work)
        self._known[work.span.origin] = work.span.upto
        self.queue_bytes += work.size

    @property
    def crowded(self) -> bool:
        """Whether flows should wait."""
        return self.queue_bytes > QUEUE_BYTES_MAX

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._queue

    @property
    def unconfirmed(self) -> bool:
        """Whether too much has gone out that the consumer's end has not confirmed."""
        full = len(self._steps) >= self._steps_max or self._steps_bytes >= STEPS_BYTES_MAX
        return self.keeps and full

    def next_work(self) -> list[Work]:
        """Take what modulators get next: the script's next step, or all that waits."""
        if self.script:
            return self._scripted(self.script[0])
        if self.unconfirmed:
            return []
        found = [self._queue.popleft() for _ in range(min(len(self._queue), JOB_SPANS_MAX))]
        self.queue_bytes -= sum(work.size for work in found)
        return found

    def _scripted(self, step: LogSpan) -> list[Work]:
        """Take one step of the script, once all of it is there."""
        own = [work for work in self._queue if work.span.origin == step.origin]
        if not own or own[-1].span.upto < step.upto:
            return []
        self.script.popleft()
        events = tuple(one for work in own for one in work.events)
        epoch = step.upto.epoch
        inside = tuple(one for one in events if Position(epoch, one[0]) <= step.upto)
        rest = Work(LogSpan(step.origin, step.upto, own[-1].span.upto), events[len(inside) :])
        others = [work for work in self._queue if work.span.origin != step.origin]
        # Among origins the order is the script's; what is left of one origin stays in its own.
        self._queue = deque([*others, rest] if rest.span.upto > step.upto else others)
        found = Work(LogSpan(step.origin, own[0].span.after, step.upto), inside)
        self.queue_bytes -= found.size
        return [found]

    # --- answers

    def answered(
        self, done: Sequence[Work], answers: Sequence[Events], mark: bytes, *, replayed: bool
    ) -> tuple[list[Work], bool]:
        """Note what modulators have taken; give what goes out, and whether steps were recorded."""
        self.mark = mark
        out: list[Work] = []
        recorded = False
        for work, left in zip(done, answers, strict=True):
            origin, upto = work.span.origin, work.span.upto
            span = LogSpan(origin, self.vector[origin], upto)
            self.vector[origin] = upto
            gone = Work(span, left, work.lost)
            self.bytes_out += gone.size
            had = self.had.get(origin, span.after)
            if replayed and had > span.after:  # its end had a part of it
                rest = tuple(one for one in left if Position(upto.epoch, one[0]) > had)
                gone = Work(LogSpan(origin, had, upto), rest, work.lost)
            self.events_in += len(work.events)
            self.bytes_in += work.size
            if not (replayed and had >= upto):
                out.append(gone)
            if self.keeps and work.events:
                self._steps_bytes += work.size
                if not replayed:  # else it is in the record already
                    recorded = True
                    self._note(span)
        return out, recorded

    def _note(self, span: LogSpan) -> None:
        covered = 0 if self._candidate is None else len(self._candidate.steps)
        last = self._steps[-1] if len(self._steps) > covered else None
        if last is not None and last.origin == span.origin:
            self._steps[-1] = LogSpan(span.origin, last.after, span.upto)
        else:
            self._steps.append(span)

    @property
    def wants_checkpoint(self) -> bool:
        """Whether a new checkpoint is worth its while."""
        much = len(self._steps) >= self._renew_steps or self._steps_bytes >= RENEW_BYTES
        return self.keeps and much and self._candidate is None and not self.script

    def checkpointed(self, checkpoint: Checkpoint) -> None:
        """Take a checkpoint of this moment: it is the base once the consumer had all before it."""
        self._candidate = Saved(pairs(self.vector), checkpoint, tuple(self._steps))

    def freeze(self, checkpoint: Checkpoint) -> None:
        """Take a checkpoint of this moment, which is the last one here."""
        self.base, self._steps, self._candidate = Saved(pairs(self.vector), checkpoint), [], None

    def confirm(self, had: Mapping[str, Position]) -> bool:
        """Take what the consumer's end had; return whether there is a new base for the disk."""
        for origin, position in had.items():
            if position > self.had.get(origin, Position(0, 0)):
                self.had[origin] = position
        found = self._candidate
        if found is None or not self._has(dict(found.vector)):
            return False
        self.base = Saved(found.vector, found.checkpoint)
        del self._steps[: len(found.steps)]
        self._steps_bytes, self._candidate = 0, None
        return True

    def _has(self, vector: Mapping[str, Position]) -> bool:
        return all(self.had.get(one, Position(0, 0)) >= at for one, at in vector.items())

    @property
    def whole(self) -> bool:
        """Whether a checkpoint of this moment says everything: its end had all that went out."""
        return not self.relocation.events or self._has(self.vector)

    def saved(self) -> Saved:
        """Give what the next home, or this one after a crash, goes on from."""
        mark = self.base.mark if self.base.steps else self.mark  # until the script is over
        return Saved(self.base.vector, self.base.checkpoint, tuple(self._steps), mark)

    def replayed(self) -> bool:
        """The script is over; return whether its answers were those of the first time."""
        same = not self.base.steps or self.mark == self.base.mark
        self.base = Saved(self.base.vector, self.base.checkpoint)
        return same

    @property
    def passed(self) -> float | None:
        """Which share of bytes leaves the modulators; None: too few events were here to say."""
        if self.events_in < PASSED_EVENTS_MIN or not self.bytes_in:
            return None
        return min(1.0, self.bytes_out / self.bytes_in)


def _with(saved: Saved, origin: str, position: Position) -> Saved:
    vector = pairs({origin: position, **dict(saved.vector)})
    return msgspec.structs.replace(saved, vector=vector)
