import assert from "node:assert/strict";
import { test } from "node:test";
import { readView, writeView } from "./view.ts";

test("a view survives the address", () => {
  const view = {
    filter: "type = 'a&b' AND within(place, 'lab/2')",
    object: "visitor#1/é",
    floor: "2",
    camera: { zoom: 18.25, lat: 37.4025, lon: -122.1485 },
    tab: "cast" as const,
  };
  assert.deepEqual(readView(writeView(view)), view);
});

test("what is missing or malformed is left out", () => {
  const plain = { filter: "true", object: null, floor: null, camera: null, tab: "list" as const };
  assert.deepEqual(readView(""), plain);
  assert.deepEqual(readView("#map=a/b/c&filter=&token=secret&tab=x"), plain);
  assert.equal(writeView(plain), "");
});
