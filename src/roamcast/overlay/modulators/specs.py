"""What a consumer asks for: a list of modulators, each a built-in or a module by its hash."""

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from roamcast.errors import LimitError, ModulatorError

MODULATORS_MAX: Final = 8
"""Modulators of one subscription, applied in turn."""

SETTINGS_BYTES_MAX: Final = 16_384

Longitude = Annotated[float, Meta(ge=-180, le=180)]
Latitude = Annotated[float, Meta(ge=-90, le=90)]


class Select(msgspec.Struct, frozen=True, tag="select", forbid_unknown_fields=True):
    """Let through what a CQL2 filter matches, with some attributes and with or without data."""

    filter: str = "TRUE"
    attributes: Annotated[tuple[str, ...], Meta(max_length=256)] | None = None
    """Names of the attributes that stay; None for all."""
    data: bool = True


class EveryNth(msgspec.Struct, frozen=True, tag="every", forbid_unknown_fields=True):
    """Let every n-th event through."""

    n: Annotated[int, Meta(ge=1, le=2**31)]


class PerSecond(msgspec.Struct, frozen=True, tag="rate", forbid_unknown_fields=True):
    """Let at most so many events a second through, evenly spread, by the events' own times."""

    rate: Annotated[float, Meta(gt=0.0001, le=1_000_000)]


class WithinBox(msgspec.Struct, frozen=True, tag="box", forbid_unknown_fields=True):
    """Let events through whose point lies in a box; across 180° if west is above east."""

    west: Longitude
    south: Latitude
    east: Longitude
    north: Latitude


class Code(msgspec.Struct, frozen=True, tag="wasm", forbid_unknown_fields=True):
    """Run a WebAssembly module."""

    module: Annotated[str, Meta(pattern="^[0-9a-f]{64}$", description="SHA-256 of its bytes")]
    settings: Annotated[bytes, Meta(max_length=SETTINGS_BYTES_MAX)] = b""


Spec = Select | EveryNth | PerSecond | WithinBox | Code
_decoder = msgspec.json.Decoder(list[Spec])


def keeps_state(specs: Iterable[Spec]) -> bool:
    """Return whether answers depend on more than the event."""
    return any(isinstance(spec, EveryNth | PerSecond | Code) for spec in specs)


def read_specs(text: str | bytes) -> tuple[Spec, ...]:
    """Read a list of modulators from JSON."""
    try:
        found = tuple(_decoder.decode(text))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModulatorError(f"not a list of modulators: {error}") from None
    if len(found) > MODULATORS_MAX:
        raise LimitError(f"a subscription has at most {MODULATORS_MAX} modulators")
    return found
