"""The ticker stops a module that has fuel for ever, and nobody else."""

import pytest
import wasmtime

from roamcast.errors import ModulatorError
from roamcast.live.modulators.ticker import EpochTicker
from roamcast.overlay.modulators.sandbox import Engine, Sandbox, SandboxLimits

TEXT = """(module (memory (export "memory") 1)
  (func (export "alloc") (param i32) (result i32) i32.const 64)
  (func (export "run") (param i64 i32 i32) (result i64)
    (if (i32.eq (local.get 2) (i32.const 4)) (then (loop br 0)))
    (i64.const 0)))"""


def test_a_module_that_loops_is_stopped_though_it_has_fuel():
    engine = Engine(SandboxLimits(fuel=2**62))
    compiled = engine.compile(bytes(wasmtime.wat2wasm(TEXT)))
    with EpochTicker(engine, 0.01):
        with pytest.raises(ModulatorError, match="took too long"):
            Sandbox(engine, compiled).run(b"loop", 0)
        assert Sandbox(engine, compiled).run(b"is well", 0) == b""
