"""A program of the SDK subscribes with modulators, built in and its own."""

import asyncio
import struct
from pathlib import Path

import pytest
import wasmtime

from roamcast.client import connect
from roamcast.errors import InputError, ModulatorError
from tests.live.service.test_live_modulators import EXAMPLES, GARBAGE
from tests.running_service import RunningService

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_a_stream_has_what_its_modulators_leave(tmp_path: Path) -> None:
    async def scene(service: RunningService) -> None:
        async with asyncio.timeout(60), connect(service.url, service.operator) as me:
            second = await me.subscribe("true", modulators=[{"type": "every", "n": 2}])
            name = await me.put_module((EXAMPLES / "steps.wasm").read_bytes())
            steps = await me.subscribe("true", modulators=[{"type": "wasm", "module": name}])
            broken = await me.put_module(wasmtime.wat2wasm(GARBAGE))
            hurt = await me.subscribe("true", modulators=[{"type": "wasm", "module": broken}])
            for number in (0, 3, 3, 5):
                await me.publish_event("hq", data=struct.pack("<d", number), number=number)
            assert [(await anext(second)).context.attributes["number"] for _ in range(2)] == [3, 5]
            found = [(await anext(steps)).context.attributes["number"] for _ in range(3)]
            assert found == [0, 3, 5]
            with pytest.raises(ModulatorError, match="stopped"):
                await anext(hurt)
            with pytest.raises(InputError, match="it may begin here again in"):
                await me.subscribe("true", modulators=[{"type": "wasm", "module": broken}])
            with pytest.raises(InputError):
                await me.put_module(b"text")
            with pytest.raises(InputError, match="modulators"):
                await me.subscribe("true", modulators=[{"type": "nothing"}])

    with RunningService(tmp_path) as service:
        asyncio.run(scene(service))
