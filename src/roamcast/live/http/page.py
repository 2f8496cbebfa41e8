"""The map page: files that `make web` built into the package, served as they are.

Each file is kept once, as gzip. Names of assets have a hash of their contents, so browsers keep
them; the page itself is asked for anew each time. The page loads nothing from elsewhere, and its
policy (CSP) lets it load nothing: what others wrote into a context can not bring a script along.
"""

import gzip
from html import escape
from importlib.resources import files
from typing import Final

import msgspec
from litestar import Response

from roamcast.errors import NotFoundError
from roamcast.live.http.routes import Asked, route

POLICY: Final = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
KINDS: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
FOREVER: Final = "public, max-age=31536000, immutable"
GUARDS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
NOT_BUILT: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Roamcast</title>
<h1>Roamcast runs. Its map page is not built.</h1>
<p>{reason}</p>
<p>In a clone of the repository <code>make web</code> builds it; that needs npm's registry once.
A released wheel contains it.</p>
<p>Everything else works: <a href="/docs">the API</a>, <code>roamcast who</code>,
<code>roamcast watch</code>.</p>
"""


class PageFile(msgspec.Struct, frozen=True):
    """One file of the page."""

    kind: str
    packed: bytes


def built() -> dict[str, PageFile]:
    """Read the page's files by name; empty where it is not built."""
    folder = files("roamcast") / "page"
    found: dict[str, PageFile] = {}
    for place in (folder, folder / "assets"):
        for entry in place.iterdir() if place.is_dir() else ():
            stem, _, packing = entry.name.rpartition(".")
            kind = KINDS.get(stem.rpartition(".")[2])
            if packing == "gz" and kind is not None:
                found[stem] = PageFile(kind, entry.read_bytes())
    return found


def why_missing() -> str:
    """Give the reason that the build left, if it was tried."""
    reason = files("roamcast") / "page" / "missing.txt"
    return reason.read_text("utf-8") if reason.is_file() else "Nobody has tried to build it yet."


def _files(request: Asked) -> dict[str, PageFile]:
    """Give the files, read once."""
    state = request.app.state
    found: dict[str, PageFile] | None = state.get("page_files")
    if found is None:
        found = state.page_files = built()
    return found


def map_page(request: Asked) -> Response[bytes]:
    """Answer a browser that asks for `/`."""
    page = _files(request).get("index.html")
    if page is None:
        # 200: the service is well, and so is this address
        kind = KINDS["html"]
        headers = {**GUARDS, "Cache-Control": "no-cache", "Vary": "Accept"}
        text = NOT_BUILT.format(reason=escape(why_missing()))
        return Response(text.encode(), media_type=kind, headers=headers)
    return _answer(request, page, {"Cache-Control": "no-cache", "Vary": "Accept, Accept-Encoding"})


@route("GET", "/assets/{name:str}", scope=None, answer=bytes, kind="text/javascript", listed=False)
async def get_asset(request: Asked, name: str) -> Response[bytes]:
    """Give a file of the map page."""
    found = _files(request).get(name)
    if found is None:
        raise NotFoundError(f"the map page has no file {name[:100]!r}")
    return _answer(request, found, {"Cache-Control": FOREVER, "Vary": "Accept-Encoding"})


def _answer(request: Asked, file: PageFile, headers: dict[str, str]) -> Response[bytes]:
    headers = {**GUARDS, **headers}
    body = file.packed
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
    else:
        body = gzip.decompress(body)
    return Response(body, media_type=file.kind, headers=headers)
