"""A service's own archive: fed batch by batch, each once, and read for questions about the past.

One feed per archive: every batch names the one before it, and an archive whose last batch is
another is refused by name (decision 0108). Times are rounded where they enter (0089).
"""

from typing import Final

from roamcast.channels.past.asking import Asked
from roamcast.channels.past.messages import ArchiveBatch
from roamcast.errors import LimitError, MissingError
from roamcast.model.context_arrow import columns_of, from_arrow, schema, to_arrow
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.text import of as text_of
from roamcast.model.time import EARLIEST, FOREVER, LATEST, format_instant
from roamcast.pipeline.archive.append import append
from roamcast.pipeline.archive.feed import FEED
from roamcast.pipeline.archive.retention import erase, retain
from roamcast.pipeline.archive.table import Archive

DAY_US: Final = 86_400_000_000

CONTEXTS_MAX: Final = 100_000
"""Archived contexts that one question may read; one that would read more is refused."""


class FedArchive:
    """The archive that a service feeds."""

    def __init__(self, place: str, days: float = 0.0) -> None:
        """`days`: the age at which a context leaves; 0: none does."""
        self._place = place
        self._days = days
        self._retained = 0
        self._archive = Archive.make(place)
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
        """Once a day, drop what is too old."""
        if not self._days or now < self._retained + DAY_US:
            return
        self._retained = now
        retain(self._place, drop_before=now - int(self._days * DAY_US))

    def contexts(self, asked: Asked) -> list[Context]:
        """Read the archived contexts that may matter for a question."""
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
        return from_arrow(found)

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
