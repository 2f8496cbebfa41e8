"""A person's say from their own side: who may write to them, kept at their trusted node."""

from typing import Any

import msgspec
from msgspec import structs

from roamcast.errors import UnreachableError
from roamcast.identity.trusted.reach import Reach, check_reach
from roamcast.transport.http import HttpClient


class Reaching:
    """The reach rules of one person; a change is in force when the call returns."""

    def __init__(self, trust: HttpClient) -> None:
        """`trust`: the trusted node, asked with a token that has the person's name."""
        self._trust = trust

    async def rules(self) -> Reach:
        """Read the rules in force."""
        return _reach(await self._trust.ask("GET", "/me/reach"))

    async def set(self, reach: Reach) -> Reach:
        """Replace all rules."""
        body = msgspec.to_builtins(check_reach(reach))
        return _reach(await self._trust.ask("PUT", "/me/reach", body=body))

    async def stop(self, sender: str) -> Reach:
        """Get no more mail of a sender."""
        now = await self.rules()
        if sender in now.stopped:
            return now
        return await self.set(structs.replace(now, stopped=(*now.stopped, sender)))

    async def allow(self, sender: str) -> Reach:
        """Take a sender off the list of those who are stopped."""
        now = await self.rules()
        left = tuple(one for one in now.stopped if one != sender)
        return now if left == now.stopped else await self.set(structs.replace(now, stopped=left))

    async def wake(self, endpoint: str) -> None:
        """Let a push service wake a device when mail waits; a push says nothing."""
        await self._trust.ask("PUT", "/me/push", body={"endpoint": endpoint})

    async def wake_none(self) -> None:
        """Let no device be woken any more."""
        await self._trust.ask("DELETE", "/me/push")


def _reach(answer: Any) -> Reach:
    try:
        return msgspec.convert(answer, Reach)
    except msgspec.ValidationError as error:
        raise UnreachableError(f"the trusted node sent no reach rules of ours: {error}") from None
