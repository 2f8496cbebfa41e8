import assert from "node:assert/strict";
import { test } from "node:test";
import { type Answer, countsOf, differing, type Replayed, shownAt } from "./replay.ts";

function feature(id: string, place: string) {
  return { id, geometry: null, properties: { place } };
}

function replayed(changes: [number, number][]): Replayed {
  return {
    frames: changes.length,
    bytes: 1_234,
    updates: changes.length,
    contexts: 2,
    mean_contexts: 1.25,
    mean_wait_ms: 0,
    wait_ms_max: 0,
    ended: "",
    changes,
  };
}

const answer: Answer = {
  from: "2026-11-10T15:00:00Z",
  to: "2026-11-10T15:00:10Z",
  filter: "true",
  tried: { limit_bytes: 2_000 },
  steps: 3,
  features: [feature("ann", "a"), feature("bob", "a"), feature("ann", "b")],
  was: replayed([
    [0, 0],
    [0, 1],
    [1_000, 2],
    [2_000, -2],
  ]),
  would: replayed([
    [0, 0],
    [3_000, 1],
    [4_000, 2],
  ]),
  differences: { seconds: 1, mean_contexts: 1, contexts_max: 2, at_ms: 1_000 },
  channels: null,
};

test("a map at a moment has what was told until then", () => {
  assert.deepEqual([...shownAt(answer, "was", 500)], [["ann", 0], ["bob", 1]]); // biome-ignore format: short
  assert.deepEqual([...shownAt(answer, "was", 2_000)], [["ann", 2]]);
  assert.deepEqual([...shownAt(answer, "would", 2_000)], [["ann", 0]]);
});

test("two maps differ in what one lacks or shows otherwise", () => {
  const at = (ms: number) => differing(shownAt(answer, "was", ms), shownAt(answer, "would", ms));
  assert.deepEqual(at(0), ["bob"]);
  assert.deepEqual(at(1_000), ["ann", "bob"]);
  assert.deepEqual(at(4_000), ["bob"]);
});

test("counts are rows, those of channels only where they were asked for", () => {
  const rows = countsOf(answer);
  assert.deepEqual(rows[1], { name: "bytes", was: "1,234", would: "1,234" });
  assert.equal(rows.length, 7);
  const cost = { updates: 1, transmissions: 9, announcements: 0, channels_max: 1 };
  const more = countsOf({
    ...answer,
    channels: { was: cost, would: { ...cost, transmissions: 3 } },
  });
  assert.deepEqual(more[7], { name: "transmissions on links", was: "9", would: "3" });
});
