import assert from "node:assert/strict";
import { test } from "node:test";
import { joined, MOVES_MAX, moves } from "./feed.ts";
import { type Change, type Seen, seen } from "./objects.ts";

const change = (kind: string, vid: string, place: string | null): Change => ({
  type: `org.roamcast.context.${kind}`,
  subject: vid,
  time: "2026-11-17T12:00:00Z",
  data: kind === "left" ? null : { id: vid, geometry: null, properties: { place } },
});

test("who comes, moves and leaves is news, who stays is not", () => {
  const before = new Map<string, Seen>([
    ["a", seen({ id: "a", geometry: null, properties: { place: "lab" } }, 0)],
  ]);
  const found = moves(
    [
      change("appeared", "b", "lab"),
      change("changed", "a", "lab"),
      change("changed", "a", "hall"),
      change("changed", "a", "hall"),
      change("left", "a", null),
    ],
    before,
  );
  assert.deepEqual(
    found.map(({ kind, vid, from, place }) => [kind, vid, from, place]),
    [
      ["came", "b", null, "lab"],
      ["moved", "a", "lab", "hall"],
      ["left", "a", "hall", null],
    ],
  );
});

test("the feed has a bound, and the newest first", () => {
  const many = Array.from({ length: MOVES_MAX + 5 }, (_, n) => change("appeared", `v${n}`, "lab"));
  const all = joined([], moves(many, new Map()));
  assert.equal(all.length, MOVES_MAX);
  assert.equal(all[0]?.vid, `v${MOVES_MAX + 4}`);
});
