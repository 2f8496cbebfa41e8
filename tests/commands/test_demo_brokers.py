"""`serve --demo --brokers 3`: three linked nodes, people at the right one, all gone at the end."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roamcast.commands._demo_brokers import nodes_of
from roamcast.errors import MovedError, RoamcastError, SettingsError
from roamcast.live.config.settings import load_settings
from roamcast.model.contexts import path_within
from roamcast.transport.address import ServiceAddress
from roamcast.transport.http import HttpClient
from tests.processes import roamcast

DEADLINE_S = 120.0


def ask(node: dict[str, Any], method: str, path: str, body: Any = None) -> Any:
    client = HttpClient(ServiceAddress(node["url"], node["token"]))
    return asyncio.run(client.ask(method, path, body=body))


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while True:
        try:
            if true():
                return
        except RoamcastError:  # a node is starting
            assert time.monotonic() < end, what
        assert time.monotonic() < end, what
        time.sleep(0.2)


@pytest.mark.process
@pytest.mark.slow
def test_three_brokers_run_survive_a_kill_and_end_together(tmp_path: Path) -> None:
    words = ("--demo", "--brokers", "3", "--people", "12", "--data", str(tmp_path), "--json")
    with roamcast("serve", *words) as child:
        *nodes, trust = child.answer()["nodes"]
        assert [node["node"] for node in (*nodes, trust)] == ["b1", "b2", "b3", "trust"]

        def linked() -> bool:
            graphs = [ask(node, "GET", "/overlay")["graph"] for node in nodes]
            return all(sorted(graph) == ["b1", "b2", "b3"] for graph in graphs)

        def placed() -> bool:
            """Everybody is at the node that serves where they are, and at one alone."""
            found = [ask(node, "GET", "/collections/contexts/items") for node in nodes]
            right = all(
                any(path_within(one["properties"]["place"], own) for own in node["places"])
                for node, answer in zip(nodes, found, strict=True)
                for one in answer["features"]
            )
            return right and sum(len(answer["features"]) for answer in found) >= 12

        until(linked, "not all are linked")
        until(placed, "the people are not where they are")
        place = {"type": "Feature", "geometry": None, "properties": {"place": "campus/b2/1"}}
        until(lambda: len(ask(nodes[0], "GET", "/overlay")["nodes"]) == 3, "no directory")
        with pytest.raises(MovedError) as refused:
            ask(nodes[0], "PUT", "/contexts/desk", place)
        assert refused.value.url == nodes[1]["url"]
        os.kill(nodes[1]["pid"], signal.SIGKILL)
        until(lambda: "b2" not in _up(nodes[0]), "nobody misses the node that died")
        until(lambda: "b2" in _up(nodes[0]), "the node that died does not come back")
        until(linked, "not all are linked again")
    for node in (*nodes, trust):
        with pytest.raises(RoamcastError):
            ask(node, "GET", "/healthz")


def _up(node: dict[str, Any]) -> set[str]:
    links = ask(node, "GET", "/overlay")["links"]
    return {link["node"] for link in links if link["state"] == "up"}


def test_the_nodes_divide_the_campus_and_know_each_others_keys(tmp_path: Path) -> None:
    for count in (2, 3):
        *nodes, trust = nodes_of(tmp_path / str(count), count, 0)
        read = [load_settings(node.folder / "settings.toml") for node in nodes]
        places = [place for node in nodes for place in node.places]
        wanted = {"campus/b1", "campus/b2", "campus/b3", "campus/hall", "campus/lab", "campus/yard"}
        assert sorted(places) == sorted(wanted)
        for settings in read:
            others = {one.overlay.node for one in read} - {settings.overlay.node}
            assert set(settings.overlay.neighbours) == others
            assert settings.identity.mail["trust.localhost"].url == trust.url
        again = nodes_of(tmp_path / str(count), count, 9_000)
        assert [node.port for node in again] == [9_000 + number for number in range(count + 1)]
    with pytest.raises(SettingsError, match="between 2 and 3"):
        nodes_of(tmp_path, 4, 0)
