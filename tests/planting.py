"""Plant a defect: replace a piece of a function's source for one test."""

import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest


@contextmanager
def planted(where: str, old: str, new: str) -> Iterator[None]:
    """Run with `module:function` or `module:Class.method` changed.

    Whoever imported the function, or holds it in a table, gets the changed one. Decorators are left
    out, so kernels run as plain Python, and caches of the filters' modules are emptied.
    """
    module, _, path = where.partition(":")
    home: Any = importlib.import_module(module)
    *owners, name = path.split(".")
    owner = home
    for part in owners:
        owner = getattr(owner, part)
    original = getattr(owner, name)
    changed = _changed(home, original, name, old, new)
    with pytest.MonkeyPatch.context() as patch:
        if owners:
            patch.setattr(owner, name, changed)
        else:
            for holder in [m for n, m in sys.modules.items() if n.startswith("roamcast.")]:
                _replace(patch, holder, original, changed)
        _empty_caches()
        try:
            yield
        finally:
            _empty_caches()


def _changed(
    module: ModuleType, original: Any, name: str, old: str, new: str
) -> Callable[..., Any]:
    plain = inspect.unwrap(getattr(original, "py_func", original))
    source = textwrap.dedent(inspect.getsource(plain))
    source = source[source.index("def ") :]
    assert old in source, f"{name} no longer holds {old!r}: plant this defect elsewhere"
    made: dict[str, Any] = {}
    exec(source.replace(old, new), vars(module), made)
    return made[name]  # type: ignore[no-any-return]


def _replace(patch: pytest.MonkeyPatch, module: ModuleType, original: Any, changed: Any) -> None:
    for key, value in list(vars(module).items()):
        if value is original:
            patch.setitem(vars(module), key, changed)  # type: ignore[arg-type]
        elif isinstance(value, dict) and not key.startswith("__"):
            for entry, held in list(value.items()):
                if held is original:
                    patch.setitem(value, entry, changed)


def _empty_caches() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("roamcast.model.filters"):
            for value in list(vars(module).values()):
                clear = getattr(value, "cache_clear", None)
                if clear is not None:
                    clear()
