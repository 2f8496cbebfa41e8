"""What `drain` and `where` say, and how they end, whatever nodes answer."""

from collections.abc import Callable
from typing import Any

import pytest
import typer

from roamcast.commands import drain
from roamcast.errors import NotFoundError, UnreachableError

NODES = [{"node": name, "url": f"http://{name}"} for name in "abc"]


class Node:
    """A node that is asked: it answers what it is given, one after the other."""

    def __init__(
        self, drained: list[dict[str, int]], where: Callable[[str], Any], url: str
    ) -> None:
        self._drained = drained
        self._where = where
        self._url = url

    async def overlay(self) -> dict[str, Any]:
        return {"node": "a", "nodes": NODES}

    async def drain(self, *_: Any) -> None: ...

    async def drained(self) -> dict[str, int]:
        return self._drained.pop(0) if len(self._drained) > 1 else self._drained[0]

    async def where(self, client: str) -> Any:
        return self._where(self._url)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def answer(
        drained: list[dict[str, int]] | None = None, where: Callable[[str], Any] = str
    ) -> None:
        made = [
            {"sessions": 0, "consumers": 0, "moved": 0, "lost": 0, **one} for one in drained or []
        ]
        monkeypatch.setattr(drain, "LOOK_S", 0.0)
        monkeypatch.setattr(drain, "asking", lambda _: Node(made, where, NODES[0]["url"]))
        monkeypatch.setattr(drain, "_at", lambda _, url: Node(made, where, url))

    return answer


def test_a_drain_waits_for_everybody_and_says_what_moved(
    nodes: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    nodes(
        [{"sessions": 2, "consumers": 3}, {"sessions": 1, "moved": 2}, {"moved": 3, "streams": 1}]
    )
    drain.drain("b", None, 100.0, 60.0)
    assert capsys.readouterr().out == "moved 3, lost 0, streams ended 1\n"


@pytest.mark.parametrize(
    ("last", "said", "problem"),
    [
        ({"moved": 2, "lost": 1}, "moved 2, lost 1\n", ""),
        ({"sessions": 4}, "moved 0, lost 0\n", "4 sessions did not go"),
    ],
)
def test_a_drain_that_lost_somebody_or_did_not_end_ends_with_one(
    nodes: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    last: dict[str, int],
    said: str,
    problem: str,
) -> None:
    nodes([last])
    with pytest.raises(typer.Exit) as ended:
        drain.drain("a", None, 100.0, 0.0)
    assert ended.value.exit_code == 1
    out, err = capsys.readouterr()
    assert (out, problem in err) == (said, True)


def test_a_node_that_does_not_answer_hides_no_other(
    nodes: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    def where(url: str) -> dict[str, Any]:
        if url == "http://b":
            raise UnreachableError("no connection")
        devices = ["phone"] if url == "http://c" else []
        return {"node": url[-1], "devices": devices, "subscriptions": 2}

    nodes(where=where)
    drain.where("ann")
    out, err = capsys.readouterr()
    assert out == "c: phone, 2 of events\n"
    assert err == "b does not answer: no connection\n"
    nodes(where=lambda url: {"node": url[-1], "devices": []})
    with pytest.raises(NotFoundError, match="no node serves 'ann'"):
        drain.where("ann")
