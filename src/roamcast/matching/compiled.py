"""How is a function made fast? Compiled by Numba once, then kept in a cache beside the source."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from roamcast.model.kernels import forget_stale

forget_stale(__file__)

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile a function on its first call; matching needs no Python, so it holds no lock."""
    compiled: Any = njit(cache=True, nogil=True, boundscheck=False)(function)
    return cast("Function", compiled)


def inlined(function: Function) -> Function:
    """Compile a small function into its callers: a call would count references of every array."""
    compiled: Any = njit(cache=True, nogil=True, boundscheck=False, forceinline=True)(function)
    return cast("Function", compiled)


def _lowest_bit(_context: Any, word: Any) -> Any:
    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(word), generate


def _count_bits(_context: Any, word: Any) -> Any:
    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(word), generate


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
"""Ask for an array's element to be brought into the cache; nothing waits for it."""
