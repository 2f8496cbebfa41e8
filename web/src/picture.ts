// From what is known to what is drawn: where each dot stands, and how many are in each room.

import type { Dot } from "./dots.ts";
import { kindOf, type Point, type Seen } from "./objects.ts";
import { isCentre, type Places, scatter } from "./places.ts";

const APART = 0.000_006; // degrees between dots at the very same point, about 0.6 m
const GOLDEN = Math.PI * (3 - Math.sqrt(5));

export type Picture = {
  dots: Map<string, Dot>;
  points: Map<string, Point>;
  counts: Map<string, number>; // of people, by the room's path
};

export function draw(objects: Iterable<Seen>, places: Places, floor: string | null): Picture {
  const dots = new Map<string, Dot>();
  const points = new Map<string, Point>();
  const counts = new Map<string, number>();
  const taken = new Map<string, number>();
  for (const object of objects) {
    const place = places.nearest(object.place);
    // a place that the map does not have is drawn as the nearest above it, which says less
    const exact = place !== null && place.path === object.place && places.isRoom(place);
    const person = kindOf(object) === "person";
    if (exact && person) counts.set(place.path, (counts.get(place.path) ?? 0) + 1);
    const point = pointOf(object, places);
    const at = point
      ? apart(point, taken)
      : place && scatter(object.vid, place, places.standing(place));
    if (!at) continue;
    points.set(object.vid, at);
    dots.set(object.vid, {
      ...mercator(at),
      thing: !person,
      known: point ? "point" : exact ? "place" : "area",
      shown: floor === null || place === null || place.floor === null || place.floor === floor,
    });
  }
  return { dots, points, counts };
}

// The point of an object, unless it is only the centre of the place it is known to be in.
export function pointOf(object: Seen, places: Places): Point | null {
  const place = places.byPath.get(object.place ?? "");
  return object.point && place && isCentre(object.point, place) ? null : object.point;
}

// Dots at the same point are set apart on a spiral: each can be seen and chosen.
function apart(point: Point, taken: Map<string, number>): Point {
  const key = point.join();
  const before = taken.get(key) ?? 0;
  taken.set(key, before + 1);
  if (before === 0) return point;
  const radius = APART * Math.sqrt(before);
  const turn = before * GOLDEN;
  const widen = 1 / Math.max(0.05, Math.cos((point[1] * Math.PI) / 180));
  return [point[0] + radius * Math.cos(turn) * widen, point[1] + radius * Math.sin(turn)];
}

export function mercator([lon, lat]: Point): { x: number; y: number } {
  const y = Math.log(Math.tan(Math.PI / 4 + (lat * Math.PI) / 360));
  return { x: (lon + 180) / 360, y: (1 - y / Math.PI) / 2 };
}
