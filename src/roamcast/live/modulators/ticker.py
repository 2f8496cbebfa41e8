"""Ends an engine's epochs from a thread of its own: the second guard beside fuel.

Fuel bounds instructions, not time: an instruction may be slow, and fuel may be set too high. A call
into WebAssembly lets other Python threads run, so the ticker ticks while a module loops.
"""

import threading
from types import TracebackType
from typing import Final, Self

from roamcast.overlay.modulators.sandbox import Engine

TICK_S: Final = 0.05
"""A call that outlasts the engine's `ticks` epochs is stopped: after 50 to 100 ms by default."""


class EpochTicker:
    """Ticks from entering a `with` block until leaving it."""

    def __init__(self, engine: Engine, every_s: float = TICK_S) -> None:
        self._engine = engine
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="modulator epochs", daemon=True)

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self._engine.tick()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
