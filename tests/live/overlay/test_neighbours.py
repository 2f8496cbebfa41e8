"""Real services as nodes: linked by key, found again after kill -9, refused by name."""

import socket
import time
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from roamcast.live.overlay.ways import FRAMES_UNPROVED, PROTOCOL
from roamcast.overlay.links.messages import Greeting
from tests.overlay_services import DEADLINE_S, key_of, overlay, settings, until, up
from tests.processes import roamcast
from tests.running_service import RunningService

pytestmark = [pytest.mark.process, pytest.mark.slow]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@pytest.mark.soak  # nodes are killed in test_linked_events and by every seed of the overlay
def test_three_nodes_learn_of_each_other_and_again_after_a_kill(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("a", "b", "c")}
    for folder in folders.values():
        (folder / "data").mkdir(parents=True)
    keys = {name: key_of(folder) for name, folder in folders.items()}
    middle = settings("b", ("a", keys["a"], ""), ("c", keys["c"], ""))
    with RunningService(folders["b"], middle) as b:
        to_b = ("b", keys["b"], b.url)
        with (
            RunningService(folders["a"], settings("a", to_b)) as a,
            RunningService(folders["c"], settings("c", to_b)) as c,
        ):
            until(lambda: up(b) == {"a", "c"}, "b is not linked with both")
            graph = {"a": ["b"], "b": ["a", "c"], "c": ["b"]}
            for each in (a, b, c):
                until(lambda each=each: overlay(each)["graph"] == graph, "a graph is not whole")
            assert overlay(a)["key"] == keys["a"]
            page = b.ask("GET", "/metrics", b.operator).body.decode()
            assert 'roamcast_held{what="neighbours linked"} 2.0' in page
            assert 'roamcast_overlay_steps_total{what="links: up"} 2.0' in page
            a.kill()
            until(lambda: up(b) == {"c"}, "b does not miss a")
            a.start()
            until(lambda: up(b) == {"a", "c"}, "a is not linked again")
            with roamcast("brokers", "--json", "--data", str(folders["b"] / "data")) as asked:
                assert {one["node"] for one in asked.answer()["links"]} == {"a", "c"}
            with roamcast("placement", "--json", "--data", str(folders["b"] / "data")) as asked:
                told = asked.answer()
            assert (told["root"], told["state"], told["placement"]) == ("a", "active", None)
            plan = a.ask("GET", "/placement", a.operator).json["placement"]
            parents = {"a": "a", "b": "a", "c": "b"}
            assert {row["node"]: row["parent"] for row in plan["nodes"]} == parents


def test_nodes_find_more_neighbours_by_asking_their_neighbours(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("a", "b", "c")}
    for folder in folders.values():
        (folder / "data").mkdir(parents=True)
    keys = {name: key_of(folder) for name, folder in folders.items()}
    known = "".join(f'{name} = "{key}"\n' for name, key in keys.items())
    with RunningService(folders["b"], settings("b") + f"[overlay.known]\n{known}") as b:

        def at_b(name: str) -> RunningService:
            """Give a node with one neighbour; others dial it where it says."""
            port = free_port()
            own = f'url = "http://127.0.0.1:{port}"\n'
            text = settings(name, ("b", keys["b"], b.url)).replace("areas", own + "areas", 1)
            service = RunningService(folders[name], f"{text}[overlay.known]\n{known}")
            service.port = port
            return service

        with at_b("a") as a, at_b("c") as c:
            until(lambda: up(a) == {"b", "c"}, "a has not found c")
            until(lambda: up(c) == {"a", "b"}, "c has not found a")
            found = {link["node"]: link["found"] for link in overlay(a)["links"]}
            assert found == {"b": False, "c": True}
            b.kill()
            until(lambda: up(a) == {"c"}, "a and c need b")


def test_a_neighbour_with_another_key_is_refused_by_name(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("a", "b", "stranger")}
    for folder in folders.values():
        (folder / "data").mkdir(parents=True)
    keys = {name: key_of(folder) for name, folder in folders.items()}
    with (
        RunningService(folders["b"], settings("b", ("a", keys["stranger"], ""))) as b,
        RunningService(folders["a"], settings("a", ("b", keys["b"], b.url))) as a,
    ):
        until(
            lambda: [link["reason"] for link in overlay(b)["links"]] == ["wrong key"],
            "nobody says that the key is wrong",
        )
        assert up(b) == set()
        assert overlay(a)["node"] == "a"  # it goes on, and tries again


def test_strangers_are_hung_up_and_the_service_goes_on(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    stranger = Greeting("x", "b", 1, 1, time.time_ns() // 1_000, bytes(16), b"", False)
    with RunningService(tmp_path, settings("b")) as b:
        for frame, told in (
            (b"\xc1 garbage", "cannot be read"),
            (PROTOCOL.encode(stranger), "no greeting of a neighbour"),
        ):
            with pytest.raises(ConnectionClosed, match=told):
                _insist(b, frame)
        assert overlay(b)["links"] == []


def _insist(service: RunningService, frame: bytes) -> None:
    """Send a frame again and again until somebody hangs up."""
    with connect(service.url.replace("http", "ws") + "/overlay", proxy=None) as stranger:
        for _ in range(FRAMES_UNPROVED):
            stranger.send(frame)
        while True:
            stranger.recv(timeout=DEADLINE_S)


def test_a_service_on_its_own_is_no_node(tmp_path: Path) -> None:
    with RunningService(tmp_path) as alone:
        assert alone.ask("GET", "/overlay", alone.operator).status == 404
        assert alone.ask("GET", "/placement", alone.operator).status == 404
        with (
            pytest.raises(Exception, match="400"),
            connect(alone.url.replace("http", "ws") + "/overlay", proxy=None),
        ):
            pass


def test_the_key_is_printed_before_the_service_runs(tmp_path: Path) -> None:
    with roamcast("brokers", "--key", "--data", str(tmp_path / "data")) as asked:
        assert asked.line().decode().strip() == key_of(tmp_path)
    assert (tmp_path / "data" / "node.key").stat().st_mode & 0o077 == 0
