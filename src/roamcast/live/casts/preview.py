"""How many a cast would reach, told so that nobody can be told apart by asking twice.

Counts below k are not told. Others are rounded to a multiple of k after a shift that depends on
exactly who was found, by a secret of this process: the same people give the same answer however
they are described, so nothing is gained by repeating, and of two answers that differ nobody knows
whether one person or several made the difference. A budget for each sender bounds the rest.
"""

import hmac
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from roamcast.model.contexts import Context

K: Final = 5
PLACES_MAX: Final = 20
PREVIEWS_BURST: Final = 30
PREVIEWS_PER_S: Final = 1 / 60
"""Previews of one sender."""


class PlaceCount(msgspec.Struct, frozen=True):
    """Pseudonyms at one place."""

    place: str
    about: int


class Counted(msgspec.Struct, frozen=True):
    """About how many pseudonyms; 0: fewer than k, perhaps nobody."""

    about: int
    places: tuple[PlaceCount, ...]


class Rounding:
    """Rounds counts of sets of vids."""

    def __init__(self, secret: bytes, k: int = K) -> None:
        self._secret = secret
        self._k = k

    def about(self, vids: Collection[str]) -> int:
        """Give about how many there are; 0 for fewer than k."""
        if len(vids) < self._k:
            return 0
        mark = hmac.new(self._secret, digestmod="sha256")
        for vid in sorted(vids):
            mark.update(vid.encode() + b"\0")
        shift = int.from_bytes(mark.digest()[:8], "big") % self._k
        return (len(vids) + shift) // self._k * self._k

    def counted(self, contexts: Iterable[Context]) -> Counted:
        """Count pseudonyms, in all and at each place with enough of them."""
        everybody: set[str] = set()
        by_place: dict[str, set[str]] = defaultdict(set)
        for context in contexts:
            everybody.add(context.vid)
            if context.place is not None:
                by_place[context.place].add(context.vid)
        places = [PlaceCount(place, self.about(vids)) for place, vids in by_place.items()]
        told = sorted((one for one in places if one.about), key=lambda one: (-one.about, one.place))
        return Counted(self.about(everybody), tuple(told[:PLACES_MAX]))
