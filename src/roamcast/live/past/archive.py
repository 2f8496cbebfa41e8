"""A service's own archive: fed batch by batch, each once, and read for questions about the past.

One feed per archive: every batch names the one before it, and an archive whose last batch is
another is refused by name (decision 0108). Times are rounded where they enter (0089).
"""

from base64 import urlsafe_b64decode
from contextlib import suppress
from typing import Final

from msgspec import structs

from roamcast.channels.past.asking import Asked
from roamcast.channels.past.messages import ArchiveBatch
from roamcast.errors import LimitError, MissingError
from roamcast.identity.live_blur import GRID_S
from roamcast.identity.sealing import HYBRID_BYTES, X25519_BYTES
from roamcast.model.context_arrow import columns_of, from_arrow, schema, to_arrow
from roamcast.model.contexts import SEALING_KEY, Context
from roamcast.model.filters import Filter
from roamcast.model.filters.text import of as text_of
from roamcast.model.time import EARLIEST, FOREVER, LATEST, format_instant
from roamcast.pipeline.archive.append import append
from roamcast.pipeline.archive.feed import FEED
from roamcast.pipeline.archive.layout import ArchiveSettings
from roamcast.pipeline.archive.retention import erase, retain, thicken
from roamcast.pipeline.archive.table import Archive

KEY_SIZES: Final = (X25519_BYTES, HYBRID_BYTES)
DAY_US: Final = 86_400_000_000

CONTEXTS_MAX: Final = 100_000
"""Archived contexts that one question may read; one that would read more is refused."""


class FedArchive:
    """The archive that a service feeds."""

    def __init__(
        self, place: str, days: float = 0.0, *, grid_s: int = GRID_S, crowd_min: int = 0
    ) -> None:
        """`days`: the age at which a context leaves; 0: none does.

        `grid_s` is for an archive that is made now; `crowd_min` coarsens once a day (0220).
        """
        self._place = place
        self._days = days
        self._crowd_min = crowd_min
        self._retained = 0
        try:
            self._archive = Archive.open(place)  # whatever its grid is
        except MissingError:
            self._archive = Archive.make(place, ArchiveSettings(grid_s=grid_s))
        self.rows = self._count()

    def has(self, number: int) -> bool:
        """Whether the batch of this number is there."""
        self._archive.refresh()
        return self._archive.last_batch(FEED) == number

    def append(self, batch: ArchiveBatch, contexts: list[Context]) -> None:
        """Append a batch, or raise; what has no room among the columns is left out."""
        room = self._archive.room(columns_of(contexts))
        into = schema([column for column in columns_of(contexts) if column in room])
        table = to_arrow(contexts, into)
        append(table, self._place, transaction=(FEED, batch.number), after=batch.after)
        self._archive.refresh()
        self.rows = self._count()

    def retain(self, now: int) -> None:
        """Once a day, drop what is too old, and coarsen what few share."""
        if now < self._retained + DAY_US:
            return
        self._retained = now
        if self._days:
            retain(self._place, drop_before=now - int(self._days * DAY_US))
        if self._crowd_min:
            thicken(self._place, self._crowd_min)

    def contexts(self, asked: Asked, keys: dict[str, bytes] | None = None) -> list[Context]:
        """Read the archived contexts that may matter for a question.

        `keys` takes the keys that vids of them are sealed to; they are shown to nobody.
        """
        from roamcast.pipeline.lookup.rows import matching

        low, high = asked.reach
        wanted = text_of(asked.without_times)
        if low > -FOREVER or high < FOREVER:
            first = ".." if low <= EARLIEST else format_instant(low)
            last = ".." if high >= LATEST else format_instant(high)
            if (first, last) != ("..", ".."):
                wanted = f"({wanted}) AND T_INTERSECTS(time, INTERVAL('{first}','{last}'))"
        try:
            found = matching(self._place, Filter.parse(wanted), CONTEXTS_MAX)
        except MissingError:
            return []
        if found.num_rows > CONTEXTS_MAX:
            raise LimitError(
                f"this question reads more than {CONTEXTS_MAX} archived contexts: ask for a "
                "shorter time or a smaller place, or use `roamcast pipeline lookup`"
            )
        return [_without_key(one, {} if keys is None else keys) for one in from_arrow(found)]

    def first(self) -> int | None:
        """Give when the earliest archived context began; None while there is none."""
        self._archive.refresh()
        starts = self._archive.files()["min.t_r"].to_pylist()
        known = [round(one.timestamp() * 1_000_000) for one in starts if one is not None]
        return min(known, default=None)

    def erase(self, vid: str) -> int:
        """Delete a vid's contexts; give how many there were."""
        done = erase(self._place, [vid]).rows_erased
        self._archive.refresh()
        self.rows = self._count()
        return done

    def _count(self) -> int:
        return int(sum(self._archive.files()["num_records"].to_pylist()))


def _without_key(context: Context, keys: dict[str, bytes]) -> Context:
    """Take the key of its vid off a context."""
    text = context.attributes.get(SEALING_KEY)
    if text is None:
        return context
    with suppress(ValueError):  # somebody published an attribute of this name
        key = urlsafe_b64decode(str(text))
        if len(key) in KEY_SIZES:
            keys[context.vid] = key
    others = {name: one for name, one in context.attributes.items() if name != SEALING_KEY}
    return structs.replace(context, attributes=others)
