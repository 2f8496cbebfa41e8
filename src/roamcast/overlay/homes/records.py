"""What a home knows of one consumer with modulators: on disk, in a parcel, in memory."""

import enum
from typing import Final

import msgspec

from roamcast.model.machine import Writes
from roamcast.overlay.handoff.messages import Attachment
from roamcast.overlay.homes.messages import HomeClaim
from roamcast.overlay.homes.relocation import LogSpan, ModulatedConsumer, Relocation, Saved, Work
from roamcast.overlay.modulators.specs import Spec

PREFIX: Final = "serving/"
BASE: Final = PREFIX + "base/"
STEPS: Final = PREFIX + "steps/"
GONE: Final = PREFIX + "gone/"


class ServingState(enum.StrEnum):
    """Where a consumer stands at this home."""

    ASKING = "asking"
    SERVING = "serving"
    AWAY = "away"
    GIVING = "giving"


class ServingEvent(enum.StrEnum):
    """What moves it on."""

    KNOWN = "its state is here, or not needed"
    LEFT = "its session is over"
    CAME = "its session begins again"
    CLAIMED = "another node serves it"


_S, _E = ServingState, ServingEvent
SERVING_TABLE: Final = {
    (_S.ASKING, _E.KNOWN): _S.SERVING,
    (_S.SERVING, _E.LEFT): _S.AWAY,
    (_S.SERVING, _E.CAME): _S.SERVING,
    (_S.AWAY, _E.CAME): _S.SERVING,
    (_S.SERVING, _E.CLAIMED): _S.GIVING,
    (_S.AWAY, _E.CLAIMED): _S.GIVING,
    (_S.ASKING, _E.CLAIMED): _S.GIVING,
}


class ServedRecord(msgspec.Struct, frozen=True):
    """A consumer as it is stored, and as it travels in a parcel."""

    consumer: str
    owner: str
    attachment: Attachment
    wanted: str
    specs: tuple[Spec, ...]
    relocation: Relocation
    saved: Saved


class StoredSteps(msgspec.Struct, frozen=True):
    """What came since the checkpoint."""

    steps: tuple[LogSpan, ...]
    mark: bytes


class GoneConsumer(msgspec.Struct, frozen=True):
    """A consumer's state was given to another node."""

    attachment: Attachment
    to: str


encode = msgspec.msgpack.Encoder().encode
read_record = msgspec.msgpack.Decoder(ServedRecord).decode
read_steps = msgspec.msgpack.Decoder(StoredSteps).decode
read_gone = msgspec.msgpack.Decoder(GoneConsumer).decode


class ServedConsumer:
    """One consumer here."""

    def __init__(self, record: ServedRecord, state: ServingState, work: ModulatedConsumer) -> None:
        self.name = record.consumer
        self.owner = record.owner
        self.attachment = record.attachment
        self.wanted = record.wanted
        self.state = state
        self.work = work
        self.ticket: int | None = None
        self.weight = 0.0
        self.instance = 0
        """Of its modulators; 0 while there are none."""
        self.doing: list[Work] | None = None
        """With the modulators."""
        self.replaying = False
        self.frozen = False
        """The base is a checkpoint of the very end."""
        self.out: list[Work] = []
        """What goes out once the record is on disk."""
        self.store = 0
        """The token of the record that is on its way to the disk."""
        self.stored = False
        """Whether something of it may be on disk."""
        self.flowing = False
        self.lacks: set[str] = set()
        """Modules that are not here yet."""
        self.beginning = False
        """Events come, and who asked is told, once the record is on disk: …"""
        self.continued = False
        """… whether modulators go on where they were, …"""
        self.anew = ""
        """… and if they should have, why not."""
        self.claim: HomeClaim | None = None
        """Who serves it from now on."""
        self.posting = False

    @property
    def busy(self) -> bool:
        """Whether modulators or the disk have something of it."""
        return self.doing is not None or bool(self.store) or self.posting

    def record(self) -> ServedRecord:
        """Give what is stored of it."""
        work = self.work
        return ServedRecord(
            self.name, self.owner, self.attachment, self.wanted, work.specs, work.relocation,
            work.saved(),
        )  # fmt: skip


class ServedView(msgspec.Struct, frozen=True):
    """One consumer with modulators, for people."""

    consumer: str
    state: str
    modulators: list[str]
    events: int
    passed: float


def record_of(record: ServedRecord) -> Writes:
    """Write a record: the checkpoint, which is large and rarely new, and what came since."""
    saved = record.saved
    base = msgspec.structs.replace(record, saved=Saved(saved.vector, saved.checkpoint))
    steps = StoredSteps(saved.steps, saved.mark)
    return ((BASE + record.consumer, encode(base)), (STEPS + record.consumer, encode(steps)))


def deleted(name: str) -> Writes:
    """Forget a record."""
    return ((BASE + name, None), (STEPS + name, None))


def joined(record: ServedRecord, steps: bytes | None) -> ServedRecord:
    """Put a stored record together."""
    if steps is None:
        return record
    found = read_steps(steps)
    saved = Saved(record.saved.vector, record.saved.checkpoint, found.steps, found.mark)
    return msgspec.structs.replace(record, saved=saved)
