"""The ASGI application of a service, made of all routes there are."""

import re
from collections.abc import Callable, Sequence
from typing import Final

from litestar import Litestar
from litestar.config.cors import CORSConfig
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.routes import HTTPRoute

import roamcast
from roamcast.errors import RoamcastError
from roamcast.live.http import (
    about,
    casts,
    changes,
    events,
    features,
    items,
    mail,
    overlay,
    page,
    phones,
    places,
    presence,
    tokens,
    webhooks,
    what_if,
    writing,
)
from roamcast.live.http.problems import litestars, mistake, ours
from roamcast.live.http.routes import ROUTES, Gate, route_of
from roamcast.live.service.service import Service
from roamcast.live.what_if.office import WhatIfOffice

MODULES: Final = (
    about,
    features,
    writing,
    items,
    changes,
    events,
    webhooks,
    places,
    tokens,
    phones,
    presence,
    mail,
    casts,
    overlay,
    what_if,
    page,
)
"""Importing them registers their routes."""

MethodsOf = Callable[[str], str | None]
"""Names the methods of a path, as the header `Allow` does; None where there is no such path."""


def make_gate(service: Service) -> Gate:
    """Make the application of a service."""
    return Gate(service, make_http(service))


def make_http(service: Service) -> Litestar:
    """Make the HTTP part from the registered routes."""
    made = Litestar(
        list(ROUTES),
        state=State({"service": service, "what_if": WhatIfOffice(service)}),
        exception_handlers={RoamcastError: ours, HTTPException: litestars, Exception: mistake},
        request_max_body_size=service.settings.limits.body_bytes_max,
        logging_config=None,
        cors_config=_cors(service.settings.server.cors_origins),
        openapi_config=OpenAPIConfig(
            title="Roamcast",
            version=roamcast.__version__,
            description="Reach people by where they are, without learning who they are. Three "
            "streams are not on this page: GET /changes?filter=… (server-sent events), WS /session "
            "(JSON, components SessionMessage and SessionAnswer; docs/service.md) and WS /mailbox "
            "(MailSocketMessage and MailSocketAnswer; docs/trust.md).",
            path="/schema",
            components=Components(
                security_schemes={
                    "token": SecurityScheme(type="http", scheme="bearer", bearer_format="JWT")
                }
            ),
            security=[{"token": []}],
            use_handler_docstrings=True,
            render_plugins=[],
        ),
    )
    made.state.methods_of = methods_of(made)
    return made


def _cors(origins: Sequence[str]) -> CORSConfig | None:
    """Let pages of other origins ask; tokens are in a header, so no cookie is ever needed."""
    if not origins:
        return None
    return CORSConfig(
        allow_origins=list(origins),
        allow_methods=["GET", "PUT", "PATCH", "DELETE", "POST"],
        allow_headers=["authorization", "content-type"],
        expose_headers=["retry-after", "www-authenticate"],
        max_age=600,
    )


def methods_of(app: Litestar) -> MethodsOf:
    """Look up the methods of an application's paths: its routes', and HEAD wherever GET ends."""
    known: list[tuple[re.Pattern[str], str]] = []
    for path in app.routes:
        if not isinstance(path, HTTPRoute):
            continue
        methods = {str(method) for method in path.methods} | {"OPTIONS"}
        found = [route_of(handler) for handler in path.route_handlers]
        if "GET" in methods and not any(route is not None and route.endless for route in found):
            methods.add("HEAD")
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path.path_format))
        known.append((re.compile(pattern), ", ".join(sorted(methods))))

    def look_up(path: str) -> str | None:
        path = path.rstrip("/") or "/"
        return next((methods for pattern, methods in known if pattern.fullmatch(path)), None)

    return look_up
