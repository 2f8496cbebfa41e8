"""Modules on disk, by the hash of their bytes: put once, found by every subscription."""

from hashlib import sha256
from pathlib import Path
from typing import Final

from roamcast.errors import LimitError, ModulatorError, RoamcastError
from roamcast.files import write_whole
from roamcast.overlay.modulators.events import (
    LookUpModule,
    ModuleLookedUp,
    ModuleShelved,
    ShelveModule,
)
from roamcast.overlay.modulators.sandbox import MAGIC, SandboxLimits

MODULES_FOLDER: Final = "modules"
MODULES_MAX: Final = 1_000
"""Modules of one service; beyond, new ones are refused."""


class ModuleShelf:
    """A folder with one file for each module."""

    def __init__(self, folder: Path, limits: SandboxLimits | None = None) -> None:
        self._folder = folder
        self._limits = limits or SandboxLimits()

    def put(self, code: bytes) -> str:
        """Store a module; give its name. What cannot be one is refused before it is stored."""
        if not code.startswith(MAGIC):
            raise ModulatorError("this is no WebAssembly core module in binary form")
        if len(code) > self._limits.module_bytes:
            raise LimitError(f"a module has at most {self._limits.module_bytes} bytes")
        name = sha256(code).hexdigest()
        path = self._path(name)
        if not path.exists():
            if len(self) >= MODULES_MAX:
                raise LimitError(f"a service has at most {MODULES_MAX} modules")
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, code)
        return name

    def keep(self, given: ShelveModule) -> ModuleShelved:
        """Store a module that came from another node, or say why not."""
        try:
            self.put(given.code)
        except (RoamcastError, OSError) as error:
            return ModuleShelved(given.module, str(error)[:500])
        return ModuleShelved(given.module)

    def look_up(self, asked: LookUpModule) -> ModuleLookedUp:
        """Say how many bytes a module has, and read some of them."""
        code = self.get(asked.module) or b""
        piece = code[asked.at : asked.at + asked.most]
        return ModuleLookedUp(asked.module, asked.to, asked.at, len(code), piece)

    def get(self, name: str) -> bytes | None:
        """Give a module's bytes; those of a file that was changed since are not it."""
        try:
            code = self._path(name).read_bytes()
        except OSError:
            return None
        return code if sha256(code).hexdigest() == name else None

    def __len__(self) -> int:
        return sum(1 for _ in self._folder.glob("*.wasm")) if self._folder.is_dir() else 0

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.wasm"
