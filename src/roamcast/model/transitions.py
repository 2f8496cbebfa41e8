"""Transition counts: from which place people went on to which, as a file that brokers read.

Made from archives or journals (`roamcast pipeline plan transitions`); what fewer than k walks have
is not in it, so that no single one shows, however often it goes to and fro.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from roamcast.errors import InputError

K: Final = 5
"""Counts below this say nothing, about nobody."""

PLACES_MAX: Final = 1_000_000


class Transitions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often people went on from a place to the next one."""

    k: Annotated[int, Meta(ge=1)] = K
    counts: Annotated[
        dict[str, dict[str, Annotated[int, Meta(ge=1)]]], Meta(max_length=PLACES_MAX)
    ] = {}

    def __post_init__(self) -> None:
        if any(count < self.k for row in self.counts.values() for count in row.values()):
            raise ValueError(f"a count lies below k, which is {self.k}")

    def likely(
        self,
        place: str,
        border: Iterable[str],
        node_of: Callable[[str], str | None],
        *,
        least: float,
    ) -> tuple[str, ...]:
        """Name the nodes that at least this share of people goes on to from a place.

        All that border it if nothing is known of the place.
        """
        row = self.counts.get(place)
        if row is None:
            return tuple(border)
        whole = sum(row.values())
        by_node: dict[str | None, int] = {}
        for following, count in row.items():
            node = node_of(following)
            by_node[node] = by_node.get(node, 0) + count
        return tuple(node for node in border if by_node.get(node, 0) >= least * whole)


def read_transitions(data: bytes) -> Transitions:
    """Read the file; raise InputError for anything else."""
    try:
        return msgspec.json.decode(data, type=Transitions)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"not transition counts: {error}") from None
