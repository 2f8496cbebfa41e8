// Two replays of the same stretch of time: which features each map shows at a moment, and which differ.

import type { Feature } from "./objects.ts";

export type Replayed = {
  frames: number;
  bytes: number;
  updates: number;
  contexts: number;
  mean_contexts: number;
  mean_wait_ms: number;
  wait_ms_max: number;
  ended: string;
  changes: [atMs: number, feature: number][]; // -1 - n: the context of feature n has left
};
export type Cost = {
  updates: number;
  transmissions: number;
  announcements: number;
  channels_max: number;
};
export type Answer = {
  from: string;
  to: string;
  filter: string;
  tried: Record<string, string | number>;
  steps: number;
  features: Feature[];
  was: Replayed;
  would: Replayed;
  differences: { seconds: number; mean_contexts: number; contexts_max: number; at_ms: number };
  channels: { was: Cost; would: Cost } | null;
};

// vid → which of the features its map shows.
export type Shown = Map<string, number>;

export function shownAt(answer: Answer, side: "was" | "would", atMs: number): Shown {
  const shown: Shown = new Map();
  for (const [at, number] of answer[side].changes) {
    if (at > atMs) break;
    const feature = answer.features[number < 0 ? -1 - number : number];
    if (!feature) continue;
    if (number < 0) shown.delete(feature.id);
    else shown.set(feature.id, number);
  }
  return shown;
}

// The vids that two maps show otherwise; what is the same on both has the same number.
export function differing(was: Shown, would: Shown): string[] {
  const vids = new Set([...was.keys(), ...would.keys()]);
  return [...vids].filter((vid) => was.get(vid) !== would.get(vid)).sort();
}

export type Count = { name: string; was: string; would: string };

// What is counted, as rows for people.
export function countsOf(answer: Answer): Count[] {
  const { was, would, channels } = answer;
  const row = (name: string, one: number, other: number, digits = 0): Count => ({
    name,
    was: said(one, digits),
    would: said(other, digits),
  });
  const rows = [
    row("messages to the watcher", was.frames, would.frames),
    row("bytes", was.bytes, would.bytes),
    row("states in them", was.updates, would.updates),
    row("objects shown", was.contexts, would.contexts),
    row("on the map, mean", was.mean_contexts, would.mean_contexts, 1),
    row("wait for a change, mean ms", was.mean_wait_ms, would.mean_wait_ms, 1),
    row("longest wait, ms", was.wait_ms_max, would.wait_ms_max, 1),
  ];
  if (channels) {
    const [one, other] = [channels.was, channels.would];
    rows.push(
      row("transmissions on links", one.transmissions, other.transmissions),
      row("announcements of channels", one.announcements, other.announcements),
      row("channels at once", one.channels_max, other.channels_max),
    );
  }
  return rows;
}

function said(value: number, digits: number): string {
  return value.toLocaleString("en-GB", { maximumFractionDigits: digits });
}
