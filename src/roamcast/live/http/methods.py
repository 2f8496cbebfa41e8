"""Which methods does a path know? Those of its routes, and HEAD wherever there is GET.

RFC 9110 wants HEAD of every server. It is asked as GET, and the answer's body is left out; only the
stream of changes has none, because it would never end.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from litestar import Litestar
from litestar.exceptions import MethodNotAllowedException

STREAM: Final = "/changes"
WAS_HEAD: Final = "roamcast.head"
"""Stands in the ASGI scope of a GET that was a HEAD."""

Send = Callable[[Any], Awaitable[None]]
MethodsOf = Callable[[str], str | None]
"""Names the methods of a path, as the header `Allow` does; none where there is no such path."""


def allowed(app: Litestar) -> MethodsOf:
    """Look up the methods of all paths of an application."""
    known: list[tuple[re.Pattern[str], str]] = []
    for route in app.routes:
        methods = {str(method) for method in getattr(route, "methods", ())} | {"OPTIONS"}
        if "GET" in methods and route.path != STREAM:
            methods.add("HEAD")
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(route.path_format))
        known.append((re.compile(pattern), ", ".join(sorted(methods))))

    def methods_of(path: str) -> str | None:
        path = path.rstrip("/") or "/"
        return next((methods for pattern, methods in known if pattern.fullmatch(path)), None)

    return methods_of


def as_get(scope: Any, send: Send) -> tuple[Any, Send]:
    """Turn a HEAD into a GET whose answer loses its body, but not what its headers say of it."""

    async def send_head(message: Any) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return {**scope, "method": "GET", WAS_HEAD: True}, send_head


def refuse_head(scope: Any) -> None:
    """Refuse a HEAD where a GET has no end."""
    if WAS_HEAD in scope:
        raise MethodNotAllowedException
