"""Modulators of sessions: they run beside the loop, go on where they were, and hurt nobody else."""

from hashlib import sha256
from pathlib import Path

import wasmtime

from tests.live.in_process import Asked
from tests.live.service.test_events import EventTalk, event, run, talking

EXAMPLES = Path(__file__).parents[3] / "examples" / "modulators"
LOOPS = """
(module (memory (export "memory") 1)
  (func (export "alloc") (param i32) (result i32) (i32.const 1024))
  (func (export "run") (param i64 i32 i32) (result i64) (loop (br 0)) (i64.const 0)))
"""
GROWS = """
(module (memory (export "memory") 1)
  (func (export "alloc") (param i32) (result i32) (i32.const 1024))
  (func (export "run") (param i64 i32 i32) (result i64)
    (if (i32.eq (memory.grow (i32.const 10000)) (i32.const -1)) (then unreachable))
    (i64.const 0)))
"""
GARBAGE = """
(module (memory (export "memory") 1)
  (func (export "alloc") (param i32) (result i32) (i32.const 1024))
  (func (export "run") (param i64 i32 i32) (result i64) (i64.const 4398046511108)))
"""
IMPORTS = '(module (import "env" "clock" (func)) (memory (export "memory") 1))'
HOSTILE = {"loops": LOOPS, "grows": GROWS, "garbage": GARBAGE, "imports": IMPORTS}


async def publish(talk: EventTalk, numbers: range) -> None:
    for number in numbers:
        talk.say("publish_event", re=f"p{number}", feature=event(number))
        await talk.hears("published", re=f"p{number}")


def test_a_subscription_has_what_its_modulators_leave(tmp_path: Path) -> None:
    async def scene(asked: Asked) -> None:
        async with talking(asked) as talk:
            shelf = asked.service.events.modulators.shelf
            third = shelf.put(wasmtime.wat2wasm((EXAMPLES / "every_third.wat").read_text()))
            talk.say("subscribe_events", re="all")
            talk.say("subscribe_events", re="second", modulators=[{"type": "every", "n": 2}])
            talk.say("subscribe_events", re="third", modulators=[{"type": "wasm", "module": third}])
            for name in ("all", "second", "third"):
                await talk.hears("standing", re=name)
            await publish(talk, range(6))
            assert len(await talk.has_events(6)) == 6
            second = await talk.has_events(3, "second")
            assert [one["feature"]["properties"]["number"] for one in second] == [1, 3, 5]
            found = await talk.has_events(2, "third")
            assert [one["feature"]["properties"]["number"] for one in found] == [2, 5]

    run(tmp_path, scene)


def test_hostile_modules_are_stopped_with_a_reason_and_nobody_else_is(tmp_path: Path) -> None:
    async def scene(asked: Asked) -> None:
        async with talking(asked) as talk:
            shelf = asked.service.events.modulators.shelf
            talk.say("subscribe_events", re="all")
            for name, text in HOSTILE.items():
                module = shelf.put(wasmtime.wat2wasm(text))
                talk.say(
                    "subscribe_events", re=name, modulators=[{"type": "wasm", "module": module}]
                )
            absent = [{"type": "wasm", "module": "0" * 64}]
            talk.say("subscribe_events", re="absent", modulators=absent)
            await talk.hears("standing", re="all")
            await publish(talk, range(4))
            for name in (*HOSTILE, "absent"):
                stopped = await talk.hears("modulators", re=name)
                assert stopped["stopped"]
                assert stopped["reason"]
                assert not talk.events(name)
            assert len(await talk.has_events(4)) == 4

    run(tmp_path, scene)


def test_modulators_go_on_counting_in_the_next_session(tmp_path: Path) -> None:
    wanted = {"modulators": [{"type": "every", "n": 3}], "keeps_state": True, "expires_s": 60}

    async def scene(asked: Asked) -> None:
        async with talking(asked, "eve#other") as producer:
            async with talking(asked) as talk:
                talk.say("subscribe_events", re="all", attachment=[1, 1], **wanted)
                await talk.hears("standing", re="all")
                await publish(producer, range(4))
                await talk.has_events(1)
                last = [one for one in talk.heard() if one["type"] == "events"][-1]
                vector = {last["origin"]: last["upto"]}
                talk.say("confirm_events", re="all", vector=vector)
            async with talking(asked) as talk:
                talk.say("subscribe_events", re="all", attachment=[1, 2], vector=vector, **wanted)
                await publish(producer, range(4, 9))
                found = await talk.has_events(2)
                assert [one["feature"]["properties"]["number"] for one in found] == [5, 8]

    run(tmp_path, scene)


def test_what_is_no_module_or_no_modulator_is_refused(tmp_path: Path) -> None:
    async def scene(asked: Asked) -> None:
        async with talking(asked) as talk:
            talk.say("subscribe_events", re="odd", modulators=[{"type": "nothing"}])
            assert "modulators" in (await talk.hears("error", re="odd"))["detail"]
        code = wasmtime.wat2wasm((EXAMPLES / "rising.wat").read_text())
        for _ in range(2):
            stored = await asked.ask("POST", "/modules", bytes(code))
            assert (stored.status, stored.json["module"]) == (200, sha256(code).hexdigest())
        assert (await asked.ask("POST", "/modules", b"(module)")).status == 400

    run(tmp_path, scene)
