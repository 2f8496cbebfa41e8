"""Casts in a WebSocket session: send, preview, follow, cancel; a refusal names its request."""

import json
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection

from roamcast.model.casts import ID_LENGTH_MAX
from tests.running_service import RunningService, hears

pytestmark = pytest.mark.process

LATER = "overlaps(time, INTERVAL('2030-11-10T15:00:00Z', '2030-11-10T17:00:00Z'))"
HQ = f"within(place, 'hq') AND {LATER}"


def asks(held: ClientConnection, answer: str, **message: Any) -> dict[str, Any]:
    held.send(json.dumps(message))
    return hears(held, answer, re=message["re"])


def test_a_session_sends_previews_follows_and_cancels_casts(tmp_path: Path) -> None:
    with RunningService(tmp_path) as running:
        with running.session(running.operator) as held:
            seen = asks(held, "preview", type="preview", re="p", filter=HQ)
            assert seen["tense"] == "future"
            assert seen["future"] == 0
            sent = asks(held, "cast", type="cast", re="c", filter=HQ, text="hello", id="c1")
            assert (sent["id"], sent["state"], sent["tense"]) == ("c1", "live", "future")
            again = asks(held, "cast", type="cast", re="d", filter=HQ, text="hello", id="c1")
            assert again["id"] == "c1"  # a repeat sends nothing again
            shown = asks(held, "cast", type="progress", re="g", cast="c1")
            assert shown["nodes_asked"] == 1
            asks(held, "done", type="cancel", re="x", cast="c1")
            twice = asks(held, "error", type="cancel", re="y", cast="c1")
            assert twice["status"] in (404, 409)
            none = asks(held, "error", type="cast", re="n", filter=HQ)
            assert "says something" in none["detail"]
            both = {"text": "x", "expires": "2030-01-01T00:00:00Z", "lifetime_s": 60}
            assert asks(held, "error", type="cast", re="b", filter=HQ, **both)["status"] == 400
            for wrong in (
                {"id": "i" * (ID_LENGTH_MAX + 1)},
                {"id": "a b"},
                {"lifetime_s": 0.5},
                {"lifetime_s": 60 * 86_400 + 1},
                {"kind": ""},
                {"policy": "BTH0"},
                {"priority": "urgent"},
                {"filter": "true".ljust(16 * 1_024 + 1)},
            ):
                said = {"filter": HQ, "text": "x", **wrong}
                assert asks(held, "error", type="cast", re="w", **said)["status"] == 400, wrong
            for kind in ("progress", "cancel"):
                long = asks(held, "error", type=kind, re="l", cast="c" * (ID_LENGTH_MAX + 1))
                assert long["status"] == 400
            odd = asks(held, "error", type="cast", re="o", filter=HQ, payload="*")
            assert "base64" in odd["detail"]
        with running.session(running.token("bob", ("subscribe",))) as held:
            refused = asks(held, "error", type="cast", re="r", filter=HQ, text="hello")
            assert refused["status"] == 403
            assert asks(held, "error", type="progress", re="s", cast="c1")["status"] == 403
