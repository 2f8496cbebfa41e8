"""What may each route answer? The responses that the OpenAPI document lists for it."""

from typing import Any

from litestar.openapi.datastructures import ResponseSpec

from roamcast.live.http.problems import PROBLEM_TYPE, ProblemDetails


def _problem(says: str) -> ResponseSpec:
    return ResponseSpec(
        ProblemDetails, description=says, media_type=PROBLEM_TYPE, generate_examples=False
    )


def ok(
    kind: str = "application/json", says: str = "as asked", status: int = 200, shape: Any = None
) -> dict[int, ResponseSpec]:
    """Describe a successful answer of a kind."""
    return {
        status: ResponseSpec(
            shape or dict[str, Any], description=says, media_type=kind, generate_examples=False
        )
    }


LISTED = ok(shape=list[dict[str, Any]])


READING: dict[int, ResponseSpec] = {
    **ok("application/json"),
    400: _problem("what was asked can not be understood; the detail says why"),
    401: _problem("no valid token"),
    403: _problem("the token lacks the scope"),
    404: _problem("there is no such thing, or this token may not see it"),
    405: _problem("the path knows other methods"),
    429: _problem("too many requests; Retry-After says when to come again"),
}
WRITING: dict[int, ResponseSpec] = {
    **READING,
    409: _problem("somebody else publishes it"),
    413: _problem("the body is too large"),
    415: _problem("the body is not JSON"),
    503: _problem("the disk did not take it; nothing has changed"),
}
