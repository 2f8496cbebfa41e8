"""How does a person browse the API? One page made of its description, loading nothing else."""

from html import escape
from typing import Any

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:60rem;padding:1.5rem;color:#1b2430}
h1{font-size:1.6rem}h2{font-size:1.1rem;margin-top:2rem;border-bottom:1px solid #cdd5df}
details{border:1px solid #cdd5df;border-radius:6px;margin:.4rem 0;padding:.3rem .7rem}
summary{cursor:pointer}code,b.m{font-family:ui-monospace,monospace}
b.m{display:inline-block;width:4.5rem;color:#0a5f55}table{border-collapse:collapse;margin:.5rem 0}
td,th{text-align:left;padding:.15rem .8rem .15rem 0;vertical-align:top}
"""


def page_of(schema: dict[str, Any]) -> bytes:
    """Write the page of an OpenAPI document."""
    groups: dict[str, list[str]] = {}
    for path, methods in schema.get("paths", {}).items():
        for method, operation in methods.items():
            tag = (operation.get("tags") or ["other"])[0]
            groups.setdefault(tag, []).append(_operation(method, path, operation))
    info = schema["info"]
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


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(one['name'])}</code><td>{escape(one['in'])}"
        f"<td>{escape(one.get('description', ''))}"
        for one in operation.get("parameters", [])
    )
    answers = "".join(
        f"<tr><td>{escape(status)}<td>{escape(one.get('description', ''))}"
        for status, one in operation.get("responses", {}).items()
    )
    table = f"<table>{rows}</table>" if rows else ""
    return (
        f"<details><summary><b class=m>{method.upper()}</b> <code>{escape(path)}</code> "
        f"{escape(operation.get('summary', ''))}</summary>"
        f"<p>{escape(operation.get('description', ''))}</p>{table}"
        f"<table>{answers}</table></details>"
    )
