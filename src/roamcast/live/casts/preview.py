"""About how many people: counts with noise, so that comparing answers tells nobody apart.

Every count that a sender is told has noise of its own (the two-sided geometric mechanism of
differential privacy): whether one pseudonym more was there changes the odds of any answer by at
most e^EPSILON, whoever the others are and whoever planted them. A count whose noisy value is below
LEAST is not told; that a place of fewer than k is named at all happens once in 1/DELTA times at
most. Each sender may have so many answers a day; asked again within a while, a question has the
same answer and costs nothing (decision 0166).
"""

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

import msgspec

from roamcast.model.casts import Counted, PlaceCount
from roamcast.model.contexts import Context
from roamcast.model.time import MICROSECONDS
from roamcast.overlay.casts.messages import CastView

K: Final = 5
EPSILON: Final = 0.5
"""How much one answer may tell of one pseudonym: odds change by a factor of e^0.5 at most."""

DELTA: Final = 0.001
_ALPHA: Final = math.exp(-EPSILON)
LEAST: Final = K * math.ceil((K + math.log(1 / (DELTA * (1 + _ALPHA))) / EPSILON) / K)
"""The smallest count that is told; fewer than k get there by noise once in 1/DELTA times."""

ANSWERS_A_DAY: Final = 40
"""Answers with noise that one sender gets: together they tell EPSILON times as many."""

SAME_US: Final = 600 * MICROSECONDS
"""How long a question has the same answer."""

REMEMBERED_MAX: Final = 10_000
PLACES_MAX: Final = 20
MOMENTS_US: Final = tuple(s * MICROSECONDS for s in (2, 10, 60, 600, 3_600, 6 * 3_600, 86_400))
"""After how long progress is counted anew; in between it stands still."""

T = TypeVar("T")


class NoisyCounts:
    """Tells counts with noise; `draw` gives numbers in [0, 1)."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw

    def about(self, count: int) -> int:
        """Give about how many there are, as a multiple of k; 0 for few. One answer."""
        noisy = count + self._geometric() - self._geometric()
        return noisy // K * K if noisy >= LEAST else 0

    def counted(self, contexts: Iterable[Context]) -> Counted:
        """Count pseudonyms, in all and at each place: two answers, for each is at one place."""
        place_of = {one.vid: one.place for one in contexts}
        by_place: defaultdict[str, int] = defaultdict(int)
        for place in place_of.values():
            if place is not None:
                by_place[place] += 1
        places = [PlaceCount(place, self.about(count)) for place, count in by_place.items()]
        told = sorted((one for one in places if one.about), key=lambda one: (-one.about, one.place))
        return Counted(self.about(len(place_of)), tuple(told[:PLACES_MAX]))

    def _geometric(self) -> int:
        """Draw how often something of probability e^-EPSILON happens in a row."""
        return math.floor(math.log(1.0 - self._draw()) / math.log(_ALPHA))


class SameAnswers(Generic[T]):
    """Answers that are given again for a while; the oldest make room."""

    def __init__(self) -> None:
        self._answers: OrderedDict[tuple[str, str], tuple[int, T]] = OrderedDict()

    def get(self, sender: str, question: str, now: int) -> T | None:
        """Give what this sender was answered, if that is not long ago."""
        until, answer = self._answers.get((sender, question), (0, None))
        return answer if now < until else None

    def last(self, sender: str, question: str) -> T | None:
        """Give what this sender was answered last, however long ago."""
        return self._answers.get((sender, question), (0, None))[1]

    def put(self, sender: str, question: str, until: int, answer: T) -> None:
        """Remember an answer."""
        self._answers.pop((sender, question), None)
        self._answers[sender, question] = until, answer
        if len(self._answers) > REMEMBERED_MAX:
            self._answers.popitem(last=False)


def until_next(sent_us: int, now: int) -> int:
    """Give when progress is counted next."""
    later = [sent_us + after for after in MOMENTS_US if sent_us + after > now]
    return later[0] if later else now + MOMENTS_US[-1]


_COUNTS: Final = ("found", "delivered", "waiting", "unreachable", "refused")


def untold(view: CastView) -> CastView:
    """Give a cast's progress without any count of people."""
    return msgspec.structs.replace(view, **dict.fromkeys(_COUNTS, 0))


def with_noise(view: CastView, counts: NoisyCounts) -> CastView:
    """Give a cast's progress with noise: two answers, for who was found is one of the others."""
    noisy = {name: counts.about(getattr(view, name)) for name in _COUNTS}
    return msgspec.structs.replace(view, **noisy)


def with_counts_of(view: CastView, known: CastView) -> CastView:
    """Give a cast as it stands, with the counts that were told before."""
    return msgspec.structs.replace(view, **{name: getattr(known, name) for name in _COUNTS})
