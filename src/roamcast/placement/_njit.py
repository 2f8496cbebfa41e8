"""How are kernels compiled? Numba's decorator with a type that mypy can see through."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba.extending import intrinsic

from roamcast.model.kernels import forget_stale

forget_stale(__file__)

Function = TypeVar("Function", bound=Callable[..., Any])


def njit(function: Function) -> Function:
    """Compile on first use and keep the machine code beside the source."""
    compile_later: Any = numba.njit(cache=True)
    compiled: Function = compile_later(function)
    return compiled


def _popcount(typing_context: Any, word: Any) -> Any:  # noqa: ARG001 (Numba hands it over)
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.ctpop(arguments[0])

    return numba.uint64(numba.uint64), generate


popcount: Any = intrinsic(_popcount)
"""The processor's own count of set bits in a 64-bit word; Numba offers none by name."""
