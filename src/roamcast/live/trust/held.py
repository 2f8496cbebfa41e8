"""Vids and keys that the service holds for people whose devices hold none, such as phone apps.

The trusted node issues these vids as it does all others, so their owners are reached by casts as
everybody is. Honestly: the service knows the owner of such a vid, from the token that the app
shows, and could read their mail, for it holds the seeds. Each owner fetches their own seeds with
`GET /me/keys`; who wants neither uses a program of their own (docs/trust.md).
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from roamcast.identity.key_store import KeyStore, OwnVid, store_of
from roamcast.identity.rules import Rule, decode_rules
from roamcast.identity.sealing import SEED_BYTES, VidSecrets
from roamcast.live.trust.host import RunningTrust

KNOWN_MAX: Final = 100_000
"""Vids remembered by what they are used for; the others are looked up in their file."""

PEOPLE_FOLDER: Final = "people"
RULES: Final = "rules"
Answer = TypeVar("Answer")


class HeldKeys:
    """Key stores of people, in the service's data folder, readable by the service alone."""

    def __init__(
        self,
        folder: Path,
        trust: RunningTrust,
        keep_key: Callable[[str, bytes, int], Awaitable[None]],
    ) -> None:
        """`keep_key` lets the broker keep a vid's key, as a registration does."""
        self._folder = folder / PEOPLE_FOLDER
        self._trust = trust
        self._keep_key = keep_key
        self._known: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._rules: OrderedDict[str, tuple[Rule, ...] | None] = OrderedDict()
        self._changing = asyncio.Lock()

    async def vid_for(self, subject: str, use: str, now: int) -> str:
        """Give the vid of a person for a use, the same whenever it is asked for, also later."""
        known = await self.used_for(subject, use)
        if known:
            return known
        async with self._changing:
            own = await self._within(subject, lambda store: store.used_for(use))
            if own is None:
                own = await self._fresh(subject, use, now)
        self._note(subject, use, own.vid)
        return own.vid

    async def used_for(self, subject: str, use: str) -> str:
        """Give the vid that a person has for a use; empty where there is none."""
        known = self._known.get((subject, use))
        if known is None:
            own = await self._within(subject, lambda store: store.used_for(use))
            known = "" if own is None else own.vid
        self._note(subject, use, known)
        return known

    def _note(self, subject: str, use: str, vid: str) -> None:
        self._known[subject, use] = vid
        self._known.move_to_end((subject, use))
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    async def held_for(self, subject: str) -> list[OwnVid]:
        """Give the vids that are held for a person, for this person alone."""
        return await self._within(subject, KeyStore.all_used)

    async def rules_of(self, subject: str) -> tuple[Rule, ...] | None:
        """Give the rules of a person, for all vids that are held for them; None: none are set."""
        if subject not in self._rules:
            stored = await self._within(subject, lambda store: store.load(RULES).get(RULES))
            self._rules[subject] = None if stored is None else decode_rules(stored)
            if len(self._rules) > KNOWN_MAX:
                self._rules.popitem(last=False)
        return self._rules[subject]

    async def set_rules(self, subject: str, rules: tuple[Rule, ...] | None) -> None:
        """Keep the rules of a person; they are on disk when this returns."""
        value = None if rules is None else msgspec.json.encode(rules)
        await self._within(subject, lambda store: store.write(((RULES, value),)))
        self._rules[subject] = rules

    async def _fresh(self, subject: str, use: str, now: int) -> OwnVid:
        own = await self._within(subject, lambda store: store.take(now, use))
        if own is None:
            size = self._trust.node.settings.pool_size
            made = [VidSecrets(secrets.token_bytes(SEED_BYTES)) for _ in range(size)]
            credentials = await self._trust.draw(subject, [one.public for one in made])
            await self._within(subject, lambda store: store.add_pool(credentials, made))
            own = await self._within(subject, lambda store: store.take(now, use))
        assert own is not None, "a pool that was just drawn is valid"
        await self._keep_key(own.vid, own.secrets.public.sealing, own.expires_us)
        return own

    async def _within(self, subject: str, work: Callable[[KeyStore], Answer]) -> Answer:
        """Use a person's file in a thread: every change of it waits for the disk."""

        def run() -> Answer:
            store = KeyStore.open(store_of(self._folder, subject))
            try:
                return work(store)
            finally:
                store.close()

        return await asyncio.to_thread(run)
