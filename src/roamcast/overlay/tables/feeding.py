"""What this broker tells the overlay of itself: `TableFeeding` fills its tables from the map.

It follows the map through the past, which hears of every state before anybody is answered. Tables
tell neighbours only what everybody may see (decision 0130): a context that rules hide from anybody
is no member of the crowd; a veil stands for all of those, as long as there are any rules at all.

`Crowd` and `Areas` are this part's. `Wants` is there for the parts that subscribe.

A node's past stays where it was when its places change (trap 7). So all places that it ever served
are on disk, and those that it serves no more are an area of their own (decision 0131).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from roamcast.errors import LimitError, MovedError
from roamcast.matching.aggregate import BUDGET, EMPTY, anything_in
from roamcast.model.areas import EVERYWHERE, PIECES_MAX, Area, Patch
from roamcast.model.contexts import Context, path_within
from roamcast.model.events import RulesChanged
from roamcast.model.machine import Effect, Entry, Store, Stored, StoreFailed, Writes, earliest
from roamcast.model.parts import Occupancy, Part
from roamcast.model.time import MICROSECONDS
from roamcast.overlay.events import TablesTouched
from roamcast.overlay.tables.areas import Areas
from roamcast.overlay.tables.crowd import Crowd
from roamcast.overlay.tables.directory import Directory, NodeEntry
from roamcast.overlay.tables.table import LINGER_US, Table
from roamcast.overlay.tables.wants import Wants

OWN: Final = "own"
"""The name of the broker's own area, beside those of its past."""


FORMER: Final = "former"
"""The name of the area where the node's past may lie, beside its own."""

SERVED: Final = "areas/served"
PLACES_MAX: Final = PIECES_MAX
"""Places that a node ever served; one with more may have its past anywhere."""

OUTSIDE_MAX: Final = 1_024
"""Places of restored contexts that wait for the places of old; more count as anywhere."""

RETRY_US: Final = 200_000


class TableSettings(msgspec.Struct, frozen=True):
    """Intervals in microseconds."""

    crowd_bytes: int = BUDGET
    """Bytes of a summary."""
    watermark_us: int = 5 * MICROSECONDS
    """How often neighbours learn up to when everything is accounted for."""
    flush_us: int = 100_000
    """How often changes of this broker's own contexts are offered at most."""
    linger_us: int = LINGER_US


def standard_tables(settings: TableSettings) -> tuple[Areas, Crowd, Wants, Directory]:
    """Make the tables of a node."""
    linger_us = settings.linger_us
    crowd = Crowd(
        budget=settings.crowd_bytes, watermark_us=settings.watermark_us, linger_us=linger_us
    )
    directory = Directory(linger_us=linger_us)
    return Areas(linger_us=linger_us), crowd, Wants(linger_us=linger_us), directory


class NodeView(msgspec.Struct, frozen=True):
    """A node for people: its name, where it is reached, the places it serves."""

    node: str
    url: str
    places: tuple[str, ...]


