"""A trusted node on a disk in memory that may refuse or wait, for tests."""

import random
from typing import Any

from roamcast.identity.credentials import VidKeys, vid_of
from roamcast.identity.trusted.issuing import DrawPool, VidPool
from roamcast.identity.trusted.mailboxes import Deposit, SealedParcel
from roamcast.identity.trusted.node import TrustedNode
from roamcast.identity.trusted.register import EnrolPerson
from roamcast.identity.trusted.settings import TrustSettings
from roamcast.model.machine import Effect, Input, Store, Stored, StoreFailed
from roamcast.model.records import Record

NODE = "trust.example"
SETTINGS = TrustSettings(pool_size=4, round_to=1)
PRIVATE = bytes(range(32))
KEYS = VidKeys(bytes(32), bytes(32))


class Scene:
    """Drives a node; `held` keeps writes from being answered, `broken` refuses them."""

    def __init__(self, settings: TrustSettings = SETTINGS, name: str = NODE) -> None:
        self.settings = settings
        self.name = name
        self.disk: dict[str, bytes] = {}
        self.broken = False
        self.held = False
        self.waiting: list[Store] = []
        self.records: list[Record] = []
        self.now = 1_000_000
        self._ticket = 0
        self._draws = 0
        self.restart()

    def restart(self) -> None:
        self.waiting.clear()
        self._draws += 1
        self.node = TrustedNode(
            self.name,
            now=self.now,
            load=lambda prefix: {
                key: value for key, value in sorted(self.disk.items()) if key.startswith(prefix)
            },
            private=PRIVATE,
            random_bytes=random.Random(f"{self.name}{self._draws}").randbytes,
            settings=self.settings,
        )
        self._perform(self.node.advance(self.now))

    def give(self, kind: type[Input], *given: Any, **named: Any) -> list[Effect]:
        """Give a request with a fresh ticket."""
        self._ticket += 1
        return self.tell(kind(self._ticket, *given, **named))

    def tell(self, given: Input) -> list[Effect]:
        return self._perform(self.node.receive(given, self.now))

    def wait(self, us: int) -> list[Effect]:
        """Let time pass, and do everything that falls due."""
        end, out = self.now + us, []
        while (due := self.node.deadline()) is not None and due <= end:
            self.now = max(due, self.now)
            out += self._perform(self.node.advance(self.now))
        self.now = end
        return out

    def release(self) -> list[Effect]:
        """Answer the writes that were held."""
        self.held, waiting, self.waiting = False, self.waiting, []
        return self._perform(waiting)

    def _perform(self, effects: Any) -> list[Effect]:
        out: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Record):
                self.records.append(effect)
            elif not isinstance(effect, Store):
                out.append(effect)
            elif self.held:
                self.waiting.append(effect)
            elif self.broken:
                out += self.tell(StoreFailed(effect.token, "no space left on device"))
            else:
                for key, value in effect.writes:
                    if value is None:
                        self.disk.pop(key, None)
                    else:
                        self.disk[key] = value
                out += self.tell(Stored(effect.token))
        return out

    def vids(self, subject: str) -> list[str]:
        """Enrol somebody and draw a pool."""
        self.give(EnrolPerson, subject)
        (pool,) = self.give(DrawPool, subject, (KEYS,) * self.settings.pool_size)
        assert isinstance(pool, VidPool), pool
        return [vid_of(one) for one in pool.credentials]

    def deposit(
        self,
        cast: str,
        *vids: str,
        sender: str = "ann",
        kind: str = "text",
        sealed: bytes = b"sealed",
        lasts_us: int = 10_000_000,
        back_s: int = 0,
        urgent: bool = False,
    ) -> list[Effect]:
        parcels = tuple(SealedParcel(vid, sealed) for vid in vids)
        until = self.now + lasts_us
        return self.give(Deposit, cast, sender, kind, until, back_s, parcels, urgent)
