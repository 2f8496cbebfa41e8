"""`States`: the present state of contexts beyond each link, offered only where it is wanted.

A table like the others (`overlay/tables/`), so a broken link, a changed tree and a restart heal as
they do there, and what changes while a version is under way is coalesced. Its values change: an
entry names its node's version of a context, and the newer version counts. A context that has gone,
or is wanted no longer, is offered once more without a body; that removes it at once, and the entry
itself goes when it has lingered.
"""

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from roamcast.errors import ContextError, InputError
from roamcast.model.contexts import Context, context_of
from roamcast.model.parts import Occupancy
from roamcast.model.wire import Count, Name
from roamcast.overlay.links.messages import NodeName
from roamcast.overlay.tables.hearing import Changes, TableBounds
from roamcast.overlay.tables.link_table import LinkTable
from roamcast.overlay.tables.sending import Algebra, Value
from roamcast.overlay.tables.table import ENTRY_BYTES_MAX, TableEntry
from roamcast.overlay.tables.wants import Wants

VIEW: Final = "states"
"""The view of all states in `Wants`: what everybody may see where a context lives."""

STATES_MAX: Final = 100_000
"""Contexts that one neighbour may offer, and that a node offers of its own."""

BYTES_MAX: Final = 64 * 1024 * 1024


class SharedState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A context as everybody may see it, and which version of it; without a body it has gone."""

    node: NodeName
    epoch: Count
    number: Count
    vid: Name
    body: Annotated[bytes, Meta(max_length=ENTRY_BYTES_MAX)] = b""

    @property
    def version(self) -> tuple[int, int]:
        """Which life of its node, and the how many-th change in it."""
        return self.epoch, self.number

    @property
    def context(self) -> Context:
        """The context itself."""
        return context_of(self.body)

    def gone(self) -> "SharedState":
        """Give the same version without its body."""
        return msgspec.structs.replace(self, body=b"")


_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(SharedState).decode


def _covers(first: bytes, other: bytes) -> bool:
    return first == other or _DECODE(first).version > _DECODE(other).version


NEWEST: Final = Algebra(_covers, lambda _, new: new)
"""The newer version counts; of the same one, what is offered later."""


def key_of(node: str, vid: str) -> str:
    """Name an entry: a node has each vid once."""
    return blake2b(_ENCODE((node, vid)), digest_size=16).hexdigest()


class States(LinkTable[SharedState]):
    """What lies on the maps of the nodes beyond each link, and on this node's own."""

    name = "states"
    bounds = TableBounds(STATES_MAX, BYTES_MAX)

    def __init__(self, wants: Wants, matching: Callable[[], bool], **settings: Any) -> None:
        """`matching`: whether this node's filter is active (CBM); otherwise all goes on."""
        super().__init__(**settings)
        self.news: dict[str, str] = {}
        """Keys of which something else is known than before → the link that brought it."""
        self._wants = wants
        self._matching = matching
        self._local: dict[str, SharedState] = {}
        self._beyond: dict[str, tuple[SharedState, list[str]]] = {}
        """Keys → their state, and the links beyond which somebody wants it."""
        self._going: dict[str, set[str]] = {}
        """Links → keys that were offered there without a body, and are to go once that is known."""

    def beyond(self, thing: Context, came_from: str | None) -> list[str]:
        """Name the links beyond which somebody watches a context."""
        return self._wants.beyond((VIEW, thing), came_from)

    def put(self, state: SharedState) -> None:
        """Set the state of a context of this node's map, or that it has gone."""
        key = key_of(state.node, state.vid)
        self._local[key] = state
        self._mark(key, None)

    def forget(self, vid: str, node: str) -> None:
        """Forget a context of this node's map that has gone long ago."""
        key = key_of(node, vid)
        state = self._local.get(key)
        if state is not None and not state.body:
            del self._local[key]
            self._mark(key, None)

    def confirmed(self, link: str, version: int) -> None:
        """Take the neighbour's word; what it knows to have gone may go from the table, too."""
        super().confirmed(link, version)
        found = self._links.get(link)
        if found is not None:
            found.sending.changed.update(self._going.pop(link, ()))

    def advance(self, now: int) -> None:
        """Let time pass: what was to go from the table of a forgotten neighbour is gone with it."""
        super().advance(now)
        for link in self._going.keys() - self._links.keys():
            del self._going[link]

    def best(self, key: str, but: str | None = None) -> SharedState | None:
        """Give the newest state that this node knows, but from one link."""
        found = self._local.get(key)
        for name, link in self._links.items():
            other = None if name == but else link.hearing.entries.get(key)
            if other is not None and (found is None or _rank(other) > _rank(found)):
                found = other
        return found

    def wants_changed(self) -> None:
        """Look at everything again: others want something else beyond some link."""
        self._beyond.clear()
        keys = [*self._known()]
        for link in self._links.values():
            link.sending.changed.update(keys)

    def occupancy(self) -> Occupancy:
        """Give how much is held of what, and the bound of each."""
        known = STATES_MAX * (1 + len(self._links))
        return super().occupancy() | {
            "states.local": (len(self._local), 2 * STATES_MAX),
            "states.routes": (len(self._beyond), known + STATES_MAX),
            "states.news": (len(self.news), known),
        }

    def _known(self, but: str | None = None) -> Iterable[str]:
        found = dict.fromkeys(self._local)
        for name, link in self._links.items():
            if name != but:
                found |= dict.fromkeys(link.hearing.entries)
        return found

    def _read(self, entry: TableEntry) -> SharedState:
        try:
            state = _DECODE(entry.value)
            if state.body and state.context.vid != state.vid:
                raise InputError("a state is that of another context")
        except (msgspec.DecodeError, ContextError) as error:
            raise InputError(f"a state is malformed: {error}") from None
        if key_of(state.node, state.vid) != entry.key:
            raise InputError("a state's key is not the digest of its node and vid")
        return state

    def _keys(self, link: str) -> Iterable[str]:
        return self._known(link)

    def _wanted(self, link: str, key: str) -> Value:
        state = self.best(key, link)
        if state is not None and state.body and self._goes(key, state, link):
            return _ENCODE(state)
        shown = self._links[link].sending.shown.get(key)
        before = None if shown is None else _DECODE(shown)
        if before is None or not before.body:
            return None
        self._going.setdefault(link, set()).add(key)
        newer = state is not None and state.version > before.version
        return _ENCODE((state if newer and state is not None else before).gone())

    def _goes(self, key: str, state: SharedState, link: str) -> bool:
        """Whether a state goes over a link: somebody wants it there, or this node matches not."""
        if not self._wants.knows(link):
            return False  # it asks for everything once it says what it wants
        route = self._beyond.get(key)
        if route is None or route[0] is not state:
            route = self._beyond[key] = (state, self.beyond(state.context, None))
        if self._matching():
            return link in route[1]
        return bool(route[1]) if key in self._local else True

    def _algebra(self, key: str) -> Algebra:
        del key
        return NEWEST

    def _changed(self, link: str, changes: Changes[SharedState]) -> None:
        for key, (_, new) in changes.items():
            self.news[key] = link
            if new is None:
                self._beyond.pop(key, None)
            self._mark(key, None)


def _rank(state: SharedState) -> tuple[tuple[int, int], bool]:
    return state.version, bool(state.body)
