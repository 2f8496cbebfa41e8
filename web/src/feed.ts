// Who came, moved and left, of the filter that is followed: the last of them, newest first.

import { nameOf } from "./names.ts";
import { type Change, kindIn, type Seen } from "./objects.ts";

export type Move = {
  kind: "came" | "moved" | "left";
  vid: string;
  name: string;
  place: string | null;
  from: string | null;
  atMs: number;
  key: number;
};

export const MOVES_MAX = 200;

let count = 0;

// What of some changes is news; `before` are the objects as they were. A change within a place is none.
export function moves(changes: Change[], before: ReadonlyMap<string, Seen>): Move[] {
  const places = new Map<string, string | null>();
  const found: Move[] = [];
  for (const { type, subject: vid, time, data } of changes) {
    const known = before.get(vid);
    const from = places.has(vid) ? (places.get(vid) ?? null) : (known?.place ?? null);
    const given = data?.properties.place;
    const place = typeof given === "string" ? given : null;
    const name = known?.name ?? nameOf(vid, data ? kindIn(data.properties) : undefined);
    const move = { vid, name, atMs: Date.parse(time) };
    if (type.endsWith(".left"))
      found.push({ ...move, kind: "left", place: null, from, key: ++count });
    else if (type.endsWith(".appeared") && !known)
      found.push({ ...move, kind: "came", place, from: null, key: ++count });
    else if (place !== from) found.push({ ...move, kind: "moved", place, from, key: ++count });
    places.set(vid, place);
  }
  return found;
}

export function joined(known: Move[], fresh: Move[]): Move[] {
  return [...fresh.reverse(), ...known].slice(0, MOVES_MAX);
}
