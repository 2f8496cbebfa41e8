import assert from "node:assert/strict";
import { test } from "node:test";
import { inside, type PlaceFeature, Places, scatter } from "./places.ts";

const square = (x: number, y: number, size: number) => [
  [
    [x, y],
    [x + size, y],
    [x + size, y + size],
    [x, y + size],
    [x, y],
  ],
];
const place = (
  path: string,
  kind: string,
  coordinates = square(0, 0, 10),
  more = {},
): PlaceFeature => ({
  type: "Feature",
  geometry: { type: "Polygon", coordinates },
  properties: { path, kind, ...more },
});
const L = [
  [
    [0, 0],
    [10, 0],
    [10, 1],
    [1, 1],
    [1, 10],
    [0, 10],
    [0, 0],
  ],
];

test("rooms know their floor, and what lies on none knows none", () => {
  const places = new Places([
    place("lab/2/2001", "office"),
    place("lab", "building"),
    place("lab/10", "floor"),
    place("lab/2", "floor"),
    place("lab/lift", "lift"),
  ]);
  assert.deepEqual(
    places.floors.map((floor) => floor.level),
    ["2", "10"],
  );
  assert.equal(places.byPath.get("lab/2/2001")?.floor, "2");
  assert.equal(places.byPath.get("lab/lift")?.floor, null);
  assert.deepEqual(
    places.rooms.map((room) => room.path),
    ["lab/lift", "lab/2/2001"],
  );
});

test("an ordinal orders the floors of buildings that name them differently", () => {
  const places = new Places([
    place("a", "building"),
    place("a/EG", "floor", undefined, { ordinal: 0, short_name: "EG" }),
    place("a/UG", "floor", undefined, { ordinal: -1, short_name: "UG" }),
  ]);
  assert.deepEqual(
    places.floors.map((floor) => floor.name),
    ["UG", "EG"],
  );
});

test("a place that is not on the map is drawn as the nearest above it", () => {
  const places = new Places([place("lab", "building")]);
  assert.equal(places.nearest("lab/7/7012")?.path, "lab");
  assert.equal(places.nearest("elsewhere"), null);
  assert.equal(places.nearest(null), null);
});

test("a scattered dot stays where it is, inside, and two of them apart", () => {
  const room = new Places([place("r", "office", L)]).byPath.get("r");
  assert.ok(room);
  const spots = new Set<string>();
  for (let n = 0; n < 500; n++) {
    const spot = scatter(`v${n}`, room);
    assert.ok(spot && inside(spot, L));
    assert.deepEqual(scatter(`v${n}`, room), spot);
    spots.add(spot.join());
  }
  assert.equal(spots.size, 500);
});

test("a place without a polygon has no spot", () => {
  const places = new Places([
    { type: "Feature", geometry: null, properties: { path: "r", kind: "office" } },
  ]);
  const room = places.byPath.get("r");
  assert.ok(room);
  assert.equal(scatter("v", room), null);
});
