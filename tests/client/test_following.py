"""What is on the map goes from one broker to another: its views go on, within the limit."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from roamcast.client import following
from roamcast.client.runner import Runner
from roamcast.client.session import Session
from roamcast.client.views import Feed
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter

HERE, THERE = "http://a.example", "http://b.example"


class Link:
    """A runner without a socket: it notes what happens to it, with all others in one list."""

    def __init__(self, url: str, done: list[tuple[str, str]], *, limited: bool) -> None:
        self.link = SimpleNamespace(hosts=SimpleNamespace(current=SimpleNamespace(url=url)))
        self.limited = limited
        self.published: dict[str, Context] = {}
        self.feeds: list[Feed] = []
        self._url = url
        self._done = done

    def __getattr__(self, name: str) -> Any:
        def note(*_: Any) -> list[Feed]:
            self._done.append((self._url[7], name))
            return self.feeds

        async def note_later(*_: Any) -> None:
            note()

        return note_later if name in ("start", "stop", "taken") else note


@pytest.mark.parametrize("limited", [False, True])
def test_with_a_limit_a_second_without_anything_lies_between_two_brokers(
    monkeypatch: pytest.MonkeyPatch, limited: bool
) -> None:
    done: list[tuple[str, str]] = []

    async def sleep(seconds: float) -> None:
        done.append(("", f"{seconds:g} s"))

    async def scene() -> None:
        old, made = (Link(url, done, limited=limited) for url in (HERE, THERE))
        old.published["me"] = Context("me", place="a")
        session = Session.__new__(Session)
        session._moving = asyncio.Lock()
        session._runner = old  # type: ignore[assignment]
        session._follow = lambda _: made  # type: ignore[assignment,return-value]
        monkeypatch.setattr(following, "asyncio", SimpleNamespace(**vars(asyncio)))
        monkeypatch.setattr(following.asyncio, "sleep", sleep)
        await session._map_to(THERE)

    asyncio.run(scene())
    begins = [("b", "start"), ("a", "unpublish"), ("a", "taken"), ("a", "give_up"), ("b", "adopt")]
    if limited:
        ends = [("b", "publish"), ("a", "stop"), ("", "1 s"), ("b", "follow")]
    else:
        ends = [("b", "publish"), ("b", "follow"), ("a", "stop")]
    assert done == begins + ends


def test_a_view_that_was_closed_meanwhile_is_not_asked_for() -> None:
    runner: Any = Runner.__new__(Runner)
    asked: list[str] = []
    runner._feeds, runner._over = {}, None
    runner.driver = SimpleNamespace(give=lambda given: asked.append(type(given).__name__))
    feeds = [Feed(name, Filter.parse("true")) for name in ("watch-1", "watch-2")]
    runner.adopt(feeds)
    runner.unsubscribe("watch-1")
    runner.follow(feeds)
    assert asked == ["UnsubscribeFilter", "SubscribeFilter"]
