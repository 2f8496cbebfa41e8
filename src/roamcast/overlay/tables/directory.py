"""`Directory`: which node serves which places, and where people reach it.

A node that is asked to publish something outside its own places answers with the right node's URL.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from roamcast.model.areas import PIECES_MAX
from roamcast.model.contexts import check_path, path_within
from roamcast.model.service_areas import (
    POLYGONS_MAX,
    TEXT_LENGTH_MAX,
    Point,
    box_of,
    check_areas,
    is_polygon,
    judges,
)
from roamcast.overlay.links.messages import NodeName
from roamcast.overlay.tables.digest_table import DigestTable
from roamcast.overlay.tables.hearing import TableBounds

NODES_MAX: Final = 10_000
BYTES_MAX: Final = 8 * 1024 * 1024
URL_LENGTH_MAX: Final = 512

_SCHEMES: Final = ("http://", "https://")


class NodeEntry(msgspec.Struct, frozen=True, array_like=True):
    """What a node tells of itself; without places and polygons it serves all."""

    node: NodeName
    url: Annotated[str, Meta(max_length=URL_LENGTH_MAX)] = ""
    places: Annotated[tuple[str, ...], Meta(max_length=PIECES_MAX)] = ()
    polygons: Annotated[
        tuple[Annotated[str, Meta(max_length=TEXT_LENGTH_MAX)], ...], Meta(max_length=POLYGONS_MAX)
    ] = ()

    @classmethod
    def of(cls, node: str, url: str, areas: tuple[str, ...]) -> "NodeEntry":
        """Tell of a node and its service areas."""
        places = tuple(area for area in areas if not is_polygon(area))
        return cls(node, url, places, tuple(area for area in areas if is_polygon(area)))

    @property
    def areas(self) -> tuple[str, ...]:
        """Its service areas."""
        return (*self.places, *self.polygons)


_decode: Final = msgspec.msgpack.Decoder(NodeEntry).decode


class Directory(DigestTable[NodeEntry]):
    """The nodes beyond each link."""

    name = "nodes"
    bounds = TableBounds(NODES_MAX, BYTES_MAX)

    def beyond(self, thing: str, came_from: str | None) -> list[str]:
        """Name the links behind which the node of this name may be."""
        found = self._unknown(came_from)
        for name, link in self._links.items():
            if name != came_from and any(
                entry.node == thing for entry in link.hearing.entries.values()
            ):
                found.add(name)
        return sorted(found)

    def nodes(self) -> list[NodeEntry]:
        """Give all nodes that others told us of, by name."""
        heard = {entry for link in self._links.values() for entry in link.hearing.entries.values()}
        return sorted(heard, key=lambda entry: (entry.node, entry.url))

    def serving(self, place: str | None, point: Point | None = None) -> NodeEntry | None:
        """Give the other node that serves a place or a point: the one that names it most closely.

        A place says more than a polygon, and a small polygon more than a large one.
        """
        best: tuple[tuple[int, float], NodeEntry] | None = None
        for entry in self.nodes():
            close = [(0, 0.0)] if not entry.areas else []
            if place is not None:
                close += [(2, float(len(one))) for one in entry.places if path_within(place, one)]
            close += [(1, -_size(one)) for one in entry.polygons if judges(one, None, point)]
            if close and (best is None or max(close) > best[0]):
                best = max(close), entry
        return None if best is None else best[1]

    def _decoded(self, value: bytes) -> NodeEntry:
        entry = _decode(value)
        for place in entry.places:
            check_path(place)
        check_areas(entry.polygons)
        if entry.url and not entry.url.startswith(_SCHEMES):
            raise msgspec.ValidationError("a node's URL begins with http:// or https://")
        return entry


def _size(polygon: str) -> float:
    west, south, east, north = box_of(polygon)
    return (east - west) * (north - south)
