"""Who asks too much? Rates by token buckets, open connections by counting; time is an argument."""

from collections import Counter, OrderedDict
from typing import Final

from roamcast.errors import RateError
from roamcast.model.time import MICROSECONDS

SUBJECTS_MAX: Final = 100_000
"""Buckets remembered; the one unused for longest is forgotten, by then usually full again."""


class Bucket:
    """Holds up to `burst` tokens and gains `rate_per_s`; whoever acts takes one."""

    __slots__ = ("_at", "_burst", "_held", "_rate_per_s")

    def __init__(self, rate_per_s: float, burst: int, now: int) -> None:
        assert rate_per_s > 0
        assert burst >= 1
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._held = float(burst)
        self._at = now

    def take(self, now: int, amount: float = 1.0) -> int:
        """Take tokens and give 0, or take nothing and give how many microseconds to wait."""
        self._gain(now)
        wait_us = self._until(min(amount, self._burst))
        if not wait_us:
            self._held -= amount  # one that is larger than the bucket leaves it in debt
        return wait_us

    def owe(self, now: int) -> int:
        """Take a token, there or not, and give how many microseconds until nothing is owed."""
        self._gain(now)
        self._held -= 1.0
        return self._until(0.0)

    @property
    def owed(self) -> float:
        """How many tokens were taken that were not there."""
        return max(-self._held, 0.0)

    def _gain(self, now: int) -> None:
        gained = max(now - self._at, 0) * self._rate_per_s / MICROSECONDS
        self._held = min(self._held + gained, float(self._burst))
        self._at = max(self._at, now)

    def _until(self, wanted: float) -> int:
        """Give how many microseconds until so much is there."""
        lacking = wanted - self._held
        # A hair is forgiven: waiting exactly as long as was said must be enough.
        return int(lacking * MICROSECONDS / self._rate_per_s) + 1 if lacking > 1e-9 else 0


class Rates:
    """A bucket for each subject."""

    def __init__(
        self, rate_per_s: float, burst: int, *, what: str, subjects_max: int = SUBJECTS_MAX
    ) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._what = what
        self._subjects_max = subjects_max
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, subject: str, now: int) -> None:
        """Count one more of this subject, or refuse it and say when to try again."""
        bucket = self._buckets.get(subject)
        if bucket is None:
            bucket = self._buckets[subject] = Bucket(self._rate_per_s, self._burst, now)
            if len(self._buckets) > self._subjects_max:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(subject)
        wait_us = bucket.take(now)
        if wait_us:
            seconds = max(wait_us / MICROSECONDS, 0.1)
            raise _later(
                f"more than {self._rate_per_s:g} {self._what} a second: "
                f"try again in {seconds:.1f} s",
                wait_us,
            )


class Connections:
    """Counts what is open, in all and for each subject."""

    def __init__(self, total_max: int, per_subject_max: int) -> None:
        self._total_max = total_max
        self._per_subject_max = per_subject_max
        self._open: Counter[str] = Counter()
        self.total = 0

    def open(self, subject: str) -> None:
        """Count a connection in, or refuse it."""
        if self.total >= self._total_max:
            raise _later(f"the service has {self._total_max} connections open: try again later")
        if self._open[subject] >= self._per_subject_max:
            raise _later(
                f"this token's subject has {self._per_subject_max} connections open: close one"
            )
        self._open[subject] += 1
        self.total += 1

    def close(self, subject: str) -> None:
        """Count it out."""
        assert self._open[subject] > 0, "closed more often than opened"
        self._open[subject] -= 1
        self.total -= 1
        if not self._open[subject]:
            del self._open[subject]


def _later(problem: str, retry_us: int = MICROSECONDS) -> RateError:
    error = RateError(problem)
    error.retry_us = retry_us
    return error
