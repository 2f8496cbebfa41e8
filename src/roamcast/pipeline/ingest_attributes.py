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


class Spoken:
    """The attributes of one task; `columns` gathers those that its contexts have."""

    def __init__(self, reliability: list[int]) -> None:
        self.columns: set[str] = set()
        self._reliability = reliability
        self._read: dict[str, Outcome] = {}

    def canonical(self, text: str) -> Outcome:
        """Read what a source wrote."""
        outcome = self._read.get(text)
        if outcome is None:
            try:
                found = canonical(text)
                outcome = (None if found == NOTHING else found, None)
            except InputError as error:
                outcome = (None, error.problem)
            if len(self._read) >= REMEMBERED_MAX:
                self._read.clear()
            self._read[text] = outcome
        return outcome

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
            self.columns.update(msgspec.json.decode(text, type=dict[str, Any]))
        return pa.array(joined, pa.string()).take(pa.array(which.ravel()))
