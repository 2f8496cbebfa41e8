// Casts that were sent from this tab, what became of them, and about how many the next one would reach.

import { effect, signal } from "@preact/signals";
import { Problem, reasonOf } from "./api.ts";
import * as state from "./state.ts";

export type Tense = "historic" | "present" | "future" | "hybrid";
export type Counted = { about: number; places: { place: string; about: number }[] };
export type Audience = { tense: Tense; past: Counted; present: Counted; future: number | null };

export type Progress = {
  id: string;
  tense: Tense;
  state: string;
  expires: string;
  nodes_asked: number;
  nodes_answered: number;
  found: number;
  delivered: number;
  waiting: number;
  unreachable: number;
  refused: number;
};

export type Why = { id: string; filter: string; lines: string[] };
export type Sent = { id: string; text: string; filter: string; atMs: number };

const KEPT = "roamcast.casts"; // in sessionStorage: it ends with the tab
const SENT_MAX = 20;
const PAUSE_MS = 700;
const LOOK_MS = 1_500;

export const text = signal("");
export const lifetimeS = signal(3_600);
export const priority = signal("routine");
export const audience = signal<Audience | null>(null);
export const audienceOf = signal("");
export const trouble = signal<string | null>(null);
export const sending = signal(false);
export const sent = signal<Sent[]>(JSON.parse(sessionStorage.getItem(KEPT) ?? "[]"));
export const progress = signal<Record<string, Progress>>({});
export const reasons = signal<Record<string, Why>>({});

function bodyOf(said: string): object {
  return {
    filter: state.filter.value,
    text: said,
    priority: priority.value,
    lifetime_s: lifetimeS.value,
  };
}

// Count the audience; the service allows one sender few previews, so a dragged time bar asks once.
export async function preview(): Promise<void> {
  const asked = state.filter.value;
  audienceOf.value = asked;
  try {
    const found = await state
      .service()
      .ask<Audience>("POST", "/casts?preview=true", bodyOf(text.value.trim() || "…"));
    if (asked !== state.filter.value) return;
    audience.value = found;
    trouble.value = null;
  } catch (error) {
    if (asked !== state.filter.value) return;
    audience.value = null;
    trouble.value = reasonOf(error);
  }
}

let timer = 0;
effect(() => {
  const wanted = state.filter.value;
  const open = state.tab.value === "cast" && state.token.value !== null;
  clearTimeout(timer);
  if (!open || wanted === audienceOf.peek()) return;
  audience.value = null;
  trouble.value = null;
  timer = window.setTimeout(() => void preview(), PAUSE_MS);
});

export async function send(): Promise<void> {
  const said = text.value.trim();
  if (!said || sending.value) return;
  sending.value = true;
  try {
    const made = await state.service().ask<Progress>("POST", "/casts", bodyOf(said));
    const entry = { id: made.id, text: said, filter: state.filter.value, atMs: Date.now() };
    sent.value = [entry, ...sent.value].slice(0, SENT_MAX);
    progress.value = { ...progress.value, [made.id]: made };
    sessionStorage.setItem(KEPT, JSON.stringify(sent.value));
    text.value = "";
    trouble.value = null;
  } catch (error) {
    trouble.value = reasonOf(error);
  }
  sending.value = false;
}

export async function cancel(id: string): Promise<void> {
  try {
    await state.service().ask("DELETE", `/casts/${encodeURIComponent(id)}`);
  } catch (error) {
    trouble.value = reasonOf(error);
  }
  await look(id);
}

export async function ask(id: string): Promise<void> {
  const { [id]: known, ...others } = reasons.value;
  if (known) {
    reasons.value = others;
    return;
  }
  try {
    const told = await state.service().get<Why>(`/casts/${encodeURIComponent(id)}/why`);
    reasons.value = { ...others, [id]: told };
  } catch (error) {
    trouble.value = reasonOf(error);
  }
}

async function look(id: string): Promise<void> {
  try {
    const found = await state.service().get<Progress>(`/casts/${encodeURIComponent(id)}`);
    progress.value = { ...progress.value, [id]: found };
    if (reasons.value[id]) {
      const told = await state.service().get<Why>(`/casts/${encodeURIComponent(id)}/why`);
      reasons.value = { ...reasons.value, [id]: told };
    }
  } catch (error) {
    if (error instanceof Problem && error.status === 404) forget(id);
  }
}

export function forget(id: string): void {
  sent.value = sent.value.filter((one) => one.id !== id);
  sessionStorage.setItem(KEPT, JSON.stringify(sent.value));
}

setInterval(() => {
  if (document.hidden || state.tab.value !== "cast" || state.connection.value !== "open") return;
  for (const { id } of sent.value) {
    const known = progress.value[id];
    if (!known || known.state === "live") void look(id);
  }
}, LOOK_MS);
