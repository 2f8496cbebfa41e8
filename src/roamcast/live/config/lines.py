"""In which line of a TOML file is the mistake? tomllib reads values and forgets where they stood.

A statement of TOML begins on a line of its own. So lines are gathered until tomllib accepts them as
one statement; what it says then tells the statement's key, under the table named last.
"""

import difflib
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import msgspec
from msgspec.structs import FieldInfo

from roamcast.errors import LimitError, SettingsError

FILE_BYTES_MAX: Final = 64 * 1024
Structure = TypeVar("Structure", bound=msgspec.Struct)

_AT: Final = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")
_WHERE: Final = re.compile(r" - at `\$\.?([^`]*)`$")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`")


def read_document(path: Path) -> tuple[str, str]:
    """Read a settings file: its text, and its name for errors."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise LimitError(f"settings have at most {FILE_BYTES_MAX} bytes", source=str(path))
        return path.read_text(encoding="utf-8"), str(path)
    except OSError as error:
        problem = f"cannot read the settings: {error.strerror}"
        raise SettingsError(problem, source=str(path)) from None
    except UnicodeDecodeError:
        raise SettingsError("settings are UTF-8 text", source=str(path)) from None


def located(
    text: str,
    source: str,
    kind: type[Structure],
    problem: Callable[[Structure], tuple[tuple[str, ...], str] | None],
) -> Structure:
    """Turn TOML into a structure; errors name the line of the key they are about."""
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
        keys, said = wrong
        set_here = [key for key in keys if tuple(key.split(".")) in lines_of(text)]
        key = (set_here or list(keys))[0]
        raise SettingsError(f"{key}: {said}", source=source, line=line_of(text, key))
    return value


def line_of(text: str, key: str) -> int | None:
    """Give the line where a dotted key is set, or the table it would stand in is named."""
    lines = lines_of(text)
    path = tuple(key.split("."))
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return None


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """Give the line in which each key and table of a valid document first stands."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    gathered: list[str] = []
    began = 1
    for number, line in enumerate(text.split("\n"), start=1):
        if not gathered:
            began = number
        gathered.append(line)
        try:
            said = tomllib.loads("\n".join(gathered))
        except tomllib.TOMLDecodeError:
            continue  # a value that goes on in the next line
        names_table = gathered[0].lstrip().startswith("[")
        gathered = []
        paths = _paths(said)
        if names_table:
            table = max(paths, key=len)
            found.setdefault(table, began)
            continue
        for path in paths:
            found.setdefault((*table, *path), began)
    return found


def _paths(said: Any) -> list[tuple[str, ...]]:
    """List the keys of a document, each after the one it stands in."""
    if isinstance(said, list):
        return [path for part in said for path in _paths(part)]
    if not isinstance(said, dict):
        return []
    found: list[tuple[str, ...]] = []
    for name, inner in said.items():
        found += [(name,), *((name, *path) for path in _paths(inner))]
    return found


def _syntax(said: str, text: str, source: str) -> SettingsError:
    at = _AT.search(said)
    if at is None:
        return SettingsError(f"not TOML: {said}", source=source)
    problem = f"not TOML: {said[: at.start()]}"
    if at[1] is None:
        return SettingsError(problem, source=source, line=text.rstrip("\n").count("\n") + 1)
    return SettingsError(problem, source=source, line=int(at[1]), position=int(at[2]))


def _refused(said: str, text: str, source: str, kind: type[msgspec.Struct]) -> SettingsError:
    where = _WHERE.search(said)
    key = where[1] if where else ""
    problem = said[: where.start()] if where else said
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
        f"no setting is called {whole}{hint}", source=source, line=line_of(text, whole)
    )


def _choices(kind: type[msgspec.Struct], key: str) -> str:
    """Name the texts that a key's literal type allows."""
    *inside, name = key.split(".")
    annotated = next(f for f in _reached(kind, inside) if f.name == name).type
    return ", ".join(get_args(get_args(annotated)[0]))


def _fields(kind: type[msgspec.Struct], key: str) -> list[str]:
    """Name the fields of the structure that a dotted key leads to."""
    return sorted(field.name for field in _reached(kind, list(filter(None, key.split(".")))))


def _reached(kind: type[msgspec.Struct], parts: list[str]) -> tuple[FieldInfo, ...]:
    fields = msgspec.structs.fields(kind)
    for part in parts:
        fields = msgspec.structs.fields(next(f for f in fields if f.name == part).type)
    return fields
