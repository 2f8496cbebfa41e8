"""Back-off of heal requests, so that a common loss does not make every receiver ask at once.

Truncated exponential timers (Nonnenmacher and Biersack; RFC 5740, section 5.3, RandomBackoff): most
receivers wait almost the whole interval and a few, chosen by the draw, wait less. The first request
brings a multicast answer, which fills the others' gaps before their timers fire. Over an interval
of six round trips the number of requests grows with the sixth root of the audience.
"""

import math

from roamcast.model.machine import Draw


def backoff_us(draw: Draw, interval_us: int, receivers: int) -> int:
    """Draw a waiting time from (0, interval] for one of about `receivers` receivers."""
    steepness = math.log(max(receivers, 1)) + 1
    # The inverse of the distribution function (exp(λt) − 1) / (exp(λ) − 1) on [0, 1].
    fraction = math.log1p(draw() * math.expm1(steepness)) / steepness
    return max(1, min(interval_us, round(interval_us * fraction)))
