"""The demo's courier: a program that walks across the border of two brokers and reads on.

Parcels are events, posted once a second by another program at the last broker and numbered. The
courier's session reads them from the broker that serves its place, so it changes brokers when it
crosses. What it counted is on the map, as its own context: brokers changed, parcels read, and
those missed, repeated or out of order, which stay at 0 (docs/flows.md).
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from roamcast.errors import RoamcastError
from roamcast.model.places import Places, Point

VID: Final = "courier"
PARCELS: Final = "type = 'parcel'"
POSTED_FROM: Final = "campus/{}/1"
EVERY_S: Final = 1.0
STEP_S: Final = 3.0
AGAIN_S: Final = 1.0
BESIDE_DEG: Final = 5e-6
"""Half a metre beside the middle of a place, which stands for no more than the place itself."""

WAY: Final = (
    *("campus/b1/1/1c02", "campus/b1/1/1c01", "campus/b1/1/1c00", "campus/yard"),
    *("campus/b2/1/1c00", "campus/b2/1/1c01"),
)
"""From a corridor of one building over the yard into the next one; then back."""


class ParcelCount(msgspec.Struct):
    """What a reader of numbered parcels has got."""

    parcels: int = 0
    missed: int = 0
    repeated: int = 0
    last: int | None = None

    def take(self, number: int) -> None:
        """Count a parcel."""
        if self.last is not None and number <= self.last:
            self.repeated += 1
            return
        self.missed += 0 if self.last is None else number - self.last - 1
        self.parcels += 1
        self.last = number


async def carry(urls: Mapping[str, str], token: str, places: Places) -> None:
    """Post parcels, and let the courier walk, until cancelled; `urls` has a name for each."""
    from roamcast.client import connect

    addresses = list(urls)
    async with (
        connect(",".join(addresses), token, device=VID, near="place") as courier,
        connect(addresses[-1], token, device="post-office") as office,
    ):
        tally = ParcelCount()
        stream = await courier.subscribe(PARCELS)
        place = POSTED_FROM.format(urls[addresses[-1]])
        await asyncio.gather(
            _post(office, place), _read(stream, tally), _walk(courier, urls, places, tally)
        )


async def _post(office: Any, place: str) -> None:
    number = 0
    while True:
        number += 1
        await office.publish_event(place, type="parcel", number=number)
        await asyncio.sleep(EVERY_S)


async def _read(stream: Any, tally: ParcelCount) -> None:
    async for event in stream:
        tally.take(event.context.attributes["number"])


async def _walk(courier: Any, urls: Mapping[str, str], places: Places, tally: ParcelCount) -> None:
    way = [*WAY, *WAY[-2:0:-1]]
    step = 0
    while True:
        place = way[step % len(way)]
        try:
            await courier.report(place)  # the next broker prepares before the courier is there
            await _show(courier, urls, place, _point(places, place), tally)
            step += 1
        except RoamcastError:  # a broker is down: it waits at the border
            await asyncio.sleep(AGAIN_S)
        await asyncio.sleep(STEP_S)


async def _show(
    courier: Any, urls: Mapping[str, str], place: str, point: Point | None, tally: ParcelCount
) -> None:
    """Publish where the courier is and what it counted; that may change its broker."""
    said = ""
    while said != (said := urls[courier.broker]):
        await courier.publish(
            VID, place=place, point=point, type="courier", broker=said,
            crossed=len(courier.moves), parcels=tally.parcels, missed=tally.missed,
            repeated=tally.repeated,
        )  # fmt: skip


def _point(places: Places, place: str) -> Point | None:
    """Choose the middle of a place; of the yard, which has buildings in it, that of its doors."""
    at = WAY.index(place)
    around = (WAY[at - 1], WAY[at + 1]) if place == "campus/yard" else (place,)
    points = [point for one in around if (point := places.centre(one)) is not None]
    if not points:
        return None
    lon, lat = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    return lon + BESIDE_DEG, lat
