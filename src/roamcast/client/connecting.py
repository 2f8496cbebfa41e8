"""What `connect` returns: a session to come, to be awaited or entered."""

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roamcast.client.session import Session


class Connecting:
    """What `connect` returns: `async with connect(…) as me`, or `me = await connect(…)`."""

    def __init__(self, make: Callable[[], Awaitable["Session"]]) -> None:
        self._make = make
        self._session: Session | None = None

    def __await__(self) -> Generator[Any, None, "Session"]:
        return self._connect().__await__()

    async def __aenter__(self) -> "Session":
        return await self._connect()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def _connect(self) -> "Session":
        self._session = await self._make()
        return self._session
