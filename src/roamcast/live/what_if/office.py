"""What-if questions to a running service: who may ask, what it costs, and where it is computed.

The maps are made from what the past lets the asker see (0330): rules of then and of now, erased
contexts, rounded times and the horizon hold here as they do there. One question at a time.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from roamcast.errors import InputError, LimitError, RateError
from roamcast.identity.rules import LEVELS, Viewer
from roamcast.live.service.service import Service
from roamcast.live.what_if.channels import ThresholdSetting, check_segments, records_in
from roamcast.live.what_if.comparing import ReplayTask, TriedSettings
from roamcast.live.what_if.timeline import TimelineStep, Window, from_runs
from roamcast.live.what_if.worker import REFUSED
from roamcast.model.filters import Filter
from roamcast.model.places_geojson import write_places
from roamcast.model.time import MICROSECONDS, format_instant

STEPS_MAX: Final = 20_000
"""Changes of the map that one question replays."""

BYTES_MAX: Final = 16 << 20
"""Bytes of all states in them."""

STEP_STEPS: Final = 1_000
"""What one change costs the service, in the steps of docs/queries.md: about 50 µs to read it, to
hand it to the worker and to give the answer. The worker is one process that gives way to all."""

RECORD_STEPS: Final = 2
"""What a record of the journal costs: its segments are listed here, and read by the worker."""

ANSWER_S_MAX: Final = 120.0


class WhatIfOffice:
    """One service's what-if questions."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._asking = asyncio.Lock()

    async def ask(
        self, viewer: Viewer, wanted: Filter, window: Window, tried: TriedSettings
    ) -> bytes:
        """Give the answer as JSON, or refuse the question with the reason."""
        tried.check()
        self._check_precision(tried)
        await self._check_window(window)
        if self._asking.locked():
            error = RateError("one what-if is replayed at a time: try again in a few seconds")
            error.retry_us = 5 * MICROSECONDS
            raise error
        async with self._asking:
            return await _computed(await self._task(viewer, wanted, window, tried))

    def _check_precision(self, tried: TriedSettings) -> None:
        force = self._service.settings.privacy.default_precision
        other = tried.default_precision
        if other is not None and LEVELS.index(other) > LEVELS.index(force):
            raise InputError(
                f"default_precision is {force}: what was finer was shown to nobody, "
                "and is not shown here; try a coarser one"
            )

    async def _check_window(self, window: Window) -> None:
        begin, end = window
        if begin >= end:
            raise InputError("`from` lies before `to`")
        if end > self._service.clock():
            raise InputError("`to` lies in the past: what has not happened can not be replayed")
        horizon = await self._service.past.begins()
        if begin < horizon:
            raise InputError(f"the past begins at {format_instant(horizon)}: `from` lies before it")

    async def _task(
        self, viewer: Viewer, wanted: Filter, window: Window, tried: TriedSettings
    ) -> ReplayTask:
        service, settings = self._service, self._service.settings
        segments: list[Path] = []
        price = 0
        if tried.thresholds:
            if service.journal is None:
                raise InputError("this service writes no journal: [journal] on in the settings")
            await service.journal.flush()
            segments = service.journal.segments
            check_segments(segments)
            price = RECORD_STEPS * await asyncio.to_thread(records_in, segments)
        await service.charge_past(viewer, Filter.parse("true"), window)
        steps = from_runs(await service.past.stays(viewer, window), window)
        check_size(steps)
        price += STEP_STEPS * len(steps)
        service.reader.work.take(viewer.name, service.clock(), price)
        rules_for = service.broker.rules_for
        vids = dict.fromkeys(step.vid for step in steps)
        places = b""
        if tried.default_precision is not None and service.places is not None:
            places = await asyncio.to_thread(write_places, service.places)
        return ReplayTask(
            window,
            wanted.text,
            steps,
            tried,
            ThresholdSetting(settings.channels.subscribers_min, settings.channels.history_max),
            exempt=[vid for vid in vids if rules_for("", vid, any_owner=True) is not None],
            places=places,
            grid_s=settings.privacy.grid_s,
            segments=[str(path) for path in segments],
        )


def check_size(steps: Sequence[TimelineStep]) -> None:
    """Refuse more changes than one question may replay, or larger ones."""
    if len(steps) > STEPS_MAX or sum(len(step.body) for step in steps) > BYTES_MAX:
        raise LimitError(
            f"the map changed {len(steps):,} times then, and {STEPS_MAX:,} changes of "
            f"{BYTES_MAX >> 20} MiB are replayed at once: ask for a shorter time"
        )


async def _computed(task: ReplayTask) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "roamcast.live.what_if.worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            text, _ = await process.communicate(msgspec.msgpack.encode(task))
    except TimeoutError:
        raise LimitError(
            f"the replay took longer than {ANSWER_S_MAX:g} s: ask for a shorter time"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == REFUSED:
        raise InputError(text.decode())
    assert process.returncode == 0, "the replay ended early; its reason is on stderr"
    return text
