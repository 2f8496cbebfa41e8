import assert from "node:assert/strict";
import { test } from "node:test";
import type { Seen } from "./objects.ts";
import { draw } from "./picture.ts";
import { inside, type PlaceFeature, Places } from "./places.ts";

const W = -122.1485;
const S = 37.4025;
const ring = (x: number, y: number, wide: number, high: number) => [
  [W + x, S + y],
  [W + x + wide, S + y],
  [W + x + wide, S + y + high],
  [W + x, S + y + high],
  [W + x, S + y],
];
const place = (path: string, kind: string, corners: number[][]): PlaceFeature => ({
  type: "Feature",
  geometry: { type: "Polygon", coordinates: [corners] },
  properties: { path, kind },
});
const room = ring(0.0001, 0, 0.00004, 0.00003);
const places = new Places([
  place("c", "campus", ring(-0.001, -0.001, 0.003, 0.003)),
  place("c/yard", "yard", ring(-0.001, -0.001, 0.003, 0.003)),
  place("c/b", "building", ring(0, 0, 0.0004, 0.0002)),
  place("c/b/1", "floor", ring(0, 0, 0.0004, 0.0002)),
  place("c/b/1/101", "office", room),
  place("c/b/2", "floor", ring(0, 0, 0.0004, 0.0002)),
]);
const object = (vid: string, at: string | null, point: [number, number] | null = null): Seen => ({
  vid,
  name: vid,
  place: at,
  point,
  since: null,
  attributes: { type: "person" },
  changedMs: 0,
});

test("dots say how much is known: a point, a room, or an area", () => {
  const { dots, points, counts } = draw(
    [
      object("exact", "c/b/1/101", [W + 0.00011, S + 0.00001]),
      object("room", "c/b/1/101"),
      object("centre", "c/b/1/101", [W + 0.00012, S + 0.000015]),
      object("building", "c/b", [W + 0.0002, S + 0.0001]),
      object("unknown room", "c/b/1/999"),
      object("elsewhere", "x/y"),
    ],
    places,
    "1",
  );
  const known = Object.fromEntries([...dots].map(([vid, dot]) => [vid, dot.known]));
  assert.deepEqual(known, {
    exact: "point",
    room: "place",
    centre: "place",
    building: "area",
    "unknown room": "area",
  });
  assert.equal(counts.get("c/b/1/101"), 3);
  assert.equal(counts.size, 1);
  assert.ok(inside(points.get("room") as [number, number], [room]));
});

test("only the chosen floor is shown, and what lies on none", () => {
  const all = [object("one", "c/b/1/101"), object("two", "c/b/2"), object("out", "c/yard")];
  const { dots } = draw(all, places, "2");
  const shown = [...dots].filter(([, dot]) => dot.shown).map(([vid]) => vid);
  assert.deepEqual(shown, ["two", "out"]);
});

test("who is in the yard is drawn in none of its buildings", () => {
  const building = places.byPath.get("c/b")?.polygons[0] ?? [];
  const all = Array.from({ length: 200 }, (_, n) => object(`v${n}`, "c/yard"));
  const { points } = draw(all, places, null);
  for (const point of points.values()) assert.ok(!inside(point, building));
});

test("people at the same point are told apart", () => {
  const spot: [number, number] = [W, S + 0.0005];
  const { points } = draw(
    Array.from({ length: 50 }, (_, n) => object(`v${n}`, null, spot)),
    places,
    null,
  );
  const apart = new Set([...points.values()].map((point) => point.join()));
  assert.equal(apart.size, 50);
  for (const [lon, lat] of points.values()) {
    assert.ok(Math.hypot(lon - spot[0], lat - spot[1]) < 0.0001); // 10 m
  }
});
