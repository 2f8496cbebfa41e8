"""Information items from a program: published and taken back under the token's name."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from roamcast.transport.http import HttpClient


class Items:
    """The source's side of items."""

    def __init__(self, named: HttpClient) -> None:
        self._asked = named

    async def publish(
        self,
        major: str,
        minor: str,
        subkeys: Iterable[tuple[str, str, Any]],
        lifetime_s: float | None,
    ) -> str:
        """Publish an item, or change it; give its vid."""
        path = _path(major, minor)
        if lifetime_s is not None:
            path += f"?lifetime={lifetime_s:g}"
        body = {"subkeys": [[*one] for one in subkeys]}
        answer = await self._asked.ask("PUT", path, body=body)
        return str(answer["id"])

    async def remove(self, major: str, minor: str) -> None:
        """Take an item back."""
        await self._asked.ask("DELETE", _path(major, minor))


def _path(major: str, minor: str) -> str:
    return f"/items/{quote(major, safe='')}/{quote(minor, safe='')}"
