"""The log: events with known fields, and nothing about any person.

Operators who read the log may not be allowed to see the map. So an event's name is a constant of
the code, its fields come from a fixed list, and texts among them are short words such as a reason:
no vid, subject, filter, token or address. Of other libraries' messages only the template is logged,
without its arguments, or the line that logged it; of an exception its type and where it was raised,
never its text.
"""

import json
import logging
import re
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO

from roamcast.live.config.settings import LogSection

FIELDS: Final = frozenset(
    {
        "bytes",
        "channels",
        "clients",
        "code",
        "contexts",
        "count",
        "epoch",
        "error",
        "limit",
        "method",
        "port",
        "reason",
        "route",
        "seconds",
        "segment",
        "sockets",
        "state",
        "status",
        "subscriptions",
        "transport",
        "version",
        "waiting",
        "writes",
    }
)
"""The fields that events may have. None is about one person; add no other."""

ROOT: Final = "roamcast"
WORD_LENGTH_MAX: Final = 80
_WORD: Final = re.compile(r"[A-Za-z0-9 _./{}:-]*")
"""Reasons, states, and routes as templates: `/contexts/{vid}`."""

_QUIET: Final = ("uvicorn.access",)
"""Silenced at every level: they log whole addresses, with filters and tokens."""

Value = str | int | float | bool


class Log:
    """Logs events under one name, such as `sockets`."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"{ROOT}.{name}")

    def debug(self, event: str, **fields: Value) -> None:
        """Log what only helps to debug."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Value) -> None:
        """Log what an operator wants to know."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Value) -> None:
        """Log what an operator should look at."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, problem: BaseException | None = None, **fields: Value) -> None:
        """Log a failure; of the exception only type and place."""
        self._log(logging.ERROR, event, fields, problem)

    def _log(
        self,
        level: int,
        event: str,
        fields: dict[str, Value],
        problem: BaseException | None = None,
    ) -> None:
        if not self._logger.isEnabledFor(level):
            return
        unknown = fields.keys() - FIELDS
        assert not unknown, f"not a field of logs: {sorted(unknown)}"
        clean = {name: _clean(value) for name, value in fields.items()}
        self._logger.log(level, event, extra={"fields": clean, "problem": problem})


def configure(settings: LogSection, stream: TextIO | None = None) -> logging.Handler:
    """Send all logs, other libraries' too, to one stream in one style."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if settings.style == "json" else _Plain())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)  # of other libraries
    logging.getLogger(ROOT).setLevel(settings.level.upper())
    for name in _QUIET:
        quiet = logging.getLogger(name)
        quiet.handlers, quiet.propagate = [], False
    for name in ("uvicorn", "uvicorn.error", "litestar", "websockets", "nats", "asyncio"):
        other = logging.getLogger(name)
        other.handlers, other.propagate = [], True
        other.setLevel(logging.WARNING)
    return handler


class _Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _instant(record),
            "level": record.levelname.lower(),
            "name": record.name,
            "event": _event(record),
            **getattr(record, "fields", {}),
        }
        where = _where(record)
        if where:
            fields["raised"] = where
        return json.dumps(fields, ensure_ascii=False)


class _Plain(logging.Formatter):
    """A line for people."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        parts = [_instant(record), f"{record.levelname.lower():<7}", _event(record)]
        parts += [f"{name}={value}" for name, value in fields.items()]
        where = _where(record)
        return " ".join([*parts, f"[{where}]"] if where else parts)


def _instant(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _event(record: logging.LogRecord) -> str:
    """Give our event's name; of other libraries' messages the template, without arguments."""
    ours = record.name.startswith(f"{ROOT}.")
    if isinstance(record.msg, str) and (ours or record.args):
        return " ".join(record.msg.split())[:200]
    # Without arguments the message may be filled in already, so only its line is logged.
    return f"{record.name} logged at {record.filename}:{record.lineno}"


def _where(record: logging.LogRecord) -> str:
    """Give an exception's type and the last frames it passed, never its text."""
    problem = getattr(record, "problem", None)
    if problem is None and record.exc_info:
        problem = record.exc_info[1]
    if problem is None:
        return ""
    frames = traceback.extract_tb(problem.__traceback__)[-4:]
    places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    return " < ".join([type(problem).__name__, *reversed(places)])


def _clean(value: Value) -> Value:
    if not isinstance(value, str):
        return value
    assert _WORD.fullmatch(value), "texts in logs are plain words"
    return value[:WORD_LENGTH_MAX]
