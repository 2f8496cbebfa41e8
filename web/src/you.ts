// You on the map: where you stand, who may see it, and what they would see.

import { computed, signal } from "@preact/signals";
import { reasonOf } from "./api.ts";
import * as mail from "./mail.ts";
import type { Feature } from "./objects.ts";
import { inside } from "./places.ts";
import * as state from "./state.ts";

export type Precision = "hidden" | "presence" | "region" | "building" | "floor" | "room" | "exact";
export type Rule = { viewers: string[]; precision: Precision; past: boolean };
export type Image = { yours: Feature; theirs: Feature | null };

const DEVICE = "page";

export const own = signal<Feature[]>([]);
export const precision = signal<Precision>("exact");
export const past = signal(true);
export const friends = signal("");
export const viewer = signal("");
export const images = signal<Image[] | null>(null);
export const saved = signal<Rule[] | null>(null);
export const trouble = signal<string | null>(null);
export const placing = signal(false); // whether the next click on the map says where you stand

export const rules = computed<Rule[]>(() => {
  const names = friends.value
    .split(",")
    .map((name) => name.trim())
    .filter(Boolean);
  const exact: Rule[] = names.length
    ? [{ viewers: names, precision: "exact", past: past.value }]
    : [];
  // a rule that hides wins over all others, so friends are named by leaving everybody else out
  if (precision.value === "hidden" && names.length) return exact;
  return [{ viewers: ["*"], precision: precision.value, past: past.value }, ...exact];
});

export const unsaved = computed(
  () => saved.value !== null && JSON.stringify(saved.value) !== JSON.stringify(rules.value),
);

async function asking(work: () => Promise<void>): Promise<void> {
  try {
    await work();
    trouble.value = null;
  } catch (error) {
    trouble.value = reasonOf(error);
  }
}

export function load(): Promise<void> {
  return asking(async () => {
    own.value = (await state.service().get<{ contexts: Feature[] }>("/me")).contexts;
    if (own.value.length === 0) return; // no rules are asked for before there is something to rule
    take(await state.service().get<Rule[]>("/me/rules"));
    await look();
  });
}

function take(given: Rule[]): void {
  const everybody = given.find((rule) => rule.viewers.includes("*"));
  const others = given.find((rule) => !rule.viewers.includes("*"));
  saved.value = given.map((rule) => ({
    viewers: rule.viewers,
    precision: rule.precision,
    past: rule.past ?? false,
  }));
  precision.value = everybody?.precision ?? "hidden";
  past.value = (everybody ?? others)?.past ?? false;
  friends.value = others?.viewers.join(", ") ?? "";
}

// Stand in a place; the service draws the vid, and the map gets nothing else of you.
export function stand(path: string, at?: [number, number]): Promise<void> {
  return asking(async () => {
    const place = state.places.value.nearest(path);
    const box = state.places.value.box(place?.path ?? path);
    const centre = box && [(box[0] + box[2]) / 2, (box[1] + box[3]) / 2];
    const [lon, lat] = at ?? centre ?? [0, 0];
    const fix = {
      _type: "location",
      lon,
      lat,
      tst: Math.floor(Date.now() / 1000),
      acc: 3,
      inregions: [path],
      topic: `owntracks/${state.grant.value.subject}/${DEVICE}`,
    };
    await state.service().ask("POST", "/owntracks", fix);
    await mail.loadKeys();
    await load();
  });
}

export function leave(): Promise<void> {
  return asking(async () => {
    await state.service().ask("DELETE", "/me/contexts");
    own.value = [];
    images.value = null;
  });
}

let looking = 0;

// Look into the mirror: what a viewer would see under the rules on the page, saved or not.
export function look(): Promise<void> {
  const turn = ++looking;
  return asking(async () => {
    const body = { rules: rules.value, viewer: viewer.value.trim() || "*" };
    const seen = await state.service().ask<{ images: Image[] }>("POST", "/me/mirror", body);
    if (turn === looking) images.value = seen.images;
  });
}

export function save(): Promise<void> {
  return asking(async () => {
    take(await state.service().ask<Rule[]>("PUT", "/me/rules", rules.value));
    await look();
  });
}

// The deepest place of the shown floor around a point of the map.
export function placeAt(lon: number, lat: number): string | null {
  const { value: places } = state.places;
  let found: string | null = null;
  for (const place of places.byPath.values()) {
    if (place.floor !== null && place.floor !== state.floor.value) continue;
    if (!place.polygons.some((polygon) => inside([lon, lat], polygon))) continue;
    if (found === null || place.path.length >= found.length) found = place.path;
  }
  return found;
}

state.token.subscribe(() => {
  own.value = [];
  images.value = null;
  saved.value = null;
});
