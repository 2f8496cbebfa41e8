"""The OpenAPI 3.1 document, and the page made of it.

litestar finds paths and parameters in the handlers' signatures. Everything else derives from
`@route` and from the structs: bodies, answers, problems, who needs a token, and HEAD. The messages
of `WS /session` and `WS /mailbox` stand among the components: OpenAPI cannot describe WebSockets.
"""

from collections.abc import Iterator
from html import escape
from typing import Any, Final

import msgspec
from litestar import Litestar

from roamcast.channels.sessions import messages
from roamcast.live.config.settings import Limits
from roamcast.live.http.problems import PROBLEM_TYPE, ProblemDetails
from roamcast.live.http.routes import NO_CONTENT, ROUTES, Route, route_of
from roamcast.live.http.shapes import JSON
from roamcast.live.trust.mail_socket import AckMailRequest, MailAcked, MailFrame, MailProblem

REFERENCE: Final = "#/components/schemas/{name}"
OPEN_PROBLEMS: Final = {
    400: "the request cannot be understood; the detail says why",
    405: "the path has other methods; Allow names them",
}
PROBLEMS: Final = {
    **OPEN_PROBLEMS,
    401: "no valid token",
    403: "the token lacks the scope",
    404: "it does not exist, or this token may not see it",
    429: "too many requests; Retry-After says when to try again",
}
WRITE_PROBLEMS: Final = {
    **PROBLEMS,
    409: "it belongs to somebody else, or what is there now does not allow it",
    413: "the body is too large",
    503: "the disk did not take it; nothing has changed",
}
SESSION: Final[dict[str, Any]] = {
    "SessionMessage": messages.Anything,
    "SessionAnswer": messages.Answer,
    "MailSocketMessage": AckMailRequest,
    "MailSocketAnswer": MailFrame | MailAcked | MailProblem,
}


def document_of(app: Litestar) -> dict[str, Any]:
    """Make the OpenAPI document of an application."""
    document: dict[str, Any] = app.openapi_schema.to_schema()
    routes = {handler.operation_id: route_of(handler) for handler in ROUTES}
    schemas, components = _schemas([route for route in routes.values() if route is not None])
    limits = app.state.service.settings.limits
    for methods in document["paths"].values():
        for method, operation in methods.items():
            route = routes[operation["operationId"]]
            assert route is not None
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = _parameter(parameter, limits)
            operation["responses"] = _responses(route, method, schemas)
            operation.pop("requestBody", None)
            if route.body is not None:
                content = {JSON: {"schema": schemas[route.body]}}
                operation["requestBody"] = {"required": route.body_needed, "content": content}
            if route.scope is None:
                operation["security"] = []
        if "get" in methods:
            methods["head"] = _head(methods["get"])
    # The struct has the most that any service may allow; this one's settings may allow less.
    asked = ("SubscribeRequest", "SubscribeEventsRequest", "CountRequest")
    for name in (*asked, "WebhookWish", "CastOrder", "PreviewOrder"):
        components[name]["properties"]["filter"]["maxLength"] = limits.filter_length_max
    many = components["SubscribeManyRequest"]["properties"]["filters"]
    many["additionalProperties"]["maxLength"] = limits.filter_length_max
    document["components"]["schemas"] = components
    return document


def _schemas(routes: list[Route]) -> tuple[dict[Any, Any], dict[str, Any]]:
    """Give the schema of every body by its type, and the components they refer to."""
    types = {
        kind: None
        for route in routes
        for kind in (route.body, route.answer)
        if kind is not None and kind is not bytes
    }
    kinds = [ProblemDetails, *types, *SESSION.values()]
    made, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    schemas = dict(zip(kinds, made, strict=True))
    for name, kind in SESSION.items():
        components[name] = schemas[kind]
    return schemas, components


def _parameter(parameter: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """Give a parameter's schema, with the limits that the settings put on it.

    A parameter that may be left out is typed `… | None`; a query cannot say null.
    """
    schema = dict(parameter["schema"])
    for other in schema.pop("oneOf", ()):
        if other != {"type": "null"}:
            schema = {**other, **schema}
    match parameter["name"]:
        case "filter":
            schema["maxLength"] = limits.filter_length_max
        case "limit":
            schema["default"] = limits.items_default
        case "lifetime":
            schema["maximum"] = limits.context_lifetime_s_max
            schema["default"] = limits.context_lifetime_s
        case "count":
            schema["maximum"] = min(schema["maximum"], limits.nearest_max)
    return schema


def _responses(route: Route, method: str, schemas: dict[Any, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for status, description in route.answers.items():
        made[str(status)] = {"description": description}
        if status != NO_CONTENT:
            schema = {"type": "string"} if route.answer is bytes else schemas[route.answer]
            made[str(status)]["content"] = {route.kind: {"schema": schema}}
    usual = OPEN_PROBLEMS if route.scope is None else PROBLEMS
    usual = WRITE_PROBLEMS if method != "get" else usual
    for status in (*usual, *route.problems):
        made[str(status)] = {
            "description": WRITE_PROBLEMS[status],
            "content": {PROBLEM_TYPE: {"schema": schemas[ProblemDetails]}},
        }
    return made


def _head(get: dict[str, Any]) -> dict[str, Any]:
    """Describe HEAD of a path: what GET answers, without a body."""
    name = get["operationId"]
    answers = {
        status: {"description": answer["description"]}
        for status, answer in get["responses"].items()
    }
    return {
        **get,
        "operationId": f"head{name[0].upper()}{name[1:]}",
        "description": "As GET, without the body.",
        "responses": answers,
    }


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:60rem;padding:1.5rem;color:#1b2430}
h1{font-size:1.6rem}h2{font-size:1.1rem;margin-top:2rem;border-bottom:1px solid #cdd5df}
details{border:1px solid #cdd5df;border-radius:6px;margin:.4rem 0;padding:.3rem .7rem}
summary{cursor:pointer}code,b.m{font-family:ui-monospace,monospace}
b.m{display:inline-block;width:4.5rem;color:#0a5f55}table{border-collapse:collapse;margin:.5rem 0}
td,th{text-align:left;padding:.15rem .8rem .15rem 0;vertical-align:top}
"""


def page_of(document: dict[str, Any]) -> bytes:
    """Write a page that lists every operation and loads nothing else."""
    groups: dict[str, list[str]] = {}
    for path, method, operation in _operations(document):
        groups.setdefault(operation["tags"][0], []).append(_operation(method, path, operation))
    info = document["info"]
    body = "".join(f"<h2>{escape(tag)}</h2>{''.join(parts)}" for tag, parts in groups.items())
    text = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])}</title>"
        f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        f"<p>{escape(info.get('description', ''))}</p>"
        "<p>Send a token as <code>Authorization: Bearer …</code>. The whole description: "
        "<a href=/openapi.json>openapi.json</a>. Live sessions: <code>WS /session</code>.</p>"
        f"{body}</html>"
    )
    return text.encode()


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(parameter['name'])}</code><td>{escape(parameter['in'])}"
        f"<td>{escape(parameter.get('description', ''))}"
        for parameter in operation.get("parameters", [])
    )
    answers = "".join(
        f"<tr><td>{escape(status)}<td>{escape(answer.get('description', ''))}"
        for status, answer in operation["responses"].items()
    )
    table = f"<table>{rows}</table>" if rows else ""
    return (
        f"<details><summary><b class=m>{method.upper()}</b> <code>{escape(path)}</code> "
        f"{escape(operation.get('summary', ''))}</summary>"
        f"<p>{escape(operation.get('description', ''))}</p>{table}"
        f"<table>{answers}</table></details>"
    )
