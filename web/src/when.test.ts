import assert from "node:assert/strict";
import { test } from "node:test";
import { datetimeOf, offset, readWhen, type When, writeWhen } from "./when.ts";

const NOW = Date.parse("2026-11-17T12:00:00Z");
const at = (minutes: number) => NOW + minutes * 60_000;

test("a moment of the past is a term at the end, and is read back", () => {
  const when: When = { tense: "past", fromMs: at(-10), toMs: at(-10) };
  const text = writeWhen("within(place, 'campus/hall')", when);
  assert.equal(
    text,
    "within(place, 'campus/hall') AND overlaps(time, TIMESTAMP('2026-11-17T11:50:00Z'))",
  );
  assert.deepEqual(readWhen(text, NOW), { base: "within(place, 'campus/hall')", when });
  assert.equal(datetimeOf(when), "2026-11-17T11:50:00Z");
});

test("everything at a moment is the term alone", () => {
  const when: When = { tense: "past", fromMs: at(-1), toMs: at(-1) };
  for (const base of ["", "true"]) {
    assert.equal(writeWhen(base, when), "overlaps(time, TIMESTAMP('2026-11-17T11:59:00Z'))");
  }
  assert.deepEqual(readWhen(writeWhen("", when), NOW), { base: "", when });
});

test("OR is bracketed, and the brackets go again", () => {
  const when: When = { tense: "future", fromMs: at(0), toMs: at(60) };
  for (const base of [
    "a = 1 OR b = ')('",
    "(a = 1 OR b = 2) AND (c = 3 OR d = 4)",
    "c = '(' OR d = 1",
    "a = ' OR '",
  ]) {
    const text = writeWhen(base, when);
    assert.deepEqual(readWhen(text, NOW), { base, when });
  }
});

test("a window of the past asks for the window", () => {
  const text = "a = 1 AND overlaps(time, INTERVAL('2026-11-17T11:00:00Z', '2026-11-17T11:30:00Z'))";
  const { when } = readWhen(text, NOW);
  assert.equal(when.tense, "past");
  assert.equal(datetimeOf(when as never), "2026-11-17T11:00:00Z/2026-11-17T11:30:00Z");
});

test("what the time bar did not write stays as it is", () => {
  for (const text of [
    "during(time, INTERVAL('2026-11-17T11:00:00Z', '2026-11-17T11:30:00Z'))",
    "overlaps(time, TIMESTAMP('2026-11-17T12:30:00Z'))",
    "overlaps(time, TIMESTAMP('2026-13-99T99:00:00Z'))",
    "NOT overlaps(time, TIMESTAMP('2026-11-17T11:00:00Z'))",
    "type = 'a'",
    "a = 1 OR b = 2 AND overlaps(time, TIMESTAMP('2026-11-17T11:00:00Z'))",
  ]) {
    assert.deepEqual(readWhen(text, NOW), { base: text, when: { tense: "now" } });
  }
});

test("how far away, in words", () => {
  assert.deepEqual([-10_000, 90_000, 600_000, 3_600_000, 5_400_000].map(offset), [
    "10 s",
    "1 min 30 s",
    "10 min",
    "1 h",
    "1 h 30 min",
  ]);
});