class TableFeeding(Part):
    """This broker's own entries of the tables; a `Follower` of the past."""

    part: ClassVar[str] = "feeding"
    inputs: ClassVar = (RulesChanged,)
    prefix: ClassVar[str] = "areas/"

    def __init__(
        self,
        tables: Sequence[Table],
        own: NodeEntry,
        settings: TableSettings,
    ) -> None:
        """`own`: what the node tells of itself."""
        by_name = {table.name: table for table in tables}
        self._crowd = by_name.get(Crowd.name)
        self._areas = by_name.get(Areas.name)
        self._wants = by_name.get(Wants.name)
        self._directory = by_name.get(Directory.name)
        self.own = own
        self.places = own.places
        self._settings = settings
        self._is_public: Callable[[str], bool] = lambda _: True
        self._restricted: Callable[[], Collection[str] | None] = lambda: ()
        self._unknown_until = 0
        self._fed = False
        self._full = False
        """Whether some member had no room in the crowd."""
        self._astray = False
        """Whether something lies outside all places that the node ever served."""
        self._former: tuple[str, ...] = ()
        """Places that this node served before."""
        self._outside: set[str] | None = set()
        """Places of contexts that were restored before `_former` was; None: it is known."""
        self._unwritten = False
        self._writing = False
        self._retry_at: int | None = None
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

    @property
    def directory(self) -> Directory:
        """Nodes beyond each link, and where people reach them."""
        assert isinstance(self._directory, Directory), "this node has no directory"
        return self._directory

    def nodes(self) -> list["NodeView"]:
        """Describe this node and the others, for people."""
        others = [] if self._directory is None else self.directory.nodes()
        return [NodeView(one.node, one.url, one.places) for one in (self.own, *others)]

    def check_place(self, place: str | None) -> None:
        """Refuse what another node serves, and say where that is."""
        if place is None or not self.places or self._directory is None:
            return
        if not any(path_within(place, own) for own in self.places):
            other = self.directory.serving(place) or NodeEntry("")
            raise MovedError.to(place, other.node, other.url)

    def node_at(self, place: str) -> str | None:
        """Name the node that serves a place; None where no node that is known does."""
        if not self.places or any(path_within(place, own) for own in self.places):
            return self.own.node
        other = None if self._directory is None else self.directory.serving(place)
        return None if other is None else other.node

    def url_of(self, node: str) -> str:
        """Give where people reach a node; empty where that is not known."""
        return next((one.url for one in self.nodes() if one.node == node), "")

    def under(
        self, is_public: Callable[[str], bool], restricted: Callable[[], Collection[str] | None]
    ) -> None:
        """Ask this whether everybody sees all of a vid, and which vids have rules; None: any."""
        self._fed = True
        self._is_public = is_public
        self._restricted = restricted

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
        self._place(context)
        if not self._is_public(context.vid):
            self.crowd.end(context.vid)
            self._draw_veil()
            return
        try:
            self.crowd.put(msgspec.structs.replace(context, t_d=None))
        except LimitError:  # unknown means yes
            self._full = True
            self._draw_veil()

    def ends(self, context: Context) -> None:
        """A vid is on the map no more; summaries keep it for a while."""
        if self._crowd is not None:
            self._touched = True
            self.crowd.end(context.vid)

    def _place(self, context: Context) -> None:
        """Note a context that lies outside all places that this node serves or served."""
        place = context.place
        if place is None or self._served(place):
            return
        if self._outside is None:
            self._go_astray()
        elif len(self._outside) < OUTSIDE_MAX:
            self._outside.add(place)
        else:
            self._astray = True

    def _served(self, place: str) -> bool:
        ever = (*self.places, *self._former)
        return not self.places or any(path_within(place, own) for own in ever)

    def _go_astray(self) -> None:
        """Something lies where this node never was: its past may be anywhere, for good."""
        if not self._astray:
            self._astray = self._unwritten = True
            self._offer_areas()
            self._draw_veil()

    def _offer_areas(self) -> None:
        if self._areas is None or not self._fed:
            return
        self.areas.put(OWN, served(self.places))
        if self._directory is not None:
            self.directory.put(OWN, self.own)
        if self._astray:
            self.areas.put(FORMER, EVERYWHERE)
        elif self._former:
            self.areas.put(FORMER, served(self._former))
        self._touched = True

    def _draw_veil(self) -> None:
        """Admit what rules hide; whether somebody is there makes no difference to it."""
        if self._crowd is None:
            return
        restricted = self._restricted()
        if self._full or self._unknown_until:
            self.crowd.veil(anything_in(()))
        elif restricted is None or len(restricted):
            anywhere = self._astray or not self.places
            self.crowd.veil(anything_in(() if anywhere else (*self.places, *self._former)))
        else:
            self.crowd.veil(EMPTY)

    # --- the machine --------------------------------------------------------------------------

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Take up the places that this node ever served, and write those that are new."""
        del now
        value = stored.get(SERVED)
        self._take(() if value is None else _decode(value))
        outside, self._outside = self._outside, None
        if not all(self._served(place) for place in sorted(outside or ())):
            self._go_astray()
        self._draw_veil()
        return self._write()

    def adopt(self, entries: Sequence[Entry], now: int) -> Sequence[Effect]:
        """Take up what another host of this node knew."""
        del now
        for entry in entries:
            if entry.key == SERVED and entry.value is not None:
                self._take(_decode(entry.value))
        return self._write()

    def _take(self, ever: Sequence[str]) -> None:
        """Add places that this node served; without a name it is anywhere."""
        known = {*self.places, *self._former}
        former = tuple(place for place in ever if place and place not in known)
        self._former = (*self._former, *former)[:PLACES_MAX]
        self._astray = self._astray or "" in ever or len(known) + len(former) > PLACES_MAX
        self._unwritten = self._unwritten or set(ever) != set(self._ever)
        self._offer_areas()

    @property
    def _ever(self) -> tuple[str, ...]:
        """Every place that this node served; an empty one is anywhere."""
        own = self.places or ("",)
        return tuple(sorted({*own, *self._former, *(("",) if self._astray else ())}))[:PLACES_MAX]

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Rules have changed: the veil stands as long as there are any. Or the disk answered."""
        match given:
            case RulesChanged():
                self._touched = True
                self._draw_veil()
            case Stored():
                self._writing = False
            case StoreFailed():
                self._writing = False
                self._unwritten = True
                self._retry_at = now + RETRY_US
            case _:
                raise AssertionError(f"the feeding takes no {type(given).__name__}")
        return ()

    def advance(self, now: int) -> Sequence[Effect]:
        """Offer what has changed."""
        effects: list[Effect] = []
        if self._retry_at is not None and self._retry_at <= now:
            self._retry_at = None
        if self._retry_at is None:
            effects += self._write()
        due = self._flush_at()
        if due is None or due > now:
            return effects
        if self._unknown_until <= now:
            self._unknown_until = 0
        self._draw_veil()
        self._touched = False
        self._flushed = now
        return [*effects, TablesTouched()]

    def deadline(self) -> int | None:
        """When changes are offered, or written again."""
        return earliest(self._flush_at(), self._retry_at)

    def _flush_at(self) -> int | None:
        if self._crowd is None:
            return None
        if self._touched:
            return self._flushed + self._settings.flush_us
        return self._unknown_until or None

    def unstored(self) -> Writes:
        """Give what must be on disk before a context is: otherwise its past might not be found."""
        return self._row() if self._writing or self._unwritten else ()

    def _row(self) -> Writes:
        return ((SERVED, msgspec.msgpack.encode(self._ever)),)

    def _write(self) -> list[Effect]:
        if not self._unwritten or self._writing or not self._fed:
            return []
        self._unwritten, self._writing = False, True
        return [Store(1, self._row())]

    def occupancy(self) -> Occupancy:
        """How many places are known."""
        return {
            "former places": (len(self._former), PLACES_MAX),
            "outside": (len(self._outside or ()), OUTSIDE_MAX),
        }


def served(places: Sequence[str]) -> Area:
    """Give the area that a node serves."""
    return Area((Patch(places=tuple(places)),)) if places else EVERYWHERE


_decode: Final = msgspec.msgpack.Decoder(tuple[str, ...]).decode
