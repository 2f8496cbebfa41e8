"""Values of the formats that the OpenAPI document names, for schemathesis (SCHEMATHESIS_HOOKS).

JSON Schema cannot say what CQL2 is, that a place is printable, or that `t_r` is not in the future.
The document names a format there, and this says which texts have it.
"""

from typing import Any

import schemathesis
from hypothesis import strategies as st

SETTINGS = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 413]
"""
"""schemathesis.toml: a body that is too large is refused, too."""


@schemathesis.hook
def before_call(
    context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]
) -> None:
    """Leave out the id of a Feature: no schema can say that it equals the vid in the path."""
    del context, kwargs
    if case.method == "PUT" and isinstance(case.body, dict):
        case.body.pop("id", None)


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
