"""A table of array addresses, through which compiled code reaches two dozen arrays cheaply.

Passing an array to Numba costs about 0.25 µs, and a search needs 22 of them: in a small set that is
as much as the search itself (decision 0005). The table is rewritten when an array is replaced. Its
owner must keep the arrays alive.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from roamcast.matching.layout import Array, Int
from roamcast.model.kernels import inlined


def table_of(arrays: Sequence[Array]) -> Array:
    """Return the address and length of each array; arrays must be contiguous."""
    table = np.empty(2 * len(arrays), np.int64)
    for place, array in enumerate(arrays):
        assert array.flags.c_contiguous
        table[2 * place] = array.ctypes.data
        table[2 * place + 1] = len(array)
    return table


def _pointer(_context: Any, address: Any) -> Any:
    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(address), generate


pointer: Any = intrinsic(_pointer)


@inlined
def int64s(table: Array, place: Int) -> Array:
    """Return an array of int64."""
    return carray(pointer(table[2 * place]), table[2 * place + 1], np.int64)


@inlined
def float64s(table: Array, place: Int) -> Array:
    """Return an array of float64."""
    return carray(pointer(table[2 * place]), table[2 * place + 1], np.float64)


@inlined
def int32s(table: Array, place: Int) -> Array:
    """Return an array of int32."""
    return carray(pointer(table[2 * place]), table[2 * place + 1], np.int32)


@inlined
def uint64s(table: Array, place: Int) -> Array:
    """Return an array of uint64."""
    return carray(pointer(table[2 * place]), table[2 * place + 1], np.uint64)


@inlined
def int32_rows(table: Array, place: Int, width: Int) -> Array:
    """Return an array of int32 in rows of this width."""
    return carray(pointer(table[2 * place]), (table[2 * place + 1], width), np.int32)


@inlined
def int64_pairs(table: Array, place: Int) -> Array:
    """Return an array of pairs of int64."""
    return carray(pointer(table[2 * place]), (table[2 * place + 1], 2), np.int64)
