"""WebAssembly core modules in a sandbox: bytes in, bytes out, nothing else.

A module has no imports, so it can neither see the time, draw, nor reach anything. NaN is canonical
and there are no threads, so the same bytes give the same answer on every machine. It is bounded by
fuel, memory, size of its answer and of its state; a driver may tick an epoch as a second guard
against fuel that is too generous. A trap raises `ModulatorError` with the reason and leaves this
instance unusable, and no other.

`checkpoint` replaces the instance by a new one that has loaded what the old one saved. So whatever
a module remembers from before a checkpoint is in the checkpoint, and replay from it is exact, even
for a module that saves only a part of what it knows, or nothing.
"""

from collections import OrderedDict
from hashlib import sha256
from typing import Any, Final

import msgspec
import wasmtime

from roamcast.errors import LimitError, ModulatorError

MAGIC: Final = b"\0asm\1\0\0\0"
"""`Module(bytes)` also takes text, and components have another version."""

PAGE: Final = 65_536
EXPORTS: Final = {
    "alloc": (["i32"], ["i32"]),
    "run": (["i64", "i32", "i32"], ["i64"]),
    "init": (["i32", "i32"], []),
    "save": ([], ["i64"]),
    "load": (["i32", "i32"], []),
}
"""Functions → types of parameters and results. `run` takes the time in microseconds, and where the
event lies and how long it is; answers are (address << 32) + length, 0 for nothing."""

NEEDED: Final = ("alloc", "run")


class SandboxLimits(msgspec.Struct, frozen=True):
    """What a module may use."""

    module_bytes: int = 1024 * 1024
    memory_bytes: int = 16 * 1024 * 1024
    fuel: int = 10_000_000
    """For one event, for starting, for saving and for loading; about one an instruction."""
    state_bytes: int = 256 * 1024
    answer_factor: int = 2
    """An answer is at most so many times as long as the event, …"""
    answer_spare: int = 64
    """… and so many bytes more, so that very short events can be answered."""
    ticks: int = 2
    """An epoch that ends during a call is not enough to stop it; this many are."""
    modules_max: int = 64
    """Compiled modules that a broker remembers."""


class Compiled(msgspec.Struct, frozen=True):
    """A module that was checked and compiled here, by the hash of its bytes."""

    digest: str
    module: Any
    size: int


class Engine:
    """Compiles modules once each; ask it from one thread at a time."""

    def __init__(self, limits: SandboxLimits | None = None) -> None:
        self.limits = limits or SandboxLimits()
        config = wasmtime.Config()
        config.consume_fuel = True
        config.epoch_interruption = True
        config.cranelift_nan_canonicalization = True
        config.max_wasm_stack = 512 * 1024
        config.parallel_compilation = False
        for feature in ("threads", "memory64", "multi_memory", "relaxed_simd", "tail_call", "gc",
                        "function_references", "exceptions", "component_model",
                        "stack_switching"):  # fmt: skip
            setattr(config, f"wasm_{feature}", False)
        self.engine = wasmtime.Engine(config)
        self._compiled: OrderedDict[str, Compiled] = OrderedDict()

    def tick(self) -> None:
        """End an epoch; a driver's timer calls this from any thread."""
        self.engine.increment_epoch()

    def __len__(self) -> int:
        return len(self._compiled)

    def find(self, digest: str) -> Compiled | None:
        """Give a module that was compiled before; one that is used stays longest."""
        found = self._compiled.get(digest)
        if found is not None:
            self._compiled.move_to_end(digest)
        return found

    def compile(self, code: bytes) -> Compiled:
        """Check and compile a module; ModulatorError says what is wrong with it."""
        digest = digest_of(code)
        known = self.find(digest)
        if known is not None:
            return known
        if len(code) > self.limits.module_bytes:
            raise LimitError(f"a module has at most {self.limits.module_bytes} bytes")
        if not code.startswith(MAGIC):
            raise ModulatorError("not a WebAssembly core module: its first bytes are wrong")
        try:
            module = wasmtime.Module(self.engine, code)
        except wasmtime.WasmtimeError as error:
            raise ModulatorError(f"the module is not valid: {_line(error)}") from None
        _check(module)
        made = Compiled(digest, module, len(code))
        self._compiled[digest] = made
        while len(self._compiled) > self.limits.modules_max:
            self._compiled.popitem(last=False)
        return made


def digest_of(code: bytes) -> str:
    """Give the name of a module: the hash of its bytes."""
    return sha256(code).hexdigest()


