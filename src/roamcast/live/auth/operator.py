"""The token of the commands on this machine: in the address file, and renewed in time."""

import asyncio
import json
from pathlib import Path
from typing import Final

from roamcast import files
from roamcast.errors import RoamcastError
from roamcast.live.auth.admission import SCOPES, Grant, TokenKeys
from roamcast.live.observe.logs import Log
from roamcast.model.time import MICROSECONDS
from roamcast.transport.driver import Clock

OPERATOR: Final = "operator"
OPERATOR_LIFETIME_S: Final = 7 * 86_400
OPERATOR_CHECK_S: Final = 1.0
"""Interval at which the token is checked."""

_LOG = Log("operator")


class OperatorToken:
    """The token of the commands on this machine, in the address file.

    It is renewed at half its life, and at once when it is revoked or its key is gone: neither a
    week nor a rotation leaves the machine's own operator outside.
    """

    def __init__(self, keys: TokenKeys, path: Path, url: str) -> None:
        self._keys = keys
        self._path = path
        self._url = url
        self._grant: Grant | None = None

    def renew(self, now: int) -> str:
        """Issue a token and write it down."""
        token = self._keys.issue(OPERATOR, SCOPES, (), lifetime_s=OPERATOR_LIFETIME_S, now=now)
        write_address(self._path, self._url, token)
        self._grant = self._keys.check(token, now)
        return token

    def check(self, now: int) -> None:
        """Renew the token if it is time."""
        assert self._grant is not None, "there is a token from the start"
        half_us = OPERATOR_LIFETIME_S * MICROSECONDS // 2
        (ended,) = self._keys.ended([self._grant], now)
        if ended is not None or self._grant.expires_us - now <= half_us:
            self.renew(now)

    async def keep(self, clock: Clock) -> None:
        """Check the token for as long as the service runs."""
        while True:
            await asyncio.sleep(OPERATOR_CHECK_S)
            try:
                self.check(clock())
            except (RoamcastError, OSError) as error:
                _LOG.error("the operator's token could not be renewed", error)


def write_address(path: Path, url: str, token: str) -> None:
    """Leave the address and a token for commands on this machine, readable by their owner only."""
    text = json.dumps({"url": url, "token": token}).encode()
    files.write_whole(path, text, mode=files.OWNER_ONLY)
