"""Questions are charged by their price before they run; too dear ones are refused with it."""

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from roamcast.identity.rules import Viewer
from roamcast.live.auth.admission import Rates
from roamcast.live.config.settings import Limits, Settings
from roamcast.live.service.reading import AT_ONCE_MAX, READ_STEPS, FilterReader
from roamcast.model.filters import Filter
from tests.live.in_process import Asked, gate

TEXT = "name LIKE '%a%' OR level + 1 > 3"
VIEWER = Viewer("ada")


def asking(
    folder: Path, steps_burst: int, then: Callable[[Asked], Awaitable[None]], rate: float = 1.0
) -> None:
    async def run() -> None:
        limits = Limits(steps_per_s=rate, steps_burst=steps_burst)
        async with gate(folder, Settings(limits=limits)) as asked:
            await then(asked)

    asyncio.run(run())


async def filled(asked: Asked, count: int) -> int:
    """Put contexts, and give what the question costs, reading it and asking once."""
    for number in range(count):
        feature = {
            "type": "Feature",
            "geometry": None,
            "properties": {"place": "hq/3", "level": number},
        }
        assert (await asked.ask("PUT", f"/contexts/v{number}", feature)).status == 201
    price = asked.service.broker.price(VIEWER, Filter.parse(TEXT), asked.service.clock())
    assert price.contexts == count  # no index answers it
    return READ_STEPS * len(TEXT) + price.steps


@pytest.mark.limit("limits.steps_burst")
def test_a_question_is_asked_at_its_price_and_refused_one_step_below_it(tmp_path: Path) -> None:
    async def run(asked: Asked) -> None:
        reading = READ_STEPS * len(TEXT)
        await check_at(asked, await filled(asked, 100) - reading, reading)

    asking(tmp_path, 10_000_000, run)


async def check_at(asked: Asked, price: int, reading: int) -> None:
    service = asked.service
    for burst, status in ((price + reading, 200), (price + reading - 1, 429), (price - 1, 400)):
        rates = Rates(1.0, burst, what="steps of work")
        service.reader = FilterReader(rates, service.clock, 16_384)
        answer = await asked.ask("GET", "/count", filter=TEXT)
        assert answer.status == status, (burst, price, answer.body)
        if status == 400:
            told = msgspec.json.decode(answer.body)["detail"]
            assert [int(n.replace(",", "")) for n in re.findall(r"[\d,]*\d", told)] == [
                price,
                burst,
            ]
        if status == 429:
            assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.limit("limits.steps_per_s")
def test_a_subject_that_asked_too_much_leaves_others_alone(tmp_path: Path) -> None:
    async def run(asked: Asked) -> None:
        await filled(asked, 3)
        service = asked.service
        statuses = [(await asked.ask("GET", "/count", filter=TEXT)).status for _ in range(40)]
        assert statuses[0] == 200
        assert statuses[-1] == 429
        assert statuses == sorted(statuses)
        asked.token = service.keys.issue("bob", ("read",), (), lifetime_s=60, now=service.clock())
        assert (await asked.ask("GET", "/count", filter=TEXT)).status == 200

    asking(tmp_path, 20_000, run)


def test_reading_a_filter_is_charged_even_if_it_is_wrong(tmp_path: Path) -> None:
    async def run(asked: Asked) -> None:
        wrong = "name = = " + "x" * 30
        statuses = [(await asked.ask("GET", "/count", filter=wrong)).status for _ in range(4)]
        assert statuses == [400, 400, 429, 429]

    asking(tmp_path, 100 * READ_STEPS, run)


def test_what_one_has_read_is_read_again_for_a_step_a_character(tmp_path: Path) -> None:
    async def run(asked: Asked) -> None:
        reader = asked.service.reader
        assert reader.price("ada", TEXT) == READ_STEPS * len(TEXT)
        assert (await asked.ask("GET", "/count", filter=TEXT)).status == 200
        assert reader.price("ada", TEXT) == len(TEXT)
        assert reader.price("bob", TEXT) == READ_STEPS * len(TEXT)  # others tell nothing

    asking(tmp_path, 10_000_000, run)


def test_attributes_and_boxes_are_read_at_a_price_too(tmp_path: Path) -> None:
    async def run(asked: Asked) -> None:
        many = {f"a{number}": "1" for number in range(40)}
        answer = await asked.ask("GET", "/count", **many)
        assert answer.status == 400
        assert b"steps of work" in answer.body

    asking(tmp_path, 20_000, run)


def test_a_long_filter_is_read_beside_the_loop(tmp_path: Path) -> None:
    async def run(asked: Asked) -> None:
        long = " OR ".join(f"level = {number}" for number in range(AT_ONCE_MAX // 8))
        threads: list[str] = []
        read = Filter.parse

        def noted(text: object) -> Filter:
            threads.append(threading.current_thread().name)
            return read(text)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Filter, "parse", noted)
            assert (await asked.ask("GET", "/count", filter=long)).status == 200
            assert (await asked.ask("GET", "/count", filter="level = 1")).status == 200
        beside, here = threads
        assert beside.startswith("filters")
        assert not here.startswith("filters")

    asking(tmp_path, 10_000_000, run)


@pytest.mark.parametrize(("length", "status"), [(100, 200), (101, 400)])
@pytest.mark.limit("limits.filter_length_max")
def test_a_filter_is_as_long_as_its_limit_and_no_longer(
    tmp_path: Path, length: int, status: int
) -> None:
    async def run() -> None:
        settings = Settings(limits=Limits(filter_length_max=100))
        async with gate(tmp_path, settings) as asked:
            text = "level = 1".ljust(length)
            assert (await asked.ask("GET", "/count", filter=text)).status == status

    asyncio.run(run())


def test_a_page_is_charged_twice_for_it_counts_as_well(tmp_path: Path) -> None:
    async def run(asked: Asked) -> None:
        cost = await filled(asked, 20)
        reading = READ_STEPS * len(TEXT)
        for burst, status in ((2 * cost - reading, 200), (2 * cost - reading - 1, 429)):
            rates = Rates(1.0, burst, what="steps of work")
            asked.service.reader = FilterReader(rates, asked.service.clock, 16_384)
            answer = await asked.ask("GET", "/collections/contexts/items", filter=TEXT)
            assert answer.status == status

    asking(tmp_path, 10_000_000, run)
