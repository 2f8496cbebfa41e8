"""Whom a cast would reach at this node: who was there, is there, and may come."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from roamcast.broker import Broker
from roamcast.identity.rules import Viewer
from roamcast.live.past.worker import PastWorker
from roamcast.live.service.answering import answered
from roamcast.model import casts
from roamcast.model.areas import area_of
from roamcast.model.casts import Tense
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.atoms import FALSE
from roamcast.overlay.casts.held import CastPlan
from roamcast.overlay.casts.looking import window_of

CONTEXTS_MAX: Final = 100_000
"""Contexts that are looked at of those that are here now."""


class Addressees(msgspec.Struct, frozen=True):
    """Contexts of pseudonyms that mail can reach, exact: for nobody as they are."""

    tense: Tense
    past: list[Context]
    present: list[Context]
    coming: list[Context] | None
    """Who is here now and satisfies all but the times; None where nobody may come."""

    def count(self) -> int:
        """Count their pseudonyms."""
        return len({one.vid for one in (*self.past, *self.present, *(self.coming or ()))})


class Whom:
    """Finds whom filters address."""

    def __init__(
        self,
        broker: Broker,
        past: PastWorker,
        charge: Callable[[Viewer, Filter, tuple[int, int]], Awaitable[None]],
    ) -> None:
        self._broker = broker
        self._past = past
        self._charge = charge

    async def find(self, viewer: Viewer, wanted: Filter, now: int) -> Addressees:
        """Find whom a cast would reach, at the price of a question about the past."""
        await self._charge(viewer, wanted, window_of(area_of(wanted)))
        tense = casts.tense(wanted, now)
        found: list[Context] = []
        here: list[Context] = []
        coming: list[Context] | None = None
        if tense == "present":
            here = await self._here(viewer, wanted, now)
        else:
            past, _ = casts.split(wanted, now)
            if past.normal != FALSE:
                found = await self._past.ask(viewer, past, window_of(area_of(past)), exact=True)
        if tense in ("future", "hybrid"):
            plan = await asyncio.to_thread(CastPlan, wanted.text, None, now, now)
            coming = await self._here(viewer, plan.loose, now)
        return Addressees(tense, self._reachable(found), here, coming)

    async def _here(self, viewer: Viewer, wanted: Filter, now: int) -> list[Context]:
        asked = self._broker.page(viewer, wanted, now, after="", limit=CONTEXTS_MAX)
        return self._reachable(list((await answered(asked)).contexts))

    def _reachable(self, contexts: list[Context]) -> list[Context]:
        """Leave out what no mail can reach: things, and who publishes under a name."""
        return [one for one in contexts if self._broker.key_of(one.vid) is not None]
