"""Problems that a service answers with become the errors of our tree that say the same."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from roamcast.client.asking import Asking
from roamcast.errors import (
    AuthError,
    ConflictError,
    FilterError,
    InputError,
    LimitError,
    NotFoundError,
    UnreachableError,
)
from roamcast.transport import http as module
from roamcast.transport.address import ServiceAddress
from roamcast.transport.http import HttpClient


@contextmanager
def answering(status: int, body: bytes) -> Iterator[Asking]:
    """Run a server that answers everything alike."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.headers["Authorization"] == "Bearer key"
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield Asking(HttpClient(ServiceAddress(f"http://127.0.0.1:{server.server_port}", "key")))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def problem(status: int, detail: str) -> bytes:
    return json.dumps({"title": "t", "status": status, "detail": detail}).encode()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, InputError),
        (401, AuthError),
        (403, AuthError),
        (404, NotFoundError),
        (409, ConflictError),
        (413, LimitError),
        (429, LimitError),
        (503, UnreachableError),
    ],
)
def test_every_problem_is_an_error_that_says_the_detail(
    status: int, error: type[Exception]
) -> None:
    with (
        answering(status, problem(status, "do it so")) as asking,
        pytest.raises(error, match="do it so") as caught,
    ):
        asyncio.run(asking.count())
    if isinstance(caught.value, AuthError):
        assert caught.value.status == status


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"count": "x"}', b"[]", b"\xff"])
def test_another_kind_of_server_is_recognised(body: bytes) -> None:
    with answering(200, body) as asking:
        for work in (asking.count, asking.who):
            with pytest.raises(UnreachableError, match="Roamcast service"):
                asyncio.run(work())


def test_an_error_without_details_names_the_address() -> None:
    with answering(502, b"<html>") as asking, pytest.raises(UnreachableError, match="502"):
        asyncio.run(asking.count())


def test_an_answer_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'{"count": 1}'
    monkeypatch.setattr(module, "RESPONSE_BYTES_MAX", len(body))
    with answering(200, body) as asking:
        assert asyncio.run(asking.count()) == 1
    with answering(200, body + b" ") as asking, pytest.raises(LimitError, match="bytes"):
        asyncio.run(asking.count())


def test_bad_questions_are_refused_before_anybody_is_asked() -> None:
    asking = Asking(HttpClient(ServiceAddress("http://127.0.0.1:1", "key")))
    with pytest.raises(FilterError):
        asyncio.run(asking.who("type ="))
    with pytest.raises(LimitError):
        asyncio.run(asking.who(limit=0))
    with pytest.raises(LimitError):
        asyncio.run(asking.nearest((0.0, 0.0), count=1_001))
    with pytest.raises(UnreachableError, match="no service answers"):
        asyncio.run(asking.count())


def test_a_next_page_is_asked_of_the_same_host_only() -> None:
    feature = {
        "type": "Feature",
        "id": "a",
        "geometry": None,
        "properties": {"place": "x", "t_r": "2026-01-01T00:00:00Z"},
    }
    page = {
        "type": "FeatureCollection",
        "features": [feature],
        "links": [{"rel": "next", "href": "http://elsewhere.invalid/steal?offset=1"}],
    }
    with answering(200, json.dumps(page).encode()) as asking:
        found = asyncio.run(asking.who(limit=3))
    assert [one.vid for one in found] == ["a", "a", "a"]
