"""Events between real services: published at one, read at another, there after kill -9."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.live.overlay.test_neighbours import key_of, settings, until, up
from tests.running_service import RunningService, hears

pytestmark = [pytest.mark.process, pytest.mark.slow]

FEATURE = {"type": "Feature", "properties": {"place": "campus/a/1"}}


def numbers(held: Any, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        frame = hears(held, "events", origin="a")
        found += [event["number"] for event in frame["events"]]
    return found


def test_an_event_reaches_the_other_node_and_survives_a_kill(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("a", "b")}
    for folder in folders.values():
        (folder / "data").mkdir(parents=True)
    keys = {name: key_of(folder) for name, folder in folders.items()}
    with (
        RunningService(folders["b"], settings("b", ("a", keys["a"], ""))) as b,
        RunningService(folders["a"], settings("a", ("b", keys["b"], b.url))) as a,
    ):
        until(lambda: up(b) == {"a"}, "b is not linked")

        def publish(number: int) -> None:
            event = {"feature": FEATURE, "producer": "p", "life": 1, "number": number}
            answer = a.ask("POST", "/events", a.operator, event)
            assert answer.status == 200, answer.body
            assert answer.json["origin"] == "a"

        with b.session(b.operator) as held:
            wanted = "within(place, 'campus/a')"
            held.send(json.dumps({"type": "subscribe_events", "re": "e", "filter": wanted}))
            until(lambda: "a" in hears(held, "standing")["vector"], "the wave did not reach a")
            for number in range(3):
                publish(number)
            assert numbers(held, 3) == [0, 1, 2]
            a.kill()
            a.start()
            publish(2)  # it is known, and not repeated
            publish(3)
            assert numbers(held, 1) == [3]
