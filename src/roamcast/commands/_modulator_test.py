"""Events from a file through a modulator, for `roamcast modulator test`."""

import base64
import binascii
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import wasmtime

from roamcast.errors import InputError, MissingError, ModulatorError
from roamcast.matching.files import located, numbered_lines
from roamcast.model import json_text
from roamcast.model.contexts import encode, from_feature
from roamcast.overlay.modulators.modulation import Checkpoint, Modulation
from roamcast.overlay.modulators.sample import Sample, sample_of
from roamcast.overlay.modulators.sandbox import MAGIC, Engine
from roamcast.overlay.modulators.specs import Code, Spec, read_specs


def write_answers(
    file: Path, events: Path, out: IO[bytes], *, settings: bytes, check: bool
) -> None:
    """Write {"event", "passed", "fuel", …} lines, in the order of the events."""
    engine = Engine()
    wanted = _wanted(file, engine, settings)
    made = Modulation(wanted, engine=engine, find=engine.find)
    before = made.checkpoint() if check else None
    for number, (sample, time) in enumerate(_samples(events), 1):
        try:
            answer = made.apply(sample, time)
            if before is not None:
                before = _replayed(wanted, engine, before, sample, time, made)
        except ModulatorError as error:
            raise error.located(str(events), number) from None
        out.write(msgspec.json.encode(_row(number, answer, made)) + b"\n")
    out.flush()


def _wanted(file: Path, engine: Engine, settings: bytes) -> tuple[Spec, ...]:
    """Read a module, text of one, or a list of modulators."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise MissingError(f"{file}: {error.strerror}") from None
    if file.suffix == ".json":
        return read_specs(content)
    if file.suffix == ".wat" and not content.startswith(MAGIC):
        try:  # only here, for whoever writes one: brokers take the binary form alone
            content = bytes(wasmtime.wat2wasm(content))
        except wasmtime.WasmtimeError as error:
            raise ModulatorError(f"{file}: {str(error).splitlines()[0]}") from None
    return (Code(engine.compile(content).digest, settings),)


def _samples(path: Path) -> Iterator[tuple[Sample, int]]:
    for number, line in numbered_lines(path):
        try:
            record: Any = json_text.read(line, InputError)
            text = record.pop("data", "") if isinstance(record, dict) else ""
            data = base64.b64decode(text, validate=True)
            context = from_feature(record)
        except (binascii.Error, TypeError, ValueError):
            raise InputError("`data` is not base64", source=str(path), line=number) from None
        except InputError as error:
            raise located(error, path, number) from None
        yield sample_of(context, data), context.t_r


def _replayed(
    wanted: tuple[Spec, ...],
    engine: Engine,
    before: Checkpoint,
    sample: Sample,
    time: int,
    made: Modulation,
) -> Checkpoint:
    """Repeat an event from the checkpoint before it; give the one after it."""
    again = Modulation(wanted, engine=engine, find=engine.find)
    again.restore(before)
    again.replay([(sample, time)], made.mark)
    return made.checkpoint()


def _row(number: int, answer: Sample | None, made: Modulation) -> dict[str, Any]:
    row: dict[str, Any] = {"event": number, "passed": answer is not None, "fuel": made.fuel_used}
    if answer is not None:
        row["feature"] = msgspec.Raw(encode(answer.context))
        row["data"] = base64.b64encode(answer.data).decode()
    return row
