"""Issuing: pools of vids as credentials, all of one size, on one grid of expiry.

Nothing of a pool is stored: a vid is resolved by its epoch's key. What a broker or an archive's
reader sees of a vid must not say which pool it came from, so every pool has the same size and all
credentials of a day expire at the same instant, whoever drew them (decision 0111).
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from roamcast.errors import InputError, RateError, RoamcastError, StoreError
from roamcast.identity.credentials import Credential, VidKeys, sign_credential
from roamcast.identity.keys import RandomBytes, TrustedKeys
from roamcast.identity.pseudonyms import HANDLE, seal
from roamcast.identity.trusted.register import RegisterRow
from roamcast.identity.trusted.settings import TrustSettings
from roamcast.model.events import Failed
from roamcast.model.machine import Effect, Input
from roamcast.model.parts import Occupancy, Part
from roamcast.model.records import TrustStep


class DrawPool(Input, frozen=True):
    """Issue a vid for each of these keys; answered by `VidPool`."""

    ticket: int
    subject: str
    keys: tuple[VidKeys, ...]


class VidPool(Effect, frozen=True):
    """Credentials in the order of the keys."""

    ticket: int
    credentials: tuple[str, ...]


class Issuing(Part):
    """Draws vids, and holds everybody to a number of pools a day."""

    part: ClassVar[str] = "issuing"
    inputs: ClassVar = (DrawPool,)

    def __init__(
        self,
        settings: TrustSettings,
        *,
        person: Callable[[str], RegisterRow],
        keys: Callable[[], TrustedKeys],
        private: bytes,
        random_bytes: RandomBytes,
    ) -> None:
        """`private`: the key that signs credentials; `person` raises for who is not registered."""
        self._settings = settings
        self._person = person
        self._keys = keys
        self._private = private
        self._random = random_bytes
        self._window = 0
        self._drawn: dict[str, int] = {}
        """Pools drawn in this window, by subject."""

    def occupancy(self) -> Occupancy:
        """How many people drew in this window, and how often."""
        return {
            "drawers": (len(self._drawn), self._settings.people_max),
            "pools of one person": (max(self._drawn.values(), default=0), self._settings.pools_max),
        }

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Issue a pool."""
        assert isinstance(given, DrawPool)
        try:
            pool = self._draw(given, now)
            return [VidPool(given.ticket, pool), TrustStep("pool", len(pool))]
        except RoamcastError as error:
            return [Failed(given.ticket, error)]

    def _draw(self, given: DrawPool, now: int) -> tuple[str, ...]:
        settings, person, keys = self._settings, self._person(given.subject), self._keys()
        if len(given.keys) != settings.pool_size:
            raise InputError(f"a pool has {settings.pool_size} vids, no more and no fewer")
        if not keys.current:
            raise StoreError("the trusted node's first key is not on disk yet: try again")
        if now // settings.pools_us != self._window:
            self._window, self._drawn = now // settings.pools_us, {}
        full = given.subject not in self._drawn and len(self._drawn) >= settings.people_max
        if full or self._drawn.get(given.subject, 0) >= settings.pools_max:
            error = RateError(f"one person draws at most {settings.pools_max} pools a day")
            error.retry_us = (self._window + 1) * settings.pools_us - now
            raise error
        self._drawn[given.subject] = self._drawn.get(given.subject, 0) + 1
        grid = settings.credential_us
        expires = (now // grid + 2) * grid
        handles = pa.array([person.handle] * len(given.keys), HANDLE)
        vids: list[str] = seal(handles, keys, self._random).to_pylist()
        return tuple(
            sign_credential(Credential(vid, own, expires), self._private)
            for vid, own in zip(vids, given.keys, strict=True)
        )
