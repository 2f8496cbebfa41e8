"""The figures and benches, found by file name: `lab/cbm_3.py` is `cbm-3` (decision 0002)."""

import importlib
import importlib.util
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

from roamcast import lab
from roamcast.errors import InputError, MissingError

SUPPORT = {"registry", "report", "plots"}
"""Modules of this package that are not figures."""

BENCHES = Path(__file__).resolve().parents[3] / "bench"
"""Benches measure other software as well, which only the checkout's environment has."""


def figure_names() -> list[str]:
    """Return the names of all figures, sorted."""
    found = (info.name for info in pkgutil.iter_modules(lab.__path__) if not info.ispkg)
    return sorted(_spoken(name) for name in found if name not in SUPPORT and name[0] != "_")


def figure(name: str) -> ModuleType:
    """Import the module of one figure."""
    _known("figure", name, figure_names())
    return importlib.import_module(f"{lab.__name__}.{name.replace('-', '_')}")


def bench_names() -> list[str]:
    """Return the names of all benches, sorted."""
    if not BENCHES.is_dir():
        raise MissingError(f"benches live in the source checkout; none at {BENCHES}")
    return sorted(_spoken(path.stem) for path in BENCHES.glob("*.py") if path.stem[0] != "_")


def bench(name: str) -> ModuleType:
    """Load the module of one bench from the checkout."""
    _known("bench", name, bench_names())
    module = name.replace("-", "_")
    checkout = str(BENCHES.parent)
    if checkout not in sys.path:  # benches import each other: `from bench.fanout import …`
        sys.path.append(checkout)
    spec = importlib.util.spec_from_file_location(f"bench.{module}", BENCHES / f"{module}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def _spoken(module: str) -> str:
    return module.replace("_", "-")


def _known(what: str, name: str, names: list[str]) -> None:
    if name not in names:
        raise InputError(f"no {what} is called {name!r}; there are: {', '.join(names)}")