def _check(module: Any) -> None:
    if module.imports:
        first = module.imports[0]
        raise ModulatorError(f"a module has no imports; this one asks for {first.name!r}")
    exports = {one.name: one.type for one in module.exports}
    if not isinstance(exports.get("memory"), wasmtime.MemoryType):
        raise ModulatorError("a module exports its `memory`")
    for name, (takes, gives) in EXPORTS.items():
        found = exports.get(name)
        if found is None and name not in NEEDED:
            continue
        if not isinstance(found, wasmtime.FuncType):
            raise ModulatorError(f"a module exports the function `{name}`")
        if [str(one) for one in found.params] != takes or [str(x) for x in found.results] != gives:
            shape = f"({', '.join(takes)}) -> ({', '.join(gives)})"
            raise ModulatorError(f"`{name}` is {shape}")
    if ("save" in exports) != ("load" in exports):
        raise ModulatorError("a module that saves loads, too, and the other way round")


class Sandbox:
    """One subscription's instance of a module."""

    def __init__(self, engine: Engine, compiled: Compiled, settings: bytes = b"") -> None:
        """`settings`: what `init` gets, if the module has one."""
        self.limits = engine.limits
        self.digest = compiled.digest
        self.fuel_used = 0
        """By the last event."""
        self._engine = engine
        self._compiled = compiled
        self._settings = settings
        self._renew(None)

    @property
    def stateful(self) -> bool:
        """Whether the module saves what it knows."""
        return "save" in self._exports

    @property
    def memory_bytes(self) -> int:
        """About how much memory the instance and its module take."""
        return int(self._exports["memory"].data_len(self._store)) + self._compiled.size

    def run(self, event: bytes, time: int) -> bytes:
        """Give the module an event; the answer is empty if there is none."""
        limits = self.limits
        most = limits.answer_factor * len(event) + limits.answer_spare
        try:
            return self._call("run", event, most, time)
        finally:
            self.fuel_used = limits.fuel - self._store.get_fuel()

    def checkpoint(self) -> bytes:
        """Save, and go on from what was saved alone; empty for a module that does not save."""
        state = self._call("save", None, self.limits.state_bytes) if self.stateful else b""
        self._renew(state)
        return state

    def restore(self, state: bytes) -> None:
        """Go on from a checkpoint of the same module."""
        if len(state) > self.limits.state_bytes:
            raise LimitError(f"a modulator's state has at most {self.limits.state_bytes} bytes")
        self._renew(state)

    def _renew(self, state: bytes | None) -> None:
        """Begin a new instance: `init`, then `load` if there is a state."""
        store = wasmtime.Store(self._engine.engine)
        store.set_limits(
            memory_size=self.limits.memory_bytes,
            table_elements=10_000,
            instances=1,
            tables=4,
            memories=1,
        )
        store.set_fuel(self.limits.fuel)
        store.set_epoch_deadline(self.limits.ticks)
        try:
            instance = wasmtime.Instance(store, self._compiled.module, [])
        except (wasmtime.WasmtimeError, wasmtime.Trap) as error:
            raise ModulatorError(f"the module does not start: {_line(error)}") from None
        self._store = store
        self._exports: dict[str, Any] = {
            name: instance.exports(store)[name]
            for name in (*EXPORTS, "memory")
            if name in instance.exports(store)
        }
        if "init" in self._exports:
            self._call("init", self._settings, 0)
        if state is not None and self.stateful:
            self._call("load", state, 0)

    def _call(self, name: str, given: bytes | None, most: int, *before: int) -> bytes:
        """Put bytes into the module's memory, call it, and read what it answers."""
        store, memory = self._store, self._exports["memory"]
        store.set_fuel(self.limits.fuel)
        store.set_epoch_deadline(self.limits.ticks)
        try:
            parameters: list[int] = [*before]
            if given is not None:
                address = self._exports["alloc"](store, len(given)) & 0xFFFFFFFF
                if address + len(given) > memory.data_len(store):
                    raise ModulatorError("`alloc` answered with an address outside its memory")
                if given:
                    memory.write(store, given, address)
                parameters += [address, len(given)]
            answer = self._exports[name](store, *parameters)
            return self._read(answer, most) if answer is not None else b""
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            raise ModulatorError(f"stopped in `{name}`: {_reason(error)}") from None

    def _read(self, answer: int, most: int) -> bytes:
        address, length = (answer >> 32) & 0xFFFFFFFF, answer & 0xFFFFFFFF
        if length == 0:
            return b""
        memory = self._exports["memory"]
        if length > most:
            raise ModulatorError(f"its answer has {length} bytes; at most {most} are allowed")
        if address + length > memory.data_len(self._store):
            raise ModulatorError("its answer lies outside its memory")
        return bytes(memory.read(self._store, address, address + length))


def _reason(error: Exception) -> str:
    """Name the cause of a trap."""
    code = getattr(error, "trap_code", None)
    if code is wasmtime.TrapCode.OUT_OF_FUEL:
        return "out of fuel"
    if code is wasmtime.TrapCode.INTERRUPT:
        return "took too long"
    return _line(error)


def _line(error: Exception) -> str:
    """Give the last line of an error: what went wrong, not where in the module."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:200]
