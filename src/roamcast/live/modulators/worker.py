"""The thread in which a service's modulators run, beside the loop that serves everybody.

A call into WebAssembly lets other threads run, and fuel and epochs bound it: a hostile module takes
its own thread's time, and is stopped. Each consumer has at most one job here.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from roamcast.live.modulators.shelf import ModuleShelf
from roamcast.live.modulators.ticker import EpochTicker
from roamcast.model.machine import Input
from roamcast.overlay.modulators.events import EndModulation, Modulate, StartModulation
from roamcast.overlay.modulators.modulation import Modulation
from roamcast.overlay.modulators.sandbox import Compiled, Engine
from roamcast.overlay.modulators.specs import Spec
from roamcast.overlay.modulators.workshop import Order, Workshop

ORDERS: Final = (StartModulation, Modulate, EndModulation)


class ModulatorWorker:
    """Carries out a home's orders; begins with the first one."""

    def __init__(self, shelf: ModuleShelf, *, give: Callable[[Input], None]) -> None:
        self.shelf = shelf
        self._give = give
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy_s: dict[str, float] = {}
        self._lock = threading.Lock()
        """Of what was measured, which the loop takes."""

    def carry(self, order: Order) -> None:
        """Put an order into the queue; called in the loop."""
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(
                target=self._run, args=(loop,), name="modulators", daemon=True
            )
            self._thread.start()
        self._orders.put(order)

    def take_shares(self) -> dict[str, float]:
        """Give how long the modulators of each consumer ran since this was last asked, seconds."""
        with self._lock:
            found, self._busy_s = self._busy_s, {}
        return found

    def close(self) -> None:
        """Finish what is under way, and end."""
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join()
            self._thread = None

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        engine = Engine()

        def find(name: str) -> Compiled | None:
            code = engine.find(name) or self.shelf.get(name)
            return engine.compile(code) if isinstance(code, bytes) else code

        def make(specs: Sequence[Spec]) -> Modulation:
            return Modulation(specs, engine=engine, find=find)

        shop = Workshop(make)
        with EpochTicker(engine):
            while (order := self._orders.get()) is not None:
                begin = time.perf_counter()
                answer = shop.work(order)
                if not isinstance(order, EndModulation):
                    spent_s = time.perf_counter() - begin
                    with self._lock:
                        before_s = self._busy_s.get(order.consumer, 0.0)
                        self._busy_s[order.consumer] = before_s + spent_s
                if answer is not None:
                    loop.call_soon_threadsafe(self._give, answer)
