import assert from "node:assert/strict";
import { test } from "node:test";
import { type Change, type Feature, found, Objects, seen, wordsOf } from "./objects.ts";

const feature = (id: string, place = "lab/2/2001"): Feature => ({
  id,
  geometry: null,
  properties: { place, t_r: "2026-11-16T00:00:00Z", t_d: null, type: "person", name: "Zoë" },
});
const change = (kind: string, id: string, place?: string): Change => ({
  type: `org.roamcast.context.${kind}`,
  subject: id,
  time: "2026-11-16T00:00:01Z",
  data: kind === "left" ? null : feature(id, place),
});

test("changes are applied in order, and the last state counts", () => {
  const objects = new Objects();
  objects.begin([feature("a"), feature("b")], 0);
  objects.end();
  objects.apply([change("changed", "a", "lab/1"), change("left", "b"), change("appeared", "c")]);
  assert.deepEqual([...objects.all.keys()], ["a", "c"]);
  assert.equal(objects.all.get("a")?.place, "lab/1");
  assert.equal(objects.all.get("c")?.changedMs, Date.parse("2026-11-16T00:00:01Z"));
});

test("after a reconnection nobody flickers, and who is gone goes when the set is complete", () => {
  const objects = new Objects();
  objects.begin([feature("a"), feature("b"), feature("c")], 0);
  objects.end();
  objects.begin([feature("a")], 1, true);
  objects.apply([change("appeared", "d"), change("left", "d"), change("appeared", "c")]);
  assert.deepEqual([...objects.all.keys()].sort(), ["a", "b", "c"]);
  objects.end();
  assert.deepEqual([...objects.all.keys()].sort(), ["a", "c"]);
  assert.ok(objects.complete);
});

test("a current set that comes unasked, as when rules have changed, replaces all at once", () => {
  const objects = new Objects();
  objects.begin([feature("a"), feature("b")], 0);
  objects.end();
  objects.begin([feature("b", "lab")], 1);
  assert.deepEqual(
    [...objects.all.values()].map((object) => object.place),
    ["lab"],
  );
});

test("the search takes words in any order, without case and accents", () => {
  const object = seen(feature("visitor-12"), 0);
  assert.ok(found(object, wordsOf("zoe  LAB/2")));
  assert.ok(found(object, wordsOf("")));
  assert.ok(!found(object, wordsOf("zoe printer")));
});
