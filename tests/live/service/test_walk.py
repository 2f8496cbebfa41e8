"""The walk of a PUT: the modules it passes until a watcher's frame is written, as the docs say."""

import asyncio
import re
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import roamcast
from roamcast.identity.rules import Viewer
from roamcast.model import contexts
from roamcast.model.filters import Filter
from tests.live.in_process import gate

PACKAGE = Path(roamcast.__file__).parent
PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
MODULES_MAX = 20


class Sink:
    """A watcher's connection."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def write(self, framed: bytes) -> None:
        self.frames.append(framed)

    def cut(self, reason: str) -> None:
        raise AssertionError(reason)


async def walked(folder: Path) -> tuple[list[str], Counter[str]]:
    """Trace a real PUT to a service in this process, the second of its context.

    Gives the modules that it passes, and how often each function of `model/contexts.py` is called.
    """
    found: dict[str, None] = {}
    called: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(PACKAGE)):
            found.setdefault(str(Path(path).relative_to(PACKAGE)))
            if path == contexts.__file__:
                called[frame.f_code.co_name] += 1

    feature = {"type": "Feature", "geometry": None, "properties": {"place": "walked/1"}}
    async with gate(folder) as asked:
        sink = Sink()
        service = asked.service
        service.open_session("watcher#1", Viewer("watcher"), sink)
        service.subscribe("watcher#1", "all", Filter.parse("within(place, 'walked')"))
        await asked.ask("PUT", "/contexts/a", feature)
        before = len(sink.frames)
        feature["properties"] = {"place": "walked/2"}
        sys.setprofile(note)
        try:
            answer = await asked.ask("PUT", "/contexts/a", feature)
        finally:
            sys.setprofile(None)
        assert answer.status == 200
        assert len(sink.frames) == before + 1
        service.close_session("watcher#1", sink)
    return list(found), called


def test_the_page_lists_the_modules_that_a_put_passes(tmp_path: Path) -> None:
    modules, _ = asyncio.run(walked(tmp_path))
    assert len(modules) <= MODULES_MAX
    text = PAGE.read_text(encoding="utf-8")
    block = re.search(r"<!-- walk -->\n(.*?)<!-- /walk -->", text, re.DOTALL)
    assert block is not None
    listed = re.findall(r"`([\w/]+\.py)`", block.group(1))
    assert sorted(listed) == sorted(modules), "docs/architecture.md: " + " ".join(modules)


def test_a_body_is_decoded_once_and_encoded_once_for_each_form(tmp_path: Path) -> None:
    _, called = asyncio.run(walked(tmp_path))
    assert (called["decode_feature"], called["to_context"], called["context_of"]) == (1, 1, 0)
    assert called["body_of"] == 1, "MessagePack: the disk, replicas and channels"
    assert called["_feature"] == 1, "JSON: the publisher's answer and the watchers' event"
    assert called["check"] == 1
