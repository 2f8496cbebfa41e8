// What the service has sent of the current filter: one entry for each vid, the latest state only.

import { nameOf } from "./names.ts";

export type Point = [lon: number, lat: number];

export type Feature = {
  id: string;
  geometry: { type: "Point"; coordinates: number[] } | null;
  properties: Record<string, unknown>;
};

export type Seen = {
  vid: string;
  name: string; // for people; filters and links have the vid
  place: string | null;
  point: Point | null;
  since: string | null;
  attributes: Record<string, unknown>;
  changedMs: number;
};

export type Change = { type: string; subject: string; time: string; data: Feature | null };

const LEFT = "org.roamcast.context.left";
const OWN = new Set(["place", "t_r", "t_d"]);

export function seen(feature: Feature, nowMs: number): Seen {
  const { place, t_r } = feature.properties;
  const at = feature.geometry?.coordinates;
  return {
    vid: feature.id,
    name: nameOf(feature.id, kindIn(feature.properties)),
    place: typeof place === "string" ? place : null,
    point: at && at.length >= 2 ? [at[0] as number, at[1] as number] : null,
    since: typeof t_r === "string" ? t_r : null,
    attributes: Object.fromEntries(
      Object.entries(feature.properties).filter(([name]) => !OWN.has(name)),
    ),
    changedMs: nowMs,
  };
}

export class Objects {
  readonly all = new Map<string, Seen>();
  complete = false;
  // The vids of the current set that is being sent.
  #fresh: Set<string> | null = null;

  // A current set replaces what was known: the filter is another, or rules have changed what may be
  // seen. After a reconnection what was known stays until the whole set has come, so that nothing
  // flickers.
  begin(features: Feature[], nowMs: number, returning = false): void {
    this.complete = false;
    if (!returning) this.all.clear();
    this.#fresh = new Set();
    for (const feature of features) {
      // when it last changed is not said; it was here since t_r at least
      const since = Date.parse(String(feature.properties.t_r));
      this.#put(feature, Number.isNaN(since) ? nowMs : since);
    }
  }

  apply(changes: Change[]): void {
    for (const change of changes) {
      if (change.type === LEFT || change.data === null) {
        this.all.delete(change.subject);
        this.#fresh?.delete(change.subject);
      } else {
        this.#put(change.data, Date.parse(change.time));
      }
    }
  }

  end(): void {
    if (this.#fresh) {
      for (const vid of [...this.all.keys()]) if (!this.#fresh.has(vid)) this.all.delete(vid);
    }
    this.#fresh = null;
    this.complete = true;
  }

  #put(feature: Feature, nowMs: number): void {
    this.#fresh?.add(feature.id);
    this.all.set(feature.id, seen(feature, nowMs));
  }
}

export function label(value: unknown): string {
  if (typeof value === "object" && value !== null && "timestamp" in value) {
    return String(value.timestamp);
  }
  return String(value);
}

export function kindOf(object: Seen): string {
  return kindIn(object.attributes);
}

export function kindIn({ type }: Record<string, unknown>): string {
  return typeof type === "string" && type ? type : "object";
}

// Case and accents aside, whether every word stands somewhere in what is known of an object.
export function found(object: Seen, words: string[]): boolean {
  if (words.length === 0) return true;
  const values = Object.values(object.attributes).map(label).join(" ");
  const text = plain(`${object.vid} ${object.name} ${object.place ?? ""} ${values}`);
  return words.every((word) => text.includes(word));
}

export function wordsOf(text: string): string[] {
  return plain(text).split(/\s+/).filter(Boolean);
}

function plain(text: string): string {
  return text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
}
