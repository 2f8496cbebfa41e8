"""`serve --demo --brokers 3`: three linked nodes, people at the right one, all gone at the end.

A courier walks across a border meanwhile, and misses nothing.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from typer.testing import CliRunner

from roamcast.cli import build
from roamcast.commands._demo_brokers import TRUST, nodes_of
from roamcast.commands._demo_courier import ParcelCount
from roamcast.errors import MovedError, RoamcastError, SettingsError
from roamcast.live.config.settings import load_settings
from roamcast.model.contexts import path_within
from roamcast.transport.address import ServiceAddress, find
from roamcast.transport.http import HttpClient
from tests.processes import roamcast

DEADLINE_S = 120.0
COURIERS = "type = 'courier'"


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
        told = child.answer()
        nodes = told["nodes"]
        assert [node["node"] for node in nodes] == ["b1", "b2", "b3"]
        # what commands look for is where a service on its own has it
        assert find(data=tmp_path).url == told["url"] == nodes[0]["url"]

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
        asked = ("who", "--where", "within(place, 'campus/b2')", "--data", str(tmp_path))
        said = CliRunner().invoke(build(), asked)
        assert "0 found" in said.stdout
        assert "the map of broker b1 alone; `roamcast watch` follows all brokers" in said.stderr
        os.kill(nodes[1]["pid"], signal.SIGKILL)
        until(lambda: "b2" not in _up(nodes[0]), "nobody misses the node that died")
        until(lambda: "b2" in _up(nodes[0]), "the node that died does not come back")
        until(linked, "not all are linked again")
        until(lambda: _courier(nodes).get("crossed", 0) > 0, "the courier crosses no border")
        read = _courier(nodes)
        until(lambda: _courier(nodes).get("parcels", 0) > read["parcels"], "it reads no more")
        assert (read["missed"], read["repeated"]) == (0, 0)
    for node in nodes:
        with pytest.raises(RoamcastError):
            ask(node, "GET", "/healthz")


def _courier(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Give what the courier shows of itself, at whichever node it is."""
    asked = f"/collections/contexts/items?filter={quote(COURIERS)}"
    found = [one for node in nodes for one in ask(node, "GET", asked)["features"]]
    return dict(found[0]["properties"]) if found else {}


def _up(node: dict[str, Any]) -> set[str]:
    links = ask(node, "GET", "/overlay")["links"]
    return {link["node"] for link in links if link["state"] == "up"}


@pytest.mark.parametrize("apart", [False, True], ids=["trust at b1", "trust apart"])
def test_the_nodes_divide_the_campus_and_know_each_others_keys(tmp_path: Path, apart: bool) -> None:
    for count in (2, 3):
        data = tmp_path / str(count)
        nodes = nodes_of(data, count, trust_apart=apart)
        trust = nodes.pop() if apart else nodes[0]
        assert (trust.folder == data) is not apart
        read = [load_settings(node.folder / "settings.toml") for node in nodes]
        places = [place for node in nodes for place in node.places]
        wanted = {"campus/b1", "campus/b2", "campus/b3", "campus/hall", "campus/lab", "campus/yard"}
        assert sorted(places) == sorted(wanted)
        for node, settings in zip(nodes, read, strict=True):
            others = {one.overlay.node for one in read} - {settings.overlay.node}
            assert set(settings.overlay.neighbours) == others
            if node is trust:
                assert settings.identity.node == TRUST
            else:
                assert settings.identity.mail[TRUST].url == trust.url
        keys = {(node.folder / "keys.json").read_bytes() for node in nodes}
        assert len(keys) == 1  # a token of one holds at all
        again = nodes_of(data, count, [9_000, 9_001], trust_apart=apart)
        assert [node.port for node in again][:2] == [9_000, 9_001]
    with pytest.raises(SettingsError, match="between 2 and 3"):
        nodes_of(tmp_path, 4)


def test_a_tally_counts_what_is_missed_and_what_comes_twice() -> None:
    tally = ParcelCount()
    for number in (7, 8, 9):
        tally.take(number)
    assert tally == ParcelCount(parcels=3, last=9)
    for number in (12, 12, 11, 13):
        tally.take(number)
    assert tally == ParcelCount(parcels=5, missed=2, repeated=2, last=13)
