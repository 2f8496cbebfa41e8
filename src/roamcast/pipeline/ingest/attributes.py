"""What do sources say about people? Attributes, read and joined once for each distinct text."""

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from roamcast.errors import InputError
from roamcast.identity.attributes import NOTHING, canonical, merged
from roamcast.identity.sightings import SOURCES

REMEMBERED_MAX = 100_000
"""Distinct texts remembered between chunks."""

Outcome = tuple[str | None, str | None]
"""The canonical text, none if it says nothing; and what is wrong, if something is."""


NO_ROOM = "the archive has no room for another attribute name"


class Spoken:
    """The attributes of one task; `columns` gathers those that its sightings and contexts have.

    room: the columns that the archive has room for; none if it has room for any.
    """

    def __init__(self, reliability: list[int], room: frozenset[str] | None = None) -> None:
        self.columns: set[str] = set()
        self._reliability = reliability
        self._room = room
        self._read: dict[str, Outcome] = {}

    def canonical(self, text: str) -> Outcome:
        """Read what a source wrote."""
        outcome = self._read.get(text)
        if outcome is None:
            outcome = self._outcome(text)
            if len(self._read) >= REMEMBERED_MAX:
                self._read.clear()
            self._read[text] = outcome
        return outcome

    def _outcome(self, text: str) -> Outcome:
        try:
            found = canonical(text)
        except InputError as error:
            return None, error.problem
        columns = _columns(found)
        if self._room is not None and not columns <= self._room:
            return None, NO_ROOM
        # already now, not when a context ends: by then others could have taken the room
        self.columns |= columns
        return None if found == NOTHING else found, None

    def merged(self, codes: Any, texts: pa.Array) -> pa.Array:
        """Join what the sources of each context say; `codes` has a row of their keys each."""
        if not codes.any():  # nobody says anything: the usual case costs nothing
            return pa.array([NOTHING], pa.string()).take(pa.array(np.zeros(len(codes), np.int64)))
        distinct, which = np.unique(codes, axis=0, return_inverse=True)
        known = texts.take(pa.array(distinct.ravel())).to_pylist()
        width = len(SOURCES)
        fours = [known[start : start + width] for start in range(0, len(known), width)]
        joined = [merged(four, self._reliability) for four in fours]
        for text in joined:
            self.columns |= _columns(text)
        return pa.array(joined, pa.string()).take(pa.array(which.ravel()))


def _columns(text: str) -> set[str]:
    return set(msgspec.json.decode(text, type=dict[str, Any]))
