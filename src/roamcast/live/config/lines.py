"""TOML with line numbers: errors name the line of the key they are about.

tomllib forgets where a value stood. A TOML statement starts on a line of its own, so lines are
collected until tomllib accepts them as one statement; that gives the statement's keys, under the
table named last.
"""

import difflib
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo

from roamcast.errors import LimitError, SettingsError

FILE_BYTES_MAX: Final = 64 * 1024
Structure = TypeVar("Structure", bound=msgspec.Struct)

_AT: Final = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")
_WHERE: Final = re.compile(r" - at `\$\.?([^`]*)`$")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`")


def read_document(path: Path) -> tuple[str, str]:
    """Read a settings file: its text, and its path for errors."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise LimitError(f"settings have at most {FILE_BYTES_MAX} bytes", source=str(path))
        return path.read_text(encoding="utf-8"), str(path)
    except OSError as error:
        problem = f"cannot read the settings: {error.strerror}"
        raise SettingsError(problem, source=str(path)) from None
    except UnicodeDecodeError:
        raise SettingsError("settings must be UTF-8 text", source=str(path)) from None


def located(
    text: str,
    source: str,
    kind: type[Structure],
    problem: Callable[[Structure], tuple[tuple[str, ...], str] | None],
) -> Structure:
    """Decode TOML into a struct; `problem` checks what no field can check alone."""
    if len(text.encode()) > FILE_BYTES_MAX:
        raise LimitError(f"settings have at most {FILE_BYTES_MAX} bytes", source=source)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax(str(error), text, source) from None
    except RecursionError:
        raise SettingsError("nested too deeply for settings", source=source) from None
    try:
        value = msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise _refused(str(error), text, source, kind) from None
    wrong = problem(value)
    if wrong is not None:
        keys, what = wrong
        set_here = [key for key in keys if tuple(key.split(".")) in lines_of(text)]
        key = (set_here or list(keys))[0]
        raise SettingsError(f"{key}: {what}", source=source, line=line_of(text, key))
    return value


def line_of(text: str, key: str) -> int | None:
    """Give the line that sets a dotted key, or that names the nearest table around it."""
    lines = lines_of(text)
    path = tuple(key.split("."))
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return None


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """Give the first line of each key and table of a valid document."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    gathered: list[str] = []
    began = 1
    for number, line in enumerate(text.split("\n"), start=1):
        if not gathered:
            began = number
        gathered.append(line)
        try:
            statement = tomllib.loads("\n".join(gathered))
        except tomllib.TOMLDecodeError:
            continue  # the value continues on the next line
        names_table = gathered[0].lstrip().startswith("[")
        gathered = []
        paths = _paths(statement)
        if names_table:
            table = max(paths, key=len)
            found.setdefault(table, began)
            continue
        for path in paths:
            found.setdefault((*table, *path), began)
    return found


def _paths(value: Any) -> list[tuple[str, ...]]:
    """List the keys inside a value, outer ones first."""
    if isinstance(value, list):
        return [path for part in value for path in _paths(part)]
    if not isinstance(value, dict):
        return []
    found: list[tuple[str, ...]] = []
    for name, inner in value.items():
        found += [(name,), *((name, *path) for path in _paths(inner))]
    return found


def _syntax(message: str, text: str, source: str) -> SettingsError:
    at = _AT.search(message)
    if at is None:
        return SettingsError(f"not TOML: {message}", source=source)
    problem = f"not TOML: {message[: at.start()]}"
    if at[1] is None:
        return SettingsError(problem, source=source, line=text.rstrip("\n").count("\n") + 1)
    return SettingsError(problem, source=source, line=int(at[1]), position=int(at[2]))


def _refused(message: str, text: str, source: str, kind: type[msgspec.Struct]) -> SettingsError:
    where = _WHERE.search(message)
    key = where[1] if where else ""
    problem = message[: where.start()] if where else message
    unknown = _UNKNOWN.fullmatch(problem)
    if unknown is None:
        named = key.split("[")[0]
        problem = problem.replace("Expected", "expected").replace("`", "")
        if problem.startswith("Invalid enum value"):
            problem = f"expected one of {_choices(kind, named)}"
        return SettingsError(f"{named}: {problem}", source=source, line=line_of(text, named))
    whole = f"{key}.{unknown[1]}" if key else unknown[1]
    known = _fields(kind, key)
    close = difflib.get_close_matches(unknown[1], known, n=1)
    hint = f": did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"
    return SettingsError(
        f"there is no setting {whole}{hint}", source=source, line=line_of(text, whole)
    )


def _choices(kind: type[msgspec.Struct], key: str) -> str:
    """List the choices of a key with a literal type."""
    *inside, name = key.split(".")
    annotated = next(f for f in _reached(kind, inside) if f.name == name).type
    return ", ".join(get_args(get_args(annotated)[0]))


def _fields(kind: type[msgspec.Struct], key: str) -> list[str]:
    """List the fields of the struct that a dotted key leads to."""
    return sorted(field.name for field in _reached(kind, list(filter(None, key.split(".")))))


def _reached(kind: type[msgspec.Struct], parts: list[str]) -> tuple[FieldInfo, ...]:
    """Give the fields of the struct that these keys lead to; names in a table of tables pass."""
    found: Any = kind
    for part in parts:
        if get_origin(found) is dict:
            found = get_args(found)[1]
            continue
        found = next(f for f in msgspec.structs.fields(found) if f.name == part).type
        if get_origin(found) is Annotated:
            found = get_args(found)[0]
    return msgspec.structs.fields(found)
