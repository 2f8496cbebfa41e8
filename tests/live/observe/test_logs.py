"""Logs: one line an event, and nothing in them about anybody."""

import io
import json
import logging
from collections.abc import Iterator

import msgspec
import pytest

from roamcast.errors import ContextError
from roamcast.live.config.settings import LogSection
from roamcast.live.observe.logs import FIELDS, WORD_LENGTH_MAX, Log, configure

SECRET = "ada-4711"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    names = ["uvicorn", "uvicorn.error", "uvicorn.access", "roamcast"]
    before = [(logging.getLogger(n), logging.getLogger(n).propagate) for n in names]
    yield
    root.handlers = handlers
    root.setLevel(level)
    for logger, propagate in before:
        logger.propagate = propagate
        logger.setLevel(logging.NOTSET)


def lines(settings: LogSection) -> io.StringIO:
    stream = io.StringIO()
    configure(settings, stream)
    return stream


def test_an_event_is_one_json_object_with_its_fields() -> None:
    stream = lines(LogSection(style="json"))
    Log("sockets").info("socket closed", reason="too slow", waiting=12, seconds=0.5)
    told = json.loads(stream.getvalue())
    assert told.pop("time").endswith("Z")
    assert told == {
        "level": "info",
        "name": "roamcast.sockets",
        "event": "socket closed",
        "reason": "too slow",
        "waiting": 12,
        "seconds": 0.5,
    }


def test_for_people_an_event_is_one_line() -> None:
    stream = lines(LogSection())
    Log("serve").warning("store refused", count=3)
    assert stream.getvalue().count("\n") == 1
    assert "warning store refused count=3" in stream.getvalue()


def test_levels_are_kept() -> None:
    stream = lines(LogSection(level="warning"))
    Log("a").info("unheard")
    Log("a").debug("unheard")
    Log("a").error("heard")
    assert "unheard" not in stream.getvalue()
    assert "heard" in stream.getvalue()


def test_a_field_that_is_not_on_the_list_or_no_plain_word_is_our_mistake() -> None:
    lines(LogSection())
    with pytest.raises(AssertionError, match="not a field of logs"):
        Log("a").info("event", subject=SECRET)
    for text in ("type = 'person'", "a@b", "eyJ\n", "?access_token=x"):
        with pytest.raises(AssertionError, match="plain words"):
            Log("a").info("event", reason=text)


def test_a_word_is_logged_whole_at_its_limit_and_cut_beyond_it() -> None:
    at = "a" * WORD_LENGTH_MAX
    stream = lines(LogSection())
    Log("a").info("event", reason=at)
    Log("a").info("event", reason=at + "b")
    assert stream.getvalue().count(f"reason={at}\n") == 2


def test_no_field_is_about_a_person() -> None:
    personal = {"vid", "subject", "name", "filter", "token", "place", "address", "host", "path"}
    assert not FIELDS & personal


@pytest.mark.parametrize("style", ["plain", "json"])
def test_nothing_personal_leaks_from_errors_or_other_libraries(style: str) -> None:
    stream = lines(msgspec.convert({"style": style, "level": "debug"}, LogSection))
    try:
        raise ContextError(f"the context {SECRET} is not valid")
    except ContextError as error:
        Log("http").error("request failed", error, route="/contexts/{vid}", status=500)
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application %s", SECRET)
        logging.getLogger("asyncio").error(f"no task of {SECRET} was awaited")
        logging.getLogger("nats").error(error)
        logging.getLogger("unknown").warning("path %s", f"/contexts/{SECRET}?access_token={SECRET}")
    logging.getLogger("uvicorn.access").critical(
        '%s - "%s %s HTTP/%s" %d', "10.0.0.1", "GET", f"/items?filter={SECRET}", "1.1", 200
    )
    said = stream.getvalue()
    assert SECRET not in said
    assert "10.0.0.1" not in said
    assert said.count("\n") == 5
    assert "ContextError < test_logs.py:" in said
    assert "Exception in ASGI application %s" in said
    assert "asyncio logged at test_logs.py:" in said
