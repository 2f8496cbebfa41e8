"""Maps of several services, watched from any of them: items and contexts, and what rules hide."""

import asyncio
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from roamcast.client import connect
from tests.overlay_services import View, tree, until, up
from tests.running_service import RunningService

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_an_item_and_a_context_are_seen_through_every_node(tmp_path: Path) -> None:
    with ExitStack() as within:
        nodes = tree(tmp_path, {"a": "", "b": "a", "c": "b"}, within)
        a, c = nodes["a"], nodes["c"]
        until(lambda: up(nodes["b"]) == {"a", "c"}, "b is not linked with both")
        path = "/items/NYSE/IBM"
        body = {"subkeys": [["float", "price", 104.5]], "major_name": "exchange"}
        answer = a.ask("PUT", path, a.operator, body)
        assert answer.status == 201, answer.body
        item = answer.json["id"]
        rules = [{"viewers": ["staff"], "precision": "exact"}]
        assert a.put("operator:shy", "campus/a/1").status == 201
        assert a.ask("PUT", "/contexts/operator:shy/rules", a.operator, rules).status < 300
        asyncio.run(_watch_by_the_sdk(c, item))
        with c.session(c.operator) as held, c.session(c.operator) as local:
            view, here = View(held, "true"), View(local, "true", "here")
            view.until(lambda seen: item in seen, "a newcomer lacks the item")
            assert view.contexts[item]["price"] == 104.5
            body["subkeys"] = [["float", "price", 99.0]]
            assert a.ask("PUT", path, a.operator, body).status == 200
            view.until(lambda seen: seen[item]["price"] == 99.0, "a change is missed")
            assert a.put("operator:ada", "campus/a/2", colour="red").status == 201
            view.until(lambda seen: "operator:ada" in seen, "a context is missed")
            a.kill()
            a.start()
            until(lambda: "a" in up(nodes["b"]), "a is not linked again")
            assert a.ask("DELETE", path, a.operator).status == 204
            assert c.put("operator:bob", "campus/c/1").status == 201
            view.until(lambda seen: item not in seen, "an item stays that was taken back")
            view.until(lambda seen: {"operator:ada", "operator:bob"} <= seen.keys(), "lacks some")
            assert "operator:shy" not in view.contexts
            here.until(lambda seen: "operator:bob" in seen, "its own map is not seen")
            assert here.contexts.keys() == {"operator:bob"}
        assert (
            a.ask("PUT", "/items/NYSE/IBM", a.operator, {"subkeys": [["float", "p", "x"]]}).status
            == 400
        )
        assert a.ask("PUT", "/items/NYSE/IBM", a.operator, b"[").status == 400


async def _watch_by_the_sdk(service: RunningService, item: str) -> None:
    """A view and `roamcast watch` show another node's item; a view of `here` does not."""
    async with (
        asyncio.timeout(60),
        connect(service.url, service.operator) as me,
        me.watch("major = 'NYSE'") as view,
        me.watch("true", scope="here") as here,
    ):
        async for change in view:
            if change.kind == "appeared":
                assert change.vid == item
                break
        async for change in here:
            assert change.kind == "current"
            assert change.count == 0
            break
    asked = {"ROAMCAST_URL": service.url, "ROAMCAST_TOKEN": service.operator}
    watching = subprocess.Popen(
        [sys.executable, "-m", "roamcast", "watch", "--where", "major = 'NYSE'", "--json"],
        stdout=subprocess.PIPE,
        env=os.environ | asked,
    )
    try:
        assert watching.stdout is not None
        told = b""
        while item.encode() not in told:
            told = await asyncio.to_thread(watching.stdout.readline)
            assert told, "the command ended"
    finally:
        watching.terminate()
        watching.communicate()
