// The places as a tree with floors, and where a dot may stand that is known only to its place.

import type { Point } from "./objects.ts";

export type Ring = number[][];
export type PlaceFeature = {
  type: "Feature";
  geometry:
    | { type: "Polygon"; coordinates: Ring[] }
    | { type: "MultiPolygon"; coordinates: Ring[][] }
    | null;
  properties: Record<string, unknown>;
};

export type Place = {
  path: string;
  kind: string;
  name: string;
  floor: string | null; // the level it lies on; null: on none, or on all of them
  polygons: Ring[][];
  centre: Point | null;
  feature: PlaceFeature;
};

export type Floor = { level: string; name: string; order: number };

export type Box = [west: number, south: number, east: number, north: number];

const OPEN = new Set(["campus", "venue", "yard"]);
export const HOUSES = new Set(["hall", "lab"]); // rooms that may stand alone
const WHOLE = new Set(["campus", "venue", "building", "yard", "floor"]);

export class Places {
  readonly byPath = new Map<string, Place>();
  readonly floors: Floor[];
  readonly #standing = new Map<string, Ring[][]>();

  constructor(features: PlaceFeature[]) {
    const floors = new Map<string, Floor>();
    const sorted = features
      .map((feature) => ({ feature, path: String(feature.properties.path) }))
      .sort((a, b) => a.path.split("/").length - b.path.split("/").length);
    for (const { feature, path } of sorted) {
      const kind = String(feature.properties.kind);
      const name = nameOf(feature.properties, path);
      const above = this.byPath.get(path.slice(0, path.lastIndexOf("/")));
      let floor = above?.floor ?? null;
      if (kind === "floor") {
        const ordinal = feature.properties.ordinal;
        floor = typeof ordinal === "number" ? String(ordinal) : lastOf(path);
        const short = feature.properties.short_name;
        if (!floors.has(floor)) {
          floors.set(floor, {
            level: floor,
            name: typeof short === "string" ? short : floor,
            order: typeof ordinal === "number" ? ordinal : Number(floor),
          });
        }
      }
      const polygons = polygonsOf(feature);
      const centre = polygons.length === 1 ? centroid(polygons[0]?.[0] ?? []) : null;
      this.byPath.set(path, { path, kind, name, floor, polygons, centre, feature });
    }
    this.floors = [...floors.values()].sort((a, b) =>
      Number.isNaN(a.order) || Number.isNaN(b.order)
        ? a.level.localeCompare(b.level)
        : a.order - b.order,
    );
  }

  get rooms(): Place[] {
    return [...this.byPath.values()].filter((place) => !WHOLE.has(place.kind));
  }

  // The place itself, or the nearest one above it that is on the map.
  nearest(path: string | null): Place | null {
    for (let at = path ?? ""; at; at = at.slice(0, Math.max(0, at.lastIndexOf("/")))) {
      const place = this.byPath.get(at);
      if (place) return place;
    }
    return null;
  }

  // What stands in an open place and is not it: who is in the yard is in none of its buildings.
  standing(place: Place): Ring[][] {
    if (!OPEN.has(place.kind)) return [];
    let known = this.#standing.get(place.path);
    if (known === undefined) {
      known = [...this.byPath.values()]
        .filter((other) => other.kind === "building" || HOUSES.has(other.kind))
        .flatMap((other) => other.polygons);
      this.#standing.set(place.path, known);
    }
    return known;
  }

  isRoom(place: Place): boolean {
    return !WHOLE.has(place.kind);
  }

  box(path?: string): Box | null {
    let box: Box | null = null;
    for (const place of this.byPath.values()) {
      if (path !== undefined && place.path !== path) continue;
      for (const polygon of place.polygons) {
        for (const at of polygon[0] ?? []) box = stretched(box, [at[0] as number, at[1] as number]);
      }
    }
    return box;
  }
}

export function stretched(box: Box | null, [lon, lat]: Point): Box {
  if (box === null) return [lon, lat, lon, lat];
  return [
    Math.min(box[0], lon),
    Math.min(box[1], lat),
    Math.max(box[2], lon),
    Math.max(box[3], lat),
  ];
}

// Where to draw what is known only to lie in a place: the same spot for the same vid in the same place,
// evenly spread over its area, and no more than a spot in it.
export function scatter(vid: string, place: Place, avoid: Ring[][] = []): Point | null {
  const polygon = place.polygons[hash(`${vid}\n${place.path}`) % (place.polygons.length || 1)];
  const outer = polygon?.[0];
  if (!polygon || !outer) return null;
  let box: Box | null = null;
  for (const at of outer) box = stretched(box, [at[0] as number, at[1] as number]);
  const [west, south, east, north] = box as Box;
  for (let attempt = 0; attempt < 256; attempt++) {
    const u = hash(`${vid}\n${place.path}\n${attempt}`) / 2 ** 32;
    const v = hash(`${attempt}\n${place.path}\n${vid}`) / 2 ** 32;
    // A tenth is left free at the walls, so that a dot does not seem to stand in the next room; rooms
    // whose polygon has nothing there, such as an L, use all of it.
    const free = attempt < 16 ? 0.1 : 0;
    const at: Point = [
      west + (free + (1 - 2 * free) * u) * (east - west),
      south + (free + (1 - 2 * free) * v) * (north - south),
    ];
    if (inside(at, polygon) && !avoid.some((other) => inside(at, other))) return at;
  }
  return [outer[0]?.[0] as number, outer[0]?.[1] as number];
}

export function inside([x, y]: Point, polygon: Ring[]): boolean {
  let odd = false;
  for (const ring of polygon) {
    for (let i = 0, j = ring.length - 1; i < ring.length; j = i++) {
      const [xi, yi] = ring[i] as [number, number];
      const [xj, yj] = ring[j] as [number, number];
      if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) odd = !odd;
    }
  }
  return odd;
}

// The service gives who may be seen only to their room or building the centre of it as their point.
export function isCentre([lon, lat]: Point, place: Place): boolean {
  const at = place.centre;
  return at !== null && Math.abs(at[0] - lon) < 1e-7 && Math.abs(at[1] - lat) < 1e-7;
}

function centroid(ring: Ring): Point | null {
  const [x0, y0] = (ring[0] ?? [0, 0]) as [number, number];
  let [area, x, y] = [0, 0, 0];
  for (let i = 1; i < ring.length; i++) {
    // from the first corner: products of whole degrees would leave no digits for metres
    const [ax, ay] = [(ring[i - 1]?.[0] as number) - x0, (ring[i - 1]?.[1] as number) - y0];
    const [bx, by] = [(ring[i]?.[0] as number) - x0, (ring[i]?.[1] as number) - y0];
    const cross = ax * by - bx * ay;
    area += cross;
    x += (ax + bx) * cross;
    y += (ay + by) * cross;
  }
  return area === 0 ? null : [x0 + x / (3 * area), y0 + y / (3 * area)];
}

// FNV-1a with a last mixing step (murmur3's): neighbouring vids land far apart.
export function hash(text: string): number {
  let h = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) {
    h = Math.imul(h ^ text.charCodeAt(i), 0x01000193);
  }
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

function polygonsOf({ geometry }: PlaceFeature): Ring[][] {
  if (geometry === null) return [];
  return geometry.type === "Polygon" ? [geometry.coordinates] : geometry.coordinates;
}

function nameOf(properties: Record<string, unknown>, path: string): string {
  return typeof properties.name === "string" ? properties.name : lastOf(path);
}

function lastOf(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1);
}
