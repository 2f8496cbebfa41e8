"""One stream of changes after another becomes one view."""

import asyncio
import json
from typing import Any

import pytest

from roamcast.client import everywhere
from roamcast.client.everywhere import _Reading
from roamcast.client.views import Feed
from roamcast.errors import LimitError, UnreachableError
from roamcast.model.filters import Filter


def feature(vid: str, place: str) -> dict[str, Any]:
    times = {"t_r": "2026-11-17T12:00:00Z", "t_d": None}
    return {
        "type": "Feature",
        "id": vid,
        "geometry": None,
        "properties": {"place": place, **times},
    }


def say(reading: _Reading, kind: str, data: Any) -> None:
    reading.take(f"event: {kind}\n".encode())
    reading.take(b"data: " + json.dumps(data).encode() + b"\n")
    reading.take(b"\n")


def current(*vids: str) -> dict[str, Any]:
    return {"features": [feature(vid, "campus") for vid in vids]}


def change(vid: str, place: str | None) -> dict[str, Any]:
    return {"subject": vid, "data": None if place is None else feature(vid, place)}


def kinds(feed: Feed) -> list[tuple[str, str]]:
    return [(one.kind, one.vid) for one in iter(feed.inbox.take, None)]


def test_what_a_second_stream_shows_again_is_no_news_and_what_it_does_not_has_left() -> None:
    async def run() -> None:
        feed = Feed("f", Filter.parse("true"))
        reading = _Reading(feed)
        reading.begin()
        say(reading, "current", current("a", "b"))
        say(reading, "complete", {})
        say(reading, "change", change("c", "campus"))
        assert kinds(feed) == [("appeared", "a"), ("appeared", "b"), ("current", ""),
                               ("appeared", "c")]  # fmt: skip
        reading.begin()
        say(reading, "current", current("a"))
        say(reading, "complete", {})
        assert kinds(feed) == []
        say(reading, "change", change("c", "campus"))  # another node shows it again
        reading._forget()
        assert kinds(feed) == [("left", "b")]
        say(reading, "change", change("a", None))
        assert kinds(feed) == [("left", "a")]
        assert feed.inbox.shown.keys() == {"c"}
        reading.stop()

    asyncio.run(run())


def test_garbage_and_an_end_open_the_stream_again() -> None:
    reading = _Reading(Feed("f", Filter.parse("true")))
    with pytest.raises(UnreachableError, match="no stream of changes"):
        say(reading, "change", {"subject": 1})
    with pytest.raises(UnreachableError, match="going down"):
        say(reading, "error", "the service is going down")
    reading.take(b": still here\n")


def test_a_view_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(everywhere, "CONTEXTS_MAX", 2)
    reading = _Reading(Feed("f", Filter.parse("true")))
    say(reading, "current", current("a", "b"))
    say(reading, "change", change("a", "elsewhere"))
    with pytest.raises(LimitError, match="at most 2 contexts"):
        say(reading, "change", change("c", "campus"))
