"""What a host has left: the battery as Linux tells it, and shares of the modulators' thread."""

import pytest

from roamcast.live.modulators.measuring import battery_left
from roamcast.live.modulators.shelf import ModuleShelf
from roamcast.overlay.modulators.events import LookUpModule, ModuleShelved, ShelveModule


@pytest.mark.parametrize(
    ("status", "capacity", "left"),
    [("Discharging", "37", 0.37), ("Charging", "37", 1.0), ("Discharging", "odd", 1.0)],
)
def test_a_battery_counts_while_it_is_used(tmp_path, status, capacity, left):
    assert battery_left(tmp_path) == 1.0
    for name, value in (("status", status), ("capacity", capacity)):
        (tmp_path / "BAT0").mkdir(exist_ok=True)
        (tmp_path / "BAT0" / name).write_text(value + "\n")
    assert battery_left(tmp_path) == left


def test_a_shelf_keeps_what_others_give_and_says_why_not(tmp_path):
    shelf = ModuleShelf(tmp_path / "modules")
    name = shelf.put(b"\0asm\1\0\0\0")
    assert shelf.look_up(LookUpModule(name, "b", 4, 2)).piece == b"\1\0"
    assert shelf.look_up(LookUpModule(name)).size == 8
    assert shelf.look_up(LookUpModule("0" * 64)).size == 0
    assert shelf.keep(ShelveModule(name, b"\0asm\1\0\0\0")) == ModuleShelved(name)
    assert "WebAssembly" in shelf.keep(ShelveModule("0" * 64, b"text")).refused
