"""People of the demo who come without a name: each has a key store, and vids of the trusted node.

They publish by HTTP, one vid for each stay, and are reached by casts as anybody is. Their key
stores lie in the service's data folder, so that `roamcast inbox --as visitor-0001` reads their mail
on this machine.
"""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roamcast.client.asking import Asking
from roamcast.client.own_vids import OwnVids, registered
from roamcast.errors import RoamcastError
from roamcast.identity.key_store import KeyStore, store_of
from roamcast.live.auth.admission import TokenKeys
from roamcast.live.trust.held import PEOPLE_FOLDER
from roamcast.model.contexts import Context
from roamcast.transport.address import ServiceAddress
from roamcast.transport.driver import wall_clock
from roamcast.transport.http import HttpClient

STAYS_S = 2 * 3_600.0
TOKEN_S = 7 * 86_400


class NamelessPerson:
    """One person; what they do is done in its order, and never delays the others."""

    def __init__(self, url_of: Callable[[str], str], name: str, data: Path, trust_url: str) -> None:
        """`url_of` names the service of a place; `data` is the trusted node's folder."""
        self._url_of = url_of
        self._clock = wall_clock()
        token = TokenKeys.open(data).issue(
            name, ("subscribe",), lifetime_s=TOKEN_S, now=self._clock()
        )
        store = KeyStore.open(store_of(data / PEOPLE_FOLDER, name))
        trust = HttpClient(ServiceAddress(trust_url, token))
        draw = random.SystemRandom().random
        self._vids = OwnVids(store, trust, draw=draw, hybrid=False)
        self._here: tuple[Asking, str] | None = None
        self._last: asyncio.Task[None] | None = None

    def show(self, place: str, point: Any, attributes: dict[str, Any]) -> None:
        """Be somewhere else from now on."""
        before = self._last
        self._last = asyncio.create_task(self._move(before, place, point, attributes))

    async def _move(
        self, before: "asyncio.Task[None] | None", place: str, point: Any, known: dict[str, Any]
    ) -> None:
        if before is not None:
            await before
        try:
            if self._here is not None:
                asking, vid = self._here
                self._here = None
                await asking.remove(vid)
            own = await self._vids.fresh(self._clock())
            url = self._url_of(place)
            stranger = HttpClient(ServiceAddress(url, ""))
            token = (await registered(own, url, stranger)).token
            asking = Asking(HttpClient(ServiceAddress(url, token)))
            context = Context(own.vid, place, point, known, self._clock())
            await asking.put(context, lifetime_s=STAYS_S)
            self._here = asking, own.vid
        except RoamcastError:
            return  # the service is going down, or busy: the next move will show them
