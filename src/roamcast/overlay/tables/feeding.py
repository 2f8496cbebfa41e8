"""What this broker tells the overlay of itself: `TableFeeding` fills its tables from the map.

It follows the map through the past, which hears of every state before anybody is answered. Tables
tell neighbours only what everybody may see (decision 0130): a context that rules hide from anybody
is no member of the crowd; a veil stands for all of those, as long as there are any rules at all.

`Crowd` and `Areas` are this part's. `Wants` is there for the parts that subscribe.

A node's past stays where it was when its places change (trap 7). So all places that it ever served
are on disk, with the days on which somebody was there (decision 0180); each place is an area.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from roamcast.errors import LimitError, MovedError
from roamcast.matching.aggregate import BUDGET, EMPTY, anything_in
from roamcast.model.areas import PIECES_MAX, Area, Patch
from roamcast.model.contexts import Context
from roamcast.model.events import RulesChanged
from roamcast.model.machine import Effect, Entry, Store, Stored, StoreFailed, Writes, earliest
from roamcast.model.parts import Occupancy, Part
from roamcast.model.service_areas import Point, is_polygon, judges, serves
from roamcast.model.time import MICROSECONDS
from roamcast.overlay.events import TablesTouched
from roamcast.overlay.tables.areas import Areas
from roamcast.overlay.tables.crowd import Crowd
from roamcast.overlay.tables.days import FIRST_DAY, Days, Range, areas_of
from roamcast.overlay.tables.directory import Directory, NodeEntry
from roamcast.overlay.tables.table import LINGER_US, Table
from roamcast.overlay.tables.wants import Wants

OWN: Final = "own"
"""The name of what the node tells of itself in the directory."""

SERVED: Final = "areas/served"
DAYS: Final = "areas/days"
PLACES_MAX: Final = PIECES_MAX
"""Places that a node ever served; one with more may have its past anywhere."""

OUTSIDE_MAX: Final = 1_024
"""Places of restored contexts that wait for the places of old; more count as anywhere."""

NOTED_MAX: Final = 4_096
"""Places whose last days are remembered; then that begins anew."""

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
    day_us: int = 86_400 * MICROSECONDS
    """Length of a day: the past is told day by day."""
    margin_us: int = 7_200 * MICROSECONDS
    """How far times of the past may be off: archives round them outwards, clocks differ."""
    retention_us: int = 0
    """How long the past is kept; 0: for ever."""


def standard_tables(settings: TableSettings) -> tuple[Areas, Crowd, Wants, Directory]:
    """Make the tables of a node."""
    linger_us = settings.linger_us
    crowd = Crowd(
        budget=settings.crowd_bytes, watermark_us=settings.watermark_us, linger_us=linger_us
    )
    directory = Directory(linger_us=linger_us)
    return Areas(linger_us=linger_us), crowd, Wants(linger_us=linger_us), directory


class NodeView(msgspec.Struct, frozen=True):
    """A node for people: its name, where it is reached, the places and polygons it serves."""

    node: str
    url: str
    places: tuple[str, ...]
    polygons: tuple[str, ...] = ()


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
        *,
        has_past: bool = False,
    ) -> None:
        """`own`: what the node tells of itself.

        `has_past`: whether its archive may hold more than its store knows of.
        """
        by_name = {table.name: table for table in tables}
        self._crowd = by_name.get(Crowd.name)
        self.follows: Collection[Any] = () if self._crowd is None else (self._crowd,)
        self._areas = by_name.get(Areas.name)
        self._wants = by_name.get(Wants.name)
        self._directory = by_name.get(Directory.name)
        self.own = own
        self.places = own.areas
        """Service areas: places, and polygons as texts."""
        self._below = tuple(f"{place}/" for place in own.places)
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
        self._outside: dict[str, Range] | None = {}
        """Places and days of what was restored before `_former` was; None: it is known."""
        self._days: dict[str, Days] = {}
        """Places → days on which somebody was there; those without a name: anywhere."""
        self._noted: dict[str | None, Range] = {}
        """Places of contexts → when all days are marked, today too; most are there again.

        Whoever comes with an update looks here itself: before it is stored, and after.
        """
        self._day: int | None = None
        """The day up to which days are accounted for."""
        self._tomorrow: int | None = None
        """When it ends."""
        self._has_past = has_past
        self._unwritten = False
        self._writing = False
        self._retry_at: int | None = None
        self._stale = False
        """Whether areas are to be offered anew."""
        self._offered: frozenset[str] = frozenset()
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
        """Describe this node and the others, each once, for people.

        While the tree changes, a node is told of itself, and of others as they were before.
        """
        others = [] if self._directory is None else self.directory.nodes()
        found = {one.node: one for one in (self.own, *others)} | {self.own.node: self.own}
        return [NodeView(one.node, one.url, one.places, one.polygons) for one in found.values()]

    def check_place(self, place: str | None, point: Point | None = None) -> None:
        """Refuse what another node serves, and say where that is."""
        if not self.places or self._directory is None:
            return
        if place is not None and (place.startswith(self._below) or place in self.places):
            return  # soon decided: it is asked of every update
        if serves(self.places, place, point):
            return
        other = self.directory.serving(place, point) or NodeEntry("")
        where = f"POINT ({point[0]} {point[1]})" if place is None and point is not None else place
        raise MovedError.to(where or "", other.node, other.url)

    def node_at(self, place: str) -> str | None:
        """Name the node that serves a place; None where no node that is known does."""
        if not self.places or any(judges(own, place, None) for own in self.places):
            return self.own.node
        other = None if self._directory is None else self.directory.serving(place)
        if other is None:  # a polygon of ours may hold it
            return self.own.node if serves(self.places, place, None) else None
        return other.node

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
        public, crowd = self._is_public(context.vid), self._crowd
        assert isinstance(crowd, Crowd), "this node has no crowd"
        noted = self._noted.get(context.place)
        if noted is None or not public or not noted[0] <= context.t_r < noted[1]:
            self._place(context, None, public)
        if not public:
            crowd.end(context.vid)
            self._touched = True
            self._draw_veil()
            return
        if context.t_d is not None:
            context = msgspec.structs.replace(context, t_d=None)
        try:
            if crowd.put(context):
                self._touched = True
        except LimitError:  # unknown means yes
            self._full = self._touched = True
            self._draw_veil()

    def ends(self, context: Context) -> None:
        """A vid is on the map no more; summaries keep it for a while."""
        if self._crowd is not None:
            self._place(context, context.t_d, self._is_public(context.vid))
            self.crowd.end(context.vid)

    def _place(self, context: Context, end: int | None, public: bool) -> None:
        """Note where and on which days a context is; one that lasts is there today as well."""
        day_us, today = self._settings.day_us, self._day
        first = context.t_r // day_us
        last = first if end is None else end // day_us
        if end is None and today is not None and today > first:
            last = today
        place, point = context.place, context.point
        served = self._served(place, point)
        if self._outside is not None and place is not None and not served:
            known = self._outside.get(place, (first, last))
            if place in self._outside or len(self._outside) < OUTSIDE_MAX:
                self._outside[place] = min(first, known[0]), max(last, known[1])
            else:
                self._astray = True
                self._mark(("",), first, last)
            return
        self._mark(self._keys(place, point), first, last)
        if not public:  # 0130: where they are makes no difference
            self._mark(self.places, first, last)
        if not served:
            self._go_astray()
        if end is not None or self._polygons:
            return  # it is not there today; or the place alone does not say where it counts
        if len(self._noted) >= NOTED_MAX:
            self._noted.clear()
        self._noted[place] = first * day_us, (last + 1) * day_us

    def _keys(self, place: str | None, point: Point | None = None) -> tuple[str, ...]:
        """Name the areas, of those ever served, that hold a context or cannot tell."""
        ever = (*self.places, *self._former)
        found = tuple(own for own in ever if judges(own, place, point) is not False)
        return found if found and self.places else (*found, "")

    @property
    def _polygons(self) -> bool:
        """Whether some area ever served is a polygon."""
        return any(is_polygon(area) for area in (*self.places, *self._former))

    def _mark(self, places: Sequence[str], first: int, last: int) -> None:
        """Note that somebody was at places on these days."""
        for place in places:
            if self._days.setdefault(place, Days()).add(first, last):
                self._unwritten = self._stale = self._touched = True

    def may_serve(self, area: Area) -> bool:
        """Whether a context in an area may be published here, now or later."""
        ever = (*self.places, *self._former)
        known = self._outside is None and not any(map(is_polygon, ever))
        if not (known and self.places) or self._astray or len(ever) > PIECES_MAX:
            return True
        return area.meets(Area((Patch(places=ever),)))

    def _served(self, place: str | None, point: Point | None) -> bool:
        return not self.places or serves((*self.places, *self._former), place, point)

    def _go_astray(self) -> None:
        """Something lies where this node never was: its past may be anywhere, for good."""
        if not self._astray:
            self._astray = self._unwritten = True
            self._offer_areas()
            self._draw_veil()

    def _offer_areas(self) -> None:
        if self._areas is None or not self._fed:
            return
        if self._directory is not None:
            self.directory.put(OWN, self.own)
        self._stale = False
        since = FIRST_DAY if self._day is None else self._day - 1
        offered = areas_of(
            self._days,
            self.places or ("",),
            since,
            day_us=self._settings.day_us,
            margin_us=self._settings.margin_us,
        )
        for place in self._offered - offered.keys():
            self.areas.remove(place)
        self._offered = frozenset(offered)
        for place, area in offered.items():
            self.areas.put(place, area)
        self._touched = True

    def _pass_days(self, now: int) -> None:
        """Account for the days that are over: who lasts is there on each of them."""
        today = now // self._settings.day_us
        if self._day is not None and today <= self._day:
            return
        before, self._day = self._day, today
        self._stale = True
        self._tomorrow = (today + 1) * self._settings.day_us
        self._noted.clear()
        members = self.crowd.members() if self._crowd is not None else ()
        if before is None:  # an earlier life ended some day, and who lasts was there all along
            for member in members:
                keys = self._keys(member.place, member.point)
                self._mark(keys, member.t_r // self._settings.day_us, today)
            ranges = (one for days in self._days.values() for one in days.ranges)
            before = min(max((last for _, last in ranges), default=today), today)
        restricted = self._restricted()
        if self._full or self._unknown_until or restricted is None or len(restricted):
            places: Collection[str] = self.places or ("",)
        else:
            here = {(one.place, one.point if self._polygons else None) for one in members}
            places = {key for where in here for key in self._keys(*where)}
        self._mark(tuple(places), before, today)
        if self._settings.retention_us:
            oldest = (now - self._settings.retention_us) // self._settings.day_us - 1
            for days in self._days.values():
                self._unwritten = days.forget_before(oldest) or self._unwritten

    def _draw_veil(self) -> None:
        """Admit what rules hide; whether somebody is there makes no difference to it."""
        if self._crowd is None:
            return
        restricted = self._restricted()
        if self._full or self._unknown_until:
            self.crowd.veil(anything_in(()))
        elif restricted is None or len(restricted):
            # Rules may leave out the point of what lies in a polygon.
            anywhere = self._astray or not self.places or self._polygons
            self.crowd.veil(anything_in(() if anywhere else (*self.places, *self._former)))
        else:
            self.crowd.veil(EMPTY)

    # --- the machine --------------------------------------------------------------------------

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Take up the places that this node ever served, and their days."""
        value, days = stored.get(SERVED), stored.get(DAYS)
        self._take(() if value is None else _decode(value), days)
        outside, self._outside = self._outside, None
        self._pass_days(now)
        if days is None and (value is not None or self._has_past):
            # A store of before days were noted, or an archive of an earlier life.
            self._mark(self._ever, FIRST_DAY, now // self._settings.day_us)
        for place, (first, last) in sorted((outside or {}).items()):
            self._mark(self._keys(place), first, last)
            if not self._served(place, None):
                self._go_astray()
        self._offer_areas()
        self._draw_veil()
        return ()  # rows go with the first context, or with the first advance: never behind newer

    def adopt(self, entries: Sequence[Entry], now: int) -> Sequence[Effect]:
        """Take up what another host of this node knew."""
        del now
        rows = {entry.key: entry.value for entry in entries if entry.value is not None}
        served = rows.get(SERVED)
        self._take(() if served is None else _decode(served), rows.get(DAYS))
        return self._write()

    def _take(self, ever: Sequence[str], days: bytes | None) -> None:
        """Add places that this node served, and their days; without a name it is anywhere."""
        self._noted.clear()
        known = {*self.places, *self._former}
        former = tuple(place for place in ever if place and place not in known)
        self._former = (*self._former, *former)[:PLACES_MAX]
        self._astray = self._astray or "" in ever or len(known) + len(former) > PLACES_MAX
        self._unwritten = self._unwritten or set(ever) != set(self._ever)
        named = {"", *self.places, *self._former}
        for place, ranges in ({} if days is None else _decode_days(days)).items():
            for first, last in ranges:
                self._mark((place if place in named else "",), first, last)
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
                if self._day is not None:  # rules that come and go within a day leave a trace
                    self._mark(self.places or ("",), self._day, self._day)
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
        self._pass_days(now)
        if self._unknown_until <= now:
            self._unknown_until = 0
        if self._stale:
            self._offer_areas()
        self._draw_veil()
        self._touched = False
        self._flushed = now
        return [*effects, TablesTouched()]

    def deadline(self) -> int | None:
        """When changes are offered, or written again."""
        due = self._flush_at()
        return due if self._retry_at is None else earliest(due, self._retry_at)

    def _flush_at(self) -> int | None:
        if self._crowd is None:
            return None
        if self._touched:
            return self._flushed + self._settings.flush_us
        return earliest(self._unknown_until or None, self._tomorrow)

    def unstored(self, context: Context | None) -> Writes:
        """Give what must be on disk with a context: otherwise its past might not be found."""
        if context is not None and self._crowd is not None:
            public, noted = self._is_public(context.vid), self._noted.get(context.place)
            if noted is None or not public or not noted[0] <= context.t_r < noted[1]:
                self._place(context, None, public)
        return self._row() if self._writing or self._unwritten else ()

    def _row(self) -> Writes:
        days = {place: days.ranges for place, days in sorted(self._days.items())}
        return (
            (SERVED, msgspec.msgpack.encode(self._ever)),
            (DAYS, msgspec.msgpack.encode(days)),
        )

    def _write(self) -> list[Effect]:
        if not self._unwritten or self._writing or not self._fed:
            return []
        self._unwritten, self._writing = False, True
        return [Store(1, self._row())]

    def occupancy(self) -> Occupancy:
        """How many places are known."""
        return {
            "noted places": (len(self._noted), NOTED_MAX),
            "former places": (len(self._former), PLACES_MAX),
            "outside": (len(self._outside or ()), OUTSIDE_MAX),
        }


_decode: Final = msgspec.msgpack.Decoder(tuple[str, ...]).decode
_decode_days: Final = msgspec.msgpack.Decoder(dict[str, list[Range]]).decode
