"""Settings of home brokers."""

from typing import Annotated

from roamcast.live.config.sections import Section, number
from roamcast.model.time import MICROSECONDS
from roamcast.overlay.homes.choice import HomePolicy
from roamcast.overlay.homes.managers import HomeSettings


class HomeSection(Section, frozen=True, kw_only=True):
    """Home brokers: where clients with modulators are served (docs/homes.md)."""

    high: Annotated[
        float, number(0.001, 1, "from this load on a broker takes nobody, and hands clients over")
    ] = 0.7
    low: Annotated[float, number(0.0001, 1, "from here on down it takes clients again")] = 0.5
    latency: Annotated[float, number(0, 1_000, "weight of the hops from producers to a client")] = (
        1.0
    )
    bytes: Annotated[
        float, number(0, 1_000, "weight of those hops by the share of bytes that travel each")
    ] = 0.0
    power: Annotated[
        float, number(0, 1_000, "weight of the same, dearer at a broker with a low battery")
    ] = 0.0
    gain: Annotated[float, number(0, 1_000, "a new home is cheaper by more than this, in hops")] = (
        0.5
    )
    hop_ms: Annotated[
        float, number(0.001, 60_000, "milliseconds to a broker and back that count as a hop")
    ] = 10.0
    dwell_s: Annotated[
        float, number(0, 86_400, "a client stays so long, unless its home is overloaded or away")
    ] = 10.0
    delay_s: Annotated[
        float, number(0, 3_600, "moves wait for a draw of up to this: no herd moves at once")
    ] = 2.0
    lease_s: Annotated[
        float, number(1, 30 * 86_400, "for so long a client that does not come back is remembered")
    ] = 600.0

    def settings(self) -> HomeSettings:
        """Give what the machine takes."""
        return HomeSettings(
            high=self.high,
            low=self.low,
            policy=HomePolicy(self.latency, self.bytes, self.power),
            gain=self.gain,
            hop_us=int(self.hop_ms * 1_000),
            dwell_us=int(self.dwell_s * MICROSECONDS),
            delay_us=int(self.delay_s * MICROSECONDS),
            lease_us=int(self.lease_s * MICROSECONDS),
        )
