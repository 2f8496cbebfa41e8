"""What does the API's description say beyond what litestar finds? Bodies, patterns, open routes.

JSON Schema can not describe CQL2: the pattern of `filter` is a simple part of it, so that tools
that make requests by themselves make some that mean something. The service takes all of CQL2.
"""

from typing import Any, Final

from litestar import Litestar

from roamcast.identity.rules import LEVELS, RULES_MAX, VIEWER_LENGTH_MAX
from roamcast.live.http.feature_input import NAME_PATTERN, NUMBER_MAX, TEXT_LENGTH_MAX
from roamcast.live.http.filtering import VID_PATTERN

_POINT: Final = {
    "type": "object",
    "required": ["type", "coordinates"],
    "properties": {
        "type": {"const": "Point"},
        "coordinates": {
            "type": "array",
            "description": "lon, lat in degrees",
            "prefixItems": [
                {"type": "number", "minimum": -180, "maximum": 180},
                {"type": "number", "minimum": -90, "maximum": 90},
            ],
            "minItems": 2,
            "maxItems": 2,
        },
    },
}
_SEGMENT: Final = r"[A-Za-z0-9_-]{1,20}"
_ATTRIBUTES: Final = {
    "type": "object",
    "description": "place or geometry is needed. Everything else is an attribute: a string, a "
    'number, a boolean, or {"timestamp": "…"}. Without t_r it begins now.',
    "maxProperties": 200,
    "propertyNames": {
        "pattern": f"^{NAME_PATTERN}$",
        "not": {"enum": ["geometry", "time", "vid"]},
    },
    "additionalProperties": {
        "oneOf": [
            {"type": "string", "maxLength": TEXT_LENGTH_MAX},
            {"type": "number", "minimum": -NUMBER_MAX, "maximum": NUMBER_MAX},
            {"type": "boolean"},
            {"type": "null", "description": "as if it were not there"},
        ]
    },
}
_PLACE: Final = {
    "type": "string",
    "pattern": f"^{_SEGMENT}(/{_SEGMENT}){{0,5}}$",
    "examples": ["campus/b35/2"],
}


def _feature(geometry: Any, place: Any, *needed: str) -> dict[str, Any]:
    attributes: Any = {**_ATTRIBUTES, "properties": {"place": place}, "required": list(needed)}
    if not needed:
        attributes = {"oneOf": [attributes, {"type": "null"}]}
    return {
        "type": "object",
        "required": ["type", "properties" if needed else "geometry"],
        "properties": {
            "type": {"const": "Feature"},
            "geometry": geometry,
            "properties": attributes,
        },
    }


_FEATURE: Final = {
    "title": "Feature",
    "anyOf": [
        _feature({"oneOf": [_POINT, {"type": "null"}]}, _PLACE, "place"),
        _feature(_POINT, {"oneOf": [_PLACE, {"type": "null"}]}),
    ],
}
_RULES: Final = {
    "title": "Rules",
    "type": "array",
    "maxItems": RULES_MAX,
    "items": {
        "type": "object",
        "required": ["viewers", "precision"],
        "properties": {
            "viewers": {
                "type": "array",
                "description": "subjects or groups; * is everyone",
                "items": {"type": "string", "minLength": 1, "maxLength": VIEWER_LENGTH_MAX},
                "maxItems": 100,
            },
            "precision": {"enum": list(LEVELS)},
            "past": {"type": "boolean", "description": "whether also since when"},
            "attributes": {
                "description": "the attributes that are shown; all if missing",
                "oneOf": [
                    {"type": "array", "items": {"type": "string"}, "maxItems": 100},
                    {"type": "null"},
                ],
            },
        },
    },
}
BODIES: Final = {"putContext": _FEATURE, "putRules": _RULES}
_ATOM: Final = (
    r"([a-z]{1,8} (=|<>|<|<=|>|>=) (-?[0-9]{1,6}|'[A-Za-z0-9 ]{0,20}')"
    r"|within\(place, '[a-z0-9]{1,8}(/[a-z0-9]{1,8}){0,4}'\))"
)
_DEGREES: Final = r"-?[0-9]{1,2}(\.[0-9]{1,7})?"
_LATITUDE: Final = r"-?[0-8]?[0-9](\.[0-9]{1,7})?"
_INSTANT: Final = (
    r"(\.\.|20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
    r"T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z)"
)
PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "filter": {
        "type": "string",
        "pattern": f"^(true|false|{_ATOM}( (AND|OR) {_ATOM}){{0,4}})$",
        "examples": ["within(place, 'campus/b35') AND type = 'printer'"],
    },
    "filter-lang": {"enum": ["cql2-text", "cql-text", "cql2-json"]},
    "bbox": {"type": "string", "pattern": f"^{_DEGREES}(,{_DEGREES}){{3}}$"},
    "datetime": {"type": "string", "pattern": f"^{_INSTANT}(/{_INSTANT})?$"},
    "to": {"type": "string", "pattern": f"^{_DEGREES},{_LATITUDE}$", "examples": ["13.4,52.5"]},
    "vid": {"type": "string", "pattern": f"^{VID_PATTERN}$"},
}
OPEN: Final = frozenset({"getLanding", "getDocs", "getHealth", "getReadiness"})


def described(app: Litestar) -> dict[str, Any]:
    """Give the OpenAPI 3.1 document."""
    document: dict[str, Any] = app.openapi_schema.to_schema()
    for methods in document["paths"].values():
        for operation in methods.values():
            name = operation["operationId"]
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in PARAMETERS:
                    parameter["schema"] = PARAMETERS[parameter["name"]]
                elif parameter["name"] == "lifetime":
                    longest = app.state.service.settings.limits.context_lifetime_s_max
                    parameter["schema"] = {"type": "number", "minimum": 0.001, "maximum": longest}
            if name in OPEN:
                operation["security"] = []
            if name in BODIES:
                content = {"application/json": {"schema": BODIES[name]}}
                operation["requestBody"] = {"required": True, "content": content}
        if "get" in methods:
            methods["head"] = _head(methods["get"])
    return document


def _head(get: dict[str, Any]) -> dict[str, Any]:
    """Describe HEAD of a path: what GET answers, without a body."""
    name = get["operationId"]
    answers = {
        status: {"description": one["description"]} for status, one in get["responses"].items()
    }
    return {
        **get,
        "operationId": f"head{name[0].upper()}{name[1:]}",
        "description": "As GET, without the body.",
        "responses": answers,
    }
