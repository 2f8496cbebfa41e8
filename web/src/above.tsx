// What lies over the map: its signs, whose past it shows, and words at the pointer.

import { signal } from "@preact/signals";
import * as state from "./state.ts";

const WIDE_PX = 100; // half of the widest words at the pointer
const HIGH_PX = 40; // what they need above it

type Pointed = { says: string; x: number; y: number };
const pointed = signal<Pointed | null>(null);

// Say what the pointer is at: an object, else a room with how many are in it, else nothing.
export function pointAt(
  vid: string | null,
  path: string | null,
  { x, y } = { x: 0, y: 0 },
  width = 0,
): void {
  const says = vid === null ? roomSays(path) : saysOf(vid);
  const inside = Math.min(Math.max(x, WIDE_PX), width - WIDE_PX);
  pointed.value = says ? { says, x: inside, y: Math.max(y, HIGH_PX) } : null;
}

function saysOf(vid: string): string {
  const object = state.objects.all.get(vid);
  return object ? `${object.name}, ${object.place ?? "somewhere"}` : "";
}

function roomSays(path: string | null): string {
  const place = path === null ? undefined : state.places.value.byPath.get(path);
  if (!place || !state.places.value.isRoom(place)) return "";
  const count = state.picture.value.counts.get(place.path) ?? 0; // of whom the filter asks for
  return count === 0
    ? place.path
    : `${place.path}: ${count === 1 ? "1 person" : `${count} people`}`;
}

export function Tip() {
  const at = pointed.value;
  if (at === null) return null;
  return (
    <span class="tip" aria-hidden="true" style={{ left: `${at.x}px`, top: `${at.y}px` }}>
      {at.says}
    </span>
  );
}

// Where several brokers are linked, each answers for its own past alone.
export function Past() {
  if (state.when.value.tense !== "past" || !state.node.value) return null;
  return (
    <p class="map-note">
      The past of broker <b>{state.node.value}</b> alone, with rounded times: who stayed is shown a
      little longer, and places of other brokers are empty.
    </p>
  );
}

export function Legend() {
  return (
    <ul class="legend" aria-label="Signs on the map">
      <li>
        <i class="sign person" /> person
      </li>
      <li>
        <i class="sign thing" /> thing
      </li>
      <li>
        <i class="sign person hollow" />{" "}
        {state.narrow.matches ? "in the room" : "somewhere in the room"}
      </li>
      <li>
        <i class="sign person faint" /> in the area
      </li>
      <li class="filling">
        <i class="ramp" /> 0 to 10 people in a room
      </li>
    </ul>
  );
}
