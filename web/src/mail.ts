// The mailbox: sealed mail from the trusted node, opened here with the person's own keys.

import { signal } from "@preact/signals";
import { Problem, reasonOf } from "./api.ts";
import { base64, isSigned, type Letter, openLetter, vidOf } from "./letters.ts";
import * as state from "./state.ts";

export type Mail = {
  id: string;
  vid: string;
  sender: string;
  kind: string;
  arrivedMs: number;
  letter: Letter | null; // null: no key of this person's here opens it
  doubt: string; // why its reason can not be relied on; empty: it is signed by this service
};

type Sealed = {
  id: string;
  vid: string;
  sender: string;
  kind: string;
  sealed: string;
  arrived: string;
};
export type Reach = { senders: string[]; stopped: string[]; [name: string]: unknown };

const LOOK_MS = 4_000;
const KEYS_EVERY = 5; // looks

export const mails = signal<Mail[]>([]);
export const reach = signal<Reach | null>(null);
export const trouble = signal<string | null>(null);
export const seen = signal<ReadonlySet<string>>(new Set());
export const vids = signal<string[]>([]); // held for this person, the newest last

let seeds = new Map<string, Uint8Array>();
let off = false; // this service runs no trusted node, or the token may not ask
let looked = 0;

export async function loadKeys(): Promise<void> {
  const { keys } = await state
    .service()
    .get<{ keys: { credential: string; seed: string }[] }>("/me/keys");
  seeds = new Map(keys.map((one) => [vidOf(one.credential), base64(one.seed)]));
  vids.value = [...seeds.keys()];
}

// Look for mail. The trusted node knows nobody who has drawn no vids, so there is nothing to ask for
// them; a phone may draw some at any time.
export async function load(): Promise<void> {
  try {
    if (seeds.size === 0 && looked++ % KEYS_EVERY === 0) await loadKeys();
    if (seeds.size === 0) return;
    const found = await state.service().get<{ mails: Sealed[] }>("/mailbox");
    if (found.mails.some(({ vid }) => !seeds.has(vid))) await loadKeys();
    const known = new Map(mails.value.map((mail) => [mail.id, mail]));
    const opened = found.mails.map(async (mail) => known.get(mail.id) ?? (await open(mail)));
    mails.value = (await Promise.all(opened)).reverse();
    reach.value ??= await state.service().get<Reach>("/me/reach");
    trouble.value = null;
  } catch (error) {
    if (error instanceof Problem && (error.status === 404 || error.status === 403)) off = true;
    trouble.value = reasonOf(error);
  }
}

async function open(mail: Sealed): Promise<Mail> {
  const seed = seeds.get(mail.vid);
  let letter: Letter | null = null;
  try {
    if (seed) letter = await openLetter(base64(mail.sealed), seed, mail.id, mail.vid);
  } catch {
    letter = null; // sealed to another key, or changed on its way
  }
  const { id, vid, sender, kind } = mail;
  const doubt = letter === null ? "" : await doubtOf(letter, mail);
  return { id, vid, sender, kind, letter, doubt, arrivedMs: Date.parse(mail.arrived) };
}

let nodeKey: Promise<string> | null = null;

async function doubtOf(letter: Letter, { id, vid, sender }: Sealed): Promise<string> {
  if (letter.receipt === null) return "not signed";
  try {
    if (!(await isSigned(letter, id, vid, sender)))
      return "the signature is wrong: do not believe it";
    nodeKey ??= state
      .service()
      .get<{ key: string }>("/receipts/key")
      .then(({ key }) => key);
    const own = base64(await nodeKey);
    const same = own.every((byte, at) => byte === letter.receipt?.key[at]);
    return same ? "" : `signed by ${letter.receipt.node}, another node than this one`;
  } catch {
    nodeKey = null;
    return "its signature could not be checked";
  }
}

export async function remove(id: string): Promise<void> {
  await state.service().ask("POST", `/mailbox/${encodeURIComponent(id)}/ack`);
  mails.value = mails.value.filter((mail) => mail.id !== id);
}

// Refuse a sender from now on, or take that back; the trusted node holds the rule.
export async function stop(sender: string, stopped: boolean): Promise<void> {
  try {
    const known = await state.service().get<Reach>("/me/reach");
    const others = known.stopped.filter((name) => name !== sender);
    const wanted = { ...known, stopped: stopped ? [...others, sender] : others };
    reach.value = await state.service().ask<Reach>("PUT", "/me/reach", wanted);
  } catch (error) {
    trouble.value = reasonOf(error);
  }
}

export function textOf(letter: Letter): string {
  if (/^text\/|xml|json/.test(letter.mediaType)) return new TextDecoder().decode(letter.payload);
  return `${letter.payload.length} bytes of ${letter.mediaType}`;
}

export function markSeen(): void {
  if (mails.value.every(({ id }) => seen.value.has(id))) return;
  seen.value = new Set(mails.value.map(({ id }) => id));
}

state.token.subscribe((token) => {
  off = !state.grant.value.scopes.includes("subscribe");
  looked = 0;
  seeds = new Map();
  mails.value = [];
  reach.value = null;
  vids.value = [];
  if (token !== null && !off) setTimeout(() => void load(), 0);
});
setInterval(() => {
  if (!off && !document.hidden && state.connection.value === "open") void load();
}, LOOK_MS);
