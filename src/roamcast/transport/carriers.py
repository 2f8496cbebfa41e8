"""A table of who carries out which effect; an effect that nobody carries is our own mistake."""

from collections.abc import Callable, Mapping
from typing import Any

from roamcast.model.machine import Effect

Carrier = Callable[[Any], None]


class Carriers:
    """Carries effects by their type, or by the nearest base type in the table."""

    def __init__(self, carriers: Mapping[type[Effect], Carrier]) -> None:
        self._carriers = dict(carriers)

    def __call__(self, effect: Effect) -> None:
        """Carry one effect out."""
        carrier = self._carriers.get(type(effect))
        if carrier is None:
            carrier = self._inherit(type(effect))
        carrier(effect)

    def _inherit(self, kind: type[Effect]) -> Carrier:
        for base in kind.__mro__:
            if base in self._carriers:
                carrier = self._carriers[kind] = self._carriers[base]
                return carrier
        raise AssertionError(f"nobody carries {kind.__name__}")


def nothing(effect: Effect) -> None:
    """Carry an effect that this driver has nothing to do for; the table says so by name."""
    del effect
