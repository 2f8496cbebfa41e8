"""Who asks, and how often may they? The token of a request, checked before anything else."""

from typing import Any

from litestar.connection import ASGIConnection

from roamcast.errors import AuthError
from roamcast.identity.rules import Viewer
from roamcast.live.auth.keys import Grant, Scope
from roamcast.live.service.service import Service

Connection = ASGIConnection[Any, Any, Any, Any]


def service_of(connection: Connection) -> Service:
    """Give the service behind an application."""
    service: Service = connection.app.state.service
    return service


def granted(connection: Connection, scope: Scope) -> Grant:
    """Check the token and count the request; refuse what is not allowed, or too often."""
    service = service_of(connection)
    grant = service.keys.check(_token(connection), service.clock())
    grant.require(scope)
    service.count_request(grant.subject)
    return grant


def viewer_of(grant: Grant) -> Viewer:
    """Give who looks through a token."""
    return Viewer(grant.subject, grant.groups)


def _token(connection: Connection) -> str:
    """Find the token: in the header, or in the address for browsers' WebSocket and EventSource."""
    header = connection.headers.get("authorization", "")
    kind, _, token = header.partition(" ")
    if kind.lower() == "bearer" and token.strip():
        return token.strip()
    token = connection.query_params.get("access_token", "")
    if token:
        return str(token)
    raise AuthError("a token is needed: send it as `Authorization: Bearer …` (roamcast token)")
