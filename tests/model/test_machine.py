"""The contract between machines and drivers: tables, deadlines, frozen values."""

import enum

import msgspec
import pytest

from roamcast.model.addresses import Client
from roamcast.model.machine import Effect, Input, Received, Send, Store, earliest, step
from roamcast.model.records import RECORDS, Record
from roamcast.model.wire import Message


class Light(enum.StrEnum):
    RED = "red"
    GREEN = "green"


TABLE = {(Light.RED, "go"): Light.GREEN, (Light.GREEN, "stop"): Light.RED}


class Ping(Message, frozen=True, tag="test.ping"):
    number: int


def test_the_table_says_what_follows() -> None:
    assert step(TABLE, Light.RED, "go") is Light.GREEN


def test_what_is_not_in_the_table_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="stop cannot happen in state red"):
        step(TABLE, Light.RED, "stop")


@pytest.mark.parametrize(
    ("times", "first"), [((), None), ((None, None), None), ((None, 3), 3), ((5, 3, None), 3)]
)
def test_the_earliest_deadline_wins_and_none_never_does(
    times: tuple[int | None, ...], first: int | None
) -> None:
    assert earliest(*times) == first


@pytest.mark.parametrize(
    "value", [Received("a", Ping(1)), Send(Client("a"), Ping(1)), Store(1, ())]
)
def test_inputs_and_effects_cannot_be_changed(value: msgspec.Struct) -> None:
    with pytest.raises(AttributeError):
        value.token = 2  # type: ignore[attr-defined]
    assert isinstance(value, Input | Effect)


def test_every_record_type_is_an_effect_and_listed_once() -> None:
    def below(kind: type) -> list[type]:
        return [kind, *(deeper for child in kind.__subclasses__() for deeper in below(child))]

    ours = {kind for kind in below(Record) if kind.__module__ == "roamcast.model.records"}
    assert ours - {Record} == set(RECORDS)
    assert len(RECORDS) == len({record.__name__ for record in RECORDS})
