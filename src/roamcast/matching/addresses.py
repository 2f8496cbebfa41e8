"""How does compiled code get at two dozen arrays quickly? By a table of their addresses.

Handing an array to Numba costs about a quarter of a microsecond, and one search needs 22 of them:
as much as the search itself in a small set. The table is written when an array is replaced and
read in each call. Whoever writes it keeps the arrays alive.
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
    """Give address and length of each array, which must lie in one piece."""
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
    """Give an array of int64."""
    return carray(pointer(table[2 * place]), table[2 * place + 1], np.int64)


@inlined
def float64s(table: Array, place: Int) -> Array:
    """Give an array of float64."""
    return carray(pointer(table[2 * place]), table[2 * place + 1], np.float64)


@inlined
def int32s(table: Array, place: Int) -> Array:
    """Give an array of int32."""
    return carray(pointer(table[2 * place]), table[2 * place + 1], np.int32)


@inlined
def uint64s(table: Array, place: Int) -> Array:
    """Give an array of uint64."""
    return carray(pointer(table[2 * place]), table[2 * place + 1], np.uint64)


@inlined
def int32_rows(table: Array, place: Int, width: Int) -> Array:
    """Give an array of int32 in rows of this width."""
    return carray(pointer(table[2 * place]), (table[2 * place + 1], width), np.int32)


@inlined
def int64_pairs(table: Array, place: Int) -> Array:
    """Give an array of pairs of int64."""
    return carray(pointer(table[2 * place]), (table[2 * place + 1], 2), np.int64)
