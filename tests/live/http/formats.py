"""Values of the formats that the OpenAPI document names, for schemathesis (SCHEMATHESIS_HOOKS).

JSON Schema cannot say what CQL2 is, that a place is printable, or that `t_r` is not in the future.
The document names a format there, and this says which texts have it.
"""

import contextlib
import os
from typing import Any

import schemathesis
from hypothesis import strategies as st

from roamcast.errors import RoamcastError
from roamcast.model.filters import Filter
from roamcast.model.filters.atoms import FALSE
from roamcast.model.time import parse_instant

SETTINGS = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 413]

[[operations]]
include-path-regex = "^/casts"
[operations.checks.use_after_free]
enabled = false

[[operations]]
include-path = "/what-if"
enabled = false
"""
"""schemathesis.toml: a body that is too large is refused, too; a cancelled cast is still shown.
Each what-if starts a process; `test_what_if.py` has what it takes and gives."""

LONG_LISTS = "ROAMCAST_TEST_LONG_LISTS"
"""Environment variable: lists and texts are filled to their limits, for minutes (make soak)."""

SHORT = {"maxItems": 100, "maxLength": 1_024}
"""Limits up to these are tried in any case."""


@schemathesis.hook
def before_load_schema(context: schemathesis.HookContext, raw_schema: dict[str, Any]) -> None:
    """Forget the limits of what may be long, so that nothing is filled to its limit."""
    del context
    if not os.environ.get(LONG_LISTS):
        forget_long_limits(raw_schema)


def forget_long_limits(part: Any) -> None:
    """Remove large limits from a part of the document and all below it."""
    if isinstance(part, dict):
        for name, short in SHORT.items():
            if isinstance(limit := part.get(name), int) and limit > short:
                del part[name]
        part = list(part.values())
    if isinstance(part, list):
        for below in part:
            forget_long_limits(below)


def mend_hours(rules: Any) -> None:
    """Let the hours of rules begin before they end."""
    for rule in rules if isinstance(rules, list) else ():
        hours = rule.get("hours") if isinstance(rule, dict) else None
        if isinstance(hours, dict):
            hours.pop("start_min", None)


@schemathesis.hook
def before_call(
    context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]
) -> None:
    """Mend what no schema can say.

    The id of a Feature equals the vid in the path, those of a batch differ, a token with a filter
    has not the scope admin, hours begin before they end, a triple's value is of its type, and a
    cast says one thing, to somebody, before it expires.
    """
    del context, kwargs
    if case.path.endswith("/rules"):
        mend_hours(case.body)
    if not isinstance(case.body, dict):
        return
    if case.path == "/me/mirror":
        mend_hours(case.body.get("rules"))
    if case.method == "PUT":
        case.body.pop("id", None)
    if case.path == "/contexts" and isinstance(features := case.body.get("features"), list):
        ids = [one.get("id") for one in features if isinstance(one, dict)]
        if len(ids) == len(features) and all(isinstance(one, str) for one in ids):
            case.body["features"] = list(dict(zip(ids, features, strict=True)).values())
    if case.path.startswith("/items/"):
        mend_triples(case.body)
    if case.path.startswith("/casts"):
        mend_cast(case.body)
    if case.path == "/tokens" and case.body.get("filter") is not None:
        scopes = case.body.get("scopes")
        if scopes is None:
            case.body["scopes"] = ["read"]
        elif isinstance(scopes, list):
            case.body["scopes"] = ["read" if one == "admin" else one for one in scopes]


def mend_triples(body: dict[str, Any]) -> None:
    """Give triples names of their own and values of their types; no triples stay as they are."""
    match body.get("subkeys"):
        case [*triples] if all(
            isinstance(one, list) and [*map(type, one[:2])] == [str, str] and len(one) == 3
            for one in triples
        ):
            body["subkeys"] = [["integer", f"subkey{at}", at] for at in range(len(triples))]


def mend_cast(body: dict[str, Any]) -> None:
    """Let a cast say one thing to somebody; what no schema allows stays as it is."""
    text, payload = body.get("text", ""), body.get("payload", "")
    if isinstance(text, str) and isinstance(payload, str) and bool(text) == bool(payload):
        body["text"] = "" if payload else "hello"
    with contextlib.suppress(RoamcastError, TypeError, AttributeError):
        parse_instant(body["expires"]) if "expires" in body else None
        body.pop("expires", None)
    with contextlib.suppress(RoamcastError, TypeError, AttributeError):
        if "filter" in body and Filter.parse(body["filter"]).normal == FALSE:
            body["filter"] = "true"


_WORD = st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True)
_ATOM = st.one_of(
    st.from_regex(
        r"[a-z]{1,8} (=|<>|<|<=|>|>=) (-?[0-9]{1,6}|'[A-Za-z0-9 ]{0,20}')", fullmatch=True
    ),
    st.lists(_WORD, min_size=1, max_size=5).map(lambda path: f"within(place, '{'/'.join(path)}')"),
)
_FILTER = st.lists(_ATOM, min_size=1, max_size=5).flatmap(
    lambda atoms: st.sampled_from([" AND ", " OR "]).map(lambda word: word.join(atoms))
)
_INSTANT = st.from_regex(
    r"20[01][0-9]-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
    r"T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?Z",
    fullmatch=True,
)
_SEGMENT = st.text(
    st.characters(exclude_categories=["C", "Z"], exclude_characters="/"), min_size=1, max_size=20
)
_LONGITUDE = st.floats(-180, 180).map(repr)
_LATITUDE = st.floats(-90, 90).map(repr)

# A webhook is made once its receiver agrees: one that may not be asked conflicts, at once.
schemathesis.openapi.format("uri", st.just("https://127.0.0.1/hook"))
schemathesis.openapi.format("cql2", st.one_of(st.sampled_from(["true", "false"]), _FILTER))
schemathesis.openapi.format("place", st.lists(_SEGMENT, min_size=1, max_size=32).map("/".join))
schemathesis.openapi.format("date-time", _INSTANT)
schemathesis.openapi.format(
    "bbox", st.tuples(_LONGITUDE, _LATITUDE, _LONGITUDE, _LATITUDE).map(",".join)
)
schemathesis.openapi.format(
    "interval",
    st.one_of(
        _INSTANT,
        st.tuples(*[st.one_of(st.just(".."), _INSTANT)] * 2).map("/".join),
    ),
)
schemathesis.openapi.format("position", st.tuples(_LONGITUDE, _LATITUDE).map(",".join))
