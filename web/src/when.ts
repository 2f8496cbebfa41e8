// The time of a view is a term at the end of its filter, so that what is seen, taken away and cast to is
// one text. The time bar reads and writes the forms below; other terms about time are the writer's own.
//
//   past     overlaps(time, TIMESTAMP('T'))                  who was there at T
//   past     overlaps(time, INTERVAL('A', 'B'))              who was there between A and B
//   future   start_by(time, INTERVAL('A', 'B'))              who comes between A and B

import { EVERYTHING } from "./view.ts";

export type When =
  | { tense: "now" }
  | { tense: "past"; fromMs: number; toMs: number }
  | { tense: "future"; fromMs: number; toMs: number };

export type Timed = { base: string; when: When };

const STAMP = "'(\\d{4}-\\d\\d-\\d\\dT[0-9:.]+Z)'";
const TERM = new RegExp(
  `^(?:([\\s\\S]*?)\\s+AND\\s+)?(?:(overlaps)\\(time, TIMESTAMP\\(${STAMP}\\)\\)|(overlaps|start_by)\\(time, INTERVAL\\(${STAMP}, ${STAMP}\\)\\))\\s*$`,
);
const NOW: When = { tense: "now" };

export function readWhen(text: string, nowMs: number): Timed {
  const found = TERM.exec(text);
  if (!found) return { base: text, when: NOW };
  const [, given, , at, name, from, to] = found;
  const fromMs = Date.parse((at ?? from) as string);
  const toMs = Date.parse((at ?? to) as string);
  if (Number.isNaN(fromMs) || Number.isNaN(toMs)) return { base: text, when: NOW };
  const base = unwrapped(given ?? "");
  if (given !== undefined && loose(given)) return { base: text, when: NOW }; // AND binds to its end
  if (name === "start_by") return { base, when: { tense: "future", fromMs, toMs } };
  if (toMs > nowMs) return { base: text, when: NOW }; // it still goes on: the live map answers it
  return { base, when: { tense: "past", fromMs, toMs } };
}

export function writeWhen(base: string, when: When): string {
  if (when.tense === "now") return base;
  const term = termOf(when);
  const kept = base.trim();
  if (!kept || kept === EVERYTHING) return term;
  return `${loose(kept) ? `(${kept})` : kept} AND ${term}`;
}

function termOf(when: Exclude<When, { tense: "now" }>): string {
  const [from, to] = [stamp(when.fromMs), stamp(when.toMs)];
  if (when.tense === "future") return `start_by(time, INTERVAL('${from}', '${to}'))`;
  return from === to
    ? `overlaps(time, TIMESTAMP('${from}'))`
    : `overlaps(time, INTERVAL('${from}', '${to}'))`;
}

// What the service's `datetime` asks for.
export function datetimeOf(when: { fromMs: number; toMs: number }): string {
  const [from, to] = [stamp(when.fromMs), stamp(when.toMs)];
  return from === to ? from : `${from}/${to}`;
}

// Whole seconds, down: "from now on" must not begin after whoever comes next.
export function stamp(ms: number): string {
  return new Date(Math.floor(ms / 1000) * 1000).toISOString().replace(".000Z", "Z");
}

// Whether an OR stands outside brackets and quotes.
function loose(text: string): boolean {
  return /\bOR\b/i.test(bare(text));
}

// The text without what stands in quotes and brackets; brackets without their other half stay.
function bare(text: string): string {
  let left = text.replace(/'(?:[^']|'')*'/g, "''");
  for (let before = ""; before !== left; ) {
    before = left;
    left = left.replace(/\([^()]*\)/g, "");
  }
  return left;
}

// Brackets that `writeWhen` set go again.
function unwrapped(text: string): string {
  const kept = text.trim();
  const inner = kept.slice(1, -1);
  const whole = kept === `(${inner})` && !/[()]/.test(bare(inner));
  return whole && loose(inner) ? inner : kept;
}

// "12:04:31" today, with its day otherwise.
export function clock(ms: number, nowMs: number): string {
  const at = new Date(ms);
  const time = at.toLocaleTimeString("en-GB");
  const day = at.toDateString() === new Date(nowMs).toDateString();
  return day
    ? time
    : `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
}

export function offset(ms: number): string {
  const seconds = Math.round(Math.abs(ms) / 1000);
  const [h, m, s] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
  if (h) return m ? `${h} h ${m} min` : `${h} h`;
  if (m) return s && m < 10 ? `${m} min ${s} s` : `${m} min`;
  return `${s} s`;
}
