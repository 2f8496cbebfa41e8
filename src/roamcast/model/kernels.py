"""Compiled functions: the one way that code becomes a kernel, and the instructions they share.

`kernel` compiles with Numba on the first call and caches the machine code: beside the source, in
NUMBA_CACHE_DIR, or in the user's cache if the source's folder is read-only. Numba checks only the
function's own module before it uses that cache, although the code of the functions it calls, and
the constants it names, are compiled in. After an update of one module of a package a search would
read pages in another layout than the insertion wrote, and miss matches. And machine code of two
times of compiling has names in common for things that differ: loaded together, it crashed a
service. So every cache is deleted, wherever Numba keeps it, as soon as any module of a folder with
kernels, or this one, has changed (decision 0005).
"""

import os
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar, cast

from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

STAMP = "kernels.stamp"
FOLDERS = (
    "identity", "matching", "matching/live", "pipeline/analysis", "pipeline/lookup", "placement",
    "sim/hops", "sim/topology",
)  # fmt: skip
"""Where there are kernels."""

Function = TypeVar("Function", bound=Callable[..., Any])
_checked: set[Path] = set()


def kernel(function: Function) -> Function:
    """Compile on first use. The code needs no Python, so other threads run meanwhile."""
    return _compiled(function, inline=False)


def inlined(function: Function) -> Function:
    """Compile into the callers: a call would count references of every array it is given."""
    return _compiled(function, inline=True)


def _compiled(function: Function, *, inline: bool) -> Function:
    later: Any = njit(cache=True, nogil=True, boundscheck=False, forceinline=inline)
    made: Any = later(function)
    # Only Numba knows where it caches; outside the source's folder each module has its own place.
    cached = Path(made.stats.cache_path)
    if cached not in _checked:
        _checked.add(cached)
        forget_stale(Path(function.__code__.co_filename).parent, cached)
    return cast("Function", made)


def forget_stale(folder: Path, place: Path) -> None:
    """Delete the code cached for a folder if a module beside some kernel has changed."""
    if not folder.is_dir():
        return
    try:
        digest = _digest(folder)
        stamp = place / STAMP
        if stamp.exists() and stamp.read_text(encoding="ascii") == digest:
            return
        place.mkdir(parents=True, exist_ok=True)
        for cached in place.glob("*.nb[ci]"):
            cached.unlink(missing_ok=True)
        written = place / f"{STAMP}.{os.getpid()}"
        written.write_text(digest, encoding="ascii")
        written.replace(stamp)
    except OSError:
        return  # Numba cannot write there either, so nothing stale comes from there


def _digest(folder: Path) -> str:
    digest = _digest_of_all().copy()
    _add_modules(digest, folder)
    return digest.hexdigest()


@cache
def _digest_of_all() -> blake2b:
    digest = blake2b(Path(__file__).read_bytes(), digest_size=16)
    for name in FOLDERS:
        _add_modules(digest, Path(__file__).parents[1] / name)
    return digest


def _add_modules(digest: blake2b, folder: Path) -> None:
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")


def _lowest_bit(_context: Any, word: Any) -> Any:
    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(word), generate


def _count_bits(_context: Any, word: Any) -> Any:
    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    # the word's own type: Numba adds int64 and uint64 as floats
    return word(word), generate


_tools: Any = cgutils  # it has no types


def _prefetch(_context: Any, array: Any, index: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = _tools.create_struct_proxy(signature.args[0])(target, builder, arguments[0])
        address = builder.gep(view.data, [arguments[1]])
        bytes_pointer = builder.bitcast(address, ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [bytes_pointer.type, number, number, number])
        name = "llvm.prefetch.p0" if "." not in str(bytes_pointer.type) else "llvm.prefetch"
        function = _tools.get_or_insert_function(builder.module, kind, name)
        builder.call(function, [bytes_pointer, number(0), number(3), number(1)])
        return target.get_dummy_value()

    return types.void(array, index), generate


lowest_bit: Any = intrinsic(_lowest_bit)
"""The number of the lowest set bit of a 64-bit word, 64 if none is set (one instruction)."""

count_bits: Any = intrinsic(_count_bits)
"""How many bits of a 64-bit word are set (one instruction)."""

prefetch: Any = intrinsic(_prefetch)
"""Bring an array's element into the processor's cache without waiting for it."""
