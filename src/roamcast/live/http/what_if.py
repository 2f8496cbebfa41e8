"""The route of what-if: replay a stretch of the past with another setting."""

from typing import Annotated

import msgspec
from litestar import Response
from msgspec import Meta

from roamcast.channels.sessions.messages import FILTER_LENGTH_MAX
from roamcast.live.http.mail import read_body
from roamcast.live.http.routes import Asked, route, service_of, viewer_of
from roamcast.live.http.shapes import JSON
from roamcast.live.what_if.comparing import TriedSettings, WhatIfAnswer
from roamcast.live.what_if.office import WhatIfOffice
from roamcast.model.contexts import Instant
from roamcast.model.time import parse_instant


class WhatIfRequest(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"begin": "from", "end": "to"},
):
    """A stretch of time, what a watcher asked for, and the settings to try."""

    begin: Instant
    end: Instant
    settings: TriedSettings
    filter: Annotated[
        str,
        Meta(
            max_length=FILTER_LENGTH_MAX,
            description="CQL2 text",
            extra_json_schema={"format": "cql2"},
        ),
    ] = "true"


@route("POST", "/what-if", scope="admin", tag="map", body=WhatIfRequest, answer=WhatIfAnswer,
       problems=(429,), summary="Replay the past with another setting")  # fmt: skip
async def post_what_if(request: Asked) -> Response[bytes]:
    """Give two maps, as it was and as it would have been, and their differences.

    A real broker lives the time again, with somebody who opens the map at its begin. You see of it
    what you may see of the past.
    """
    request.auth.require_unbound("ask what if")
    given = read_body(await request.body(), WhatIfRequest)
    window = parse_instant(given.begin), parse_instant(given.end)
    reader = service_of(request).reader
    reader.charge(request.auth.subject, given.filter)
    wanted = await reader.read(given.filter)
    office: WhatIfOffice = request.app.state.what_if
    answer = await office.ask(viewer_of(request), wanted, window, given.settings)
    return Response(answer, media_type=JSON)
