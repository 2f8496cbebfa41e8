"""What this broker tells the overlay of itself: `TableFeeding` fills its tables from the map.

It follows the map through the past, which hears of every state before anybody is answered. Tables
tell neighbours only what everybody may see (decision 0130): a context that rules hide from anybody
is no member of the crowd; a veil stands for all of those, as long as there are any rules at all.

`Crowd` and `Areas` are this part's. `Wants` is there for the parts that subscribe.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, Final

import msgspec

from roamcast.errors import LimitError
from roamcast.matching.aggregate import BUDGET, EMPTY, anything_in
from roamcast.model.areas import EVERYWHERE, Area, Patch
from roamcast.model.contexts import Context, path_within
from roamcast.model.events import RulesChanged
from roamcast.model.machine import Effect
from roamcast.model.parts import Occupancy, Part
from roamcast.model.time import MICROSECONDS
from roamcast.overlay.events import TablesTouched
from roamcast.overlay.tables.areas import Areas
from roamcast.overlay.tables.crowd import Crowd
from roamcast.overlay.tables.table import LINGER_US, Table
from roamcast.overlay.tables.wants import Wants

OWN: Final = "own"
"""The name of the broker's own area, beside those of its past."""


class TableSettings(msgspec.Struct, frozen=True):
    """Intervals in microseconds."""

    crowd_bytes: int = BUDGET
    """Bytes of a summary."""
    watermark_us: int = 5 * MICROSECONDS
    """How often neighbours learn up to when everything is accounted for."""
    flush_us: int = 100_000
    """How often changes of this broker's own contexts are offered at most."""
    linger_us: int = LINGER_US


def standard_tables(settings: TableSettings) -> tuple[Areas, Crowd, Wants]:
    """Make the tables of a node."""
    linger_us = settings.linger_us
    crowd = Crowd(
        budget=settings.crowd_bytes, watermark_us=settings.watermark_us, linger_us=linger_us
    )
    return Areas(linger_us=linger_us), crowd, Wants(linger_us=linger_us)


class TableFeeding(Part):
    """This broker's own entries of the tables; a `Follower` of the past."""

    part: ClassVar[str] = "feeding"
    inputs: ClassVar = (RulesChanged,)

    def __init__(
        self, tables: Sequence[Table], places: Sequence[str], settings: TableSettings
    ) -> None:
        """`places`: what the node serves; none for everything."""
        by_name = {table.name: table for table in tables}
        self._crowd = by_name.get(Crowd.name)
        self._areas = by_name.get(Areas.name)
        self._wants = by_name.get(Wants.name)
        self.places = tuple(places)
        self._settings = settings
        self._is_public: Callable[[str], bool] = lambda _: True
        self._restricted: Callable[[], Collection[str] | None] = lambda: ()
        self._unknown_until = 0
        self._astray = False
        """Whether something that rules hide lies outside the node's places, or has no room."""
        self._touched = True
        self._flushed = 0

    @property
    def crowd(self) -> Crowd:
        """Contexts beyond each link, asked with a filter."""
        assert isinstance(self._crowd, Crowd), "this node has no crowd"
        return self._crowd

    @property
    def areas(self) -> Areas:
        """Areas and archives beyond each link, asked with a target."""
        assert isinstance(self._areas, Areas), "this node has no areas"
        return self._areas

    @property
    def wants(self) -> Wants:
        """Filters beyond each link, asked with a context; who subscribes returns TablesTouched."""
        assert isinstance(self._wants, Wants), "this node has no wants"
        return self._wants

    def under(
        self, is_public: Callable[[str], bool], restricted: Callable[[], Collection[str] | None]
    ) -> None:
        """Ask this whether everybody sees all of a vid, and which vids have rules; None: any."""
        self._is_public = is_public
        self._restricted = restricted
        if self._areas is not None:
            self.areas.put(OWN, served(self.places))

    def unknown_until(self, instant: int) -> None:
        """Admit everything until then: clients of an earlier life are on their way back."""
        self._unknown_until = instant
        self._touched = True

    # --- the follower -------------------------------------------------------------------------

    def shows(self, context: Context) -> None:
        """Take what the map shows of a vid; its end may be any from now on, whatever it says."""
        if self._crowd is None:
            return
        self._touched = True
        if not self._is_public(context.vid):
            self.crowd.end(context.vid)
            self._astray = self._astray or not self._serves(context)
            self._draw_veil()
            return
        try:
            self.crowd.put(msgspec.structs.replace(context, t_d=None))
        except LimitError:  # unknown means yes
            self._astray = True
            self._draw_veil()
        if not self._serves(context):
            self._stray(context)

    def ends(self, context: Context) -> None:
        """A vid is on the map no more; summaries keep it for a while."""
        if self._crowd is not None:
            self._touched = True
            self.crowd.end(context.vid)

    def _serves(self, context: Context) -> bool:
        place = context.place
        if place is None or not self.places:
            return True
        return any(path_within(place, own) for own in self.places)

    def _stray(self, context: Context) -> None:
        """Something lies outside of the node's own area: it will be in its past."""
        del context
        if self._areas is not None:
            self.areas.put("astray", EVERYWHERE)

    def _draw_veil(self) -> None:
        """Admit what rules hide; whether somebody is there makes no difference to it."""
        restricted = self._restricted()
        if self._astray or self._unknown_until:
            self.crowd.veil(anything_in(()))
        elif restricted is None or len(restricted):
            self.crowd.veil(anything_in(self.places))
        else:
            self.crowd.veil(EMPTY)

    # --- the machine --------------------------------------------------------------------------

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Rules have changed: the veil stands as long as there are any."""
        del now
        assert isinstance(given, RulesChanged)
        if self._crowd is not None:
            self._touched = True
            self._draw_veil()
        return ()

    def advance(self, now: int) -> Sequence[Effect]:
        """Offer what has changed."""
        due = self.deadline()
        if self._crowd is None or due is None or due > now:
            return ()
        if self._unknown_until <= now:
            self._unknown_until = 0
        self._draw_veil()
        self._touched = False
        self._flushed = now
        return (TablesTouched(),)

    def deadline(self) -> int | None:
        """When changes are offered."""
        if self._crowd is None:
            return None
        if self._touched:
            return self._flushed + self._settings.flush_us
        return self._unknown_until or None

    def occupancy(self) -> Occupancy:
        """Nothing is held here."""
        return {}


def served(places: Sequence[str]) -> Area:
    """Give the area that a node serves."""
    return Area((Patch(places=tuple(places)),)) if places else EVERYWHERE
