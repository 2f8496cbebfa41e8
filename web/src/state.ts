// Everything the page knows, as signals. The session changes objects as often as it likes; `version`
// rises at most once a frame, and whoever draws depends on it.

import { batch, computed, effect, signal, untracked } from "@preact/signals";
import { Api, granted, Problem, reasonOf, type Template, without } from "./api.ts";
import type { Vocabulary } from "./completion.ts";
import { joined, type Move, moves } from "./feed.ts";
import { type Feature, found, Objects, type Point, type Seen, wordsOf } from "./objects.ts";
import { draw } from "./picture.ts";
import { Places } from "./places.ts";
import { keepViews, type Saved, savedViews, withoutView, withView } from "./saved.ts";
import { type Answer, type Line, type Numbers, Session, subprotocols } from "./session.ts";
import { EVERYTHING, readView, sharedToken, type Tab, type View, writeView } from "./view.ts";
import { datetimeOf, readWhen, type When, writeWhen } from "./when.ts";

const KEPT = "roamcast.token"; // in sessionStorage: it ends with the tab
const THEME = "roamcast.theme";
const BEAT_MS = 10_000;
const NUMBERS_MS = 2_000;
const TRAIL_MAX = 200;
const DRAFT = "draft ";
const PAST_PAGE = 10_000;
const VOCABULARY_MS = 30_000;
const FIXED = new Set(["vid", "place", "geometry", "time"]);

export type Wrong = { detail: string; position: number | null };
export type Theme = "light" | "dark";

const first = readView(location.hash);
const shared = sharedToken(location.hash);
if (shared !== null) {
  // out of the address at once, so that neither history nor a bookmark has it
  history.replaceState(null, "", location.pathname + writeView(first));
  sessionStorage.setItem(KEPT, shared);
}

export const token = signal<string | null>(sessionStorage.getItem(KEPT));
export const grant = computed(() => granted(token.value ?? ""));
export const refusal = signal<string | null>(null);
export const connection = signal<Session["state"]>("connecting");
export const places = signal<Places>(new Places([]));
export const templates = signal<Template[]>([]);
export const vocabulary = signal<Vocabulary>({ attributes: new Map(), places: [] });
export const numbers = signal<Numbers | null>(null);
export const rates = signal<{ updates: number; transmissions: number | null } | null>(null);

export const objects = new Objects();
export const version = signal(0);
export const complete = signal(false);
export const answered = signal<string | null>(null); // the filter whose current set is on the map
export const feed = signal<Move[]>([]);
export let heard = 0; // changes that have come by the session

export const filter = signal(first.filter);
export const draft = signal(first.filter === EVERYTHING ? "" : first.filter);
export const wrong = signal<Wrong | null>(null);
export const matches = signal<number | null>(null);
export const search = signal("");
export const floor = signal<string | null>(first.floor);
export const chosen = signal<string | null>(first.object);
export const following = signal(false);
export const camera = signal<View["camera"]>(first.camera);
export const goTo = signal<View["camera"]>(null); // where a saved view wants the map to be
export const trail = signal<Point[]>([]);
export const tab = signal<Tab>(first.tab);
export const sheet = signal(first.tab !== "list"); // on a narrow screen: whether the panel covers the map
export const taking = signal(false); // whether "take this away" is open

export const narrow = matchMedia("(width < 720px)"); // as in style.css
export const still = matchMedia("(prefers-reduced-motion: reduce)").matches;

const dark = matchMedia("(prefers-color-scheme: dark)");
const systemTheme = signal<Theme>(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => {
  systemTheme.value = dark.matches ? "dark" : "light";
});
const ownTheme = signal<Theme | null>(localStorage.getItem(THEME) as Theme | null);
export const theme = computed<Theme>(() => ownTheme.value ?? systemTheme.value);

export function turnTheme(): void {
  ownTheme.value = theme.value === "dark" ? "light" : "dark";
  localStorage.setItem(THEME, ownTheme.value);
}

export const picture = computed(() => {
  version.value;
  return draw(objects.all.values(), places.value, floor.value);
});

export const listed = computed<Seen[]>(() => {
  version.value;
  const words = wordsOf(search.value);
  return [...objects.all.values()]
    .filter((object) => found(object, words))
    .sort((a, b) => (a.name === b.name ? 0 : a.name < b.name ? -1 : 1));
});

export const chosenObject = computed<Seen | null>(() => {
  version.value;
  return (chosen.value !== null && objects.all.get(chosen.value)) || null;
});

export const now = signal(Date.now());

// The time that the filter names; the map shows the past as it was then, everything else live.
export const timed = computed(() => readWhen(filter.value, now.value));
export const when = computed<When>(() => timed.value.when);
export const pastBegins = signal<number | null>(null);
export const asOf = signal<number | null>(null); // the moment of the past that is on the map
export const trouble = signal<string | null>(null);
export const node = signal<string | null>(null); // this broker's name; empty: it has no neighbours

let session: Session | null = null;
let api: Api | null = null;
let returning = false; // whether the next current set is the first of a new connection
let asked = false; // whether a frame is already ordered
let arrived: string | null = null; // the filter whose current set came last

function changed(): void {
  if (asked) return;
  asked = true;
  const frame = () => {
    asked = false;
    batch(() => {
      complete.value = objects.complete;
      answered.value = arrived;
      version.value++;
      remember();
    });
  };
  // a page in the background gets no animation frames; what it knows stays right all the same
  if (document.hidden) setTimeout(frame, 250);
  else requestAnimationFrame(frame);
}

function remember(): void {
  const vid = chosen.value;
  const at = vid === null ? undefined : picture.value.points.get(vid);
  const last = trail.value.at(-1);
  if (at && (!last || last[0] !== at[0] || last[1] !== at[1])) {
    trail.value = [...trail.value.slice(1 - TRAIL_MAX), at];
  }
}

export function choose(vid: string | null): void {
  batch(() => {
    if (chosen.value !== vid) trail.value = [];
    chosen.value = vid;
    following.value = false;
    const object = vid === null ? undefined : objects.all.get(vid);
    const place = object && places.value.nearest(object.place);
    if (place?.floor) floor.value = place.floor;
    remember();
  });
}

// Show what stands in the query bar; an empty bar asks for everything.
export function apply(text: string): void {
  const wanted = text.trim() ? text : EVERYTHING; // as it is: positions count its spaces, too
  clearTimeout(checkTimer);
  batch(() => {
    draft.value = text;
    wrong.value = null;
    filter.value = wanted;
  });
  follow();
}

// Move the view to another time: the filter is rewritten, and shown.
export function move(to: When): void {
  const base = timed.value.base === EVERYTHING ? "" : timed.value.base;
  apply(writeWhen(base, to));
}

function follow(): void {
  if (when.value.tense === "past") {
    session?.leave();
    void askPast();
    return;
  }
  asOf.value = null;
  trouble.value = null;
  session?.follow(filter.value);
}

let asking = false; // one question at a time; a newer one is asked when it is answered

// Ask for the map as it was. What is known stays until the answer is there, so nothing flickers.
async function askPast(): Promise<void> {
  if (asking) return;
  asking = true;
  try {
    for (let text = ""; text !== filter.value && when.value.tense === "past" && api; ) {
      text = filter.value;
      const at = when.value;
      // rounded times reach beyond the horizon; nobody is shown where nothing is kept
      const gone = at.toMs < (pastBegins.value ?? 0);
      const features = gone ? [] : await pastOf(api, text, datetimeOf(at));
      if (when.value.tense !== "past") return;
      objects.begin(features, Date.now(), true);
      objects.end();
      arrived = text;
      asOf.value = at.toMs;
      trouble.value = null;
      changed();
    }
  } catch (error) {
    if (error instanceof Problem && error.status === 400) {
      wrong.value = { detail: error.message, position: error.position };
    } else {
      trouble.value = reasonOf(error);
      const wait = error instanceof Problem ? error.againMs : 2_000;
      if (wait > 0) setTimeout(askPast, wait);
    }
  } finally {
    asking = false;
  }
}

async function pastOf(service: Api, text: string, datetime: string): Promise<Feature[]> {
  const all: Feature[] = [];
  for (let after = ""; ; ) {
    const query = { filter: text, datetime, limit: String(PAST_PAGE), ...(after && { after }) };
    const page = await service.get<{
      features: Feature[];
      links: { rel: string }[];
    }>("/collections/contexts/items", query);
    all.push(...page.features);
    const last = page.features.at(-1);
    if (!last || !page.links.some(({ rel }) => rel === "next")) return all;
    after = last.id;
  }
}

let checkTimer = 0;

// Ask the service about a filter that is being written, when the writer pauses.
export function check(text: string): void {
  draft.value = text;
  clearTimeout(checkTimer);
  matches.value = null;
  if (!text.trim()) {
    wrong.value = null;
    return;
  }
  // by the session: the browser's console would list every half-written filter as a failed request
  checkTimer = window.setTimeout(() => {
    session?.send({ type: "count", re: DRAFT + text, filter: text });
  }, 300);
}

function take(answer: Answer): void {
  switch (answer.type) {
    case "subscribed":
      if (answer.re !== "view" || when.value.tense === "past") return;
      wrong.value = null;
      if (!returning) feed.value = [];
      objects.begin(answer.features, Date.now(), returning);
      returning = false;
      changed();
      return;
    case "current":
      if (when.value.tense === "past") return;
      objects.end();
      arrived = filter.value;
      changed();
      return;
    case "changes":
      if (when.value.tense === "past") return; // sent before the view left the present
      if (objects.complete) feed.value = joined(feed.value, moves(answer.events, objects.all));
      heard += answer.events.length;
      objects.apply(answer.events);
      changed();
      return;
    case "numbers":
      count(answer);
      return;
    case "count":
      if (answer.re === DRAFT + draft.value) {
        wrong.value = null;
        matches.value = answer.count;
      }
      return;
    case "error":
      if (answer.re === "numbers") numbersFor = false;
      if (answer.re === "view" || answer.re === DRAFT + draft.value) {
        wrong.value = { detail: without(answer.detail), position: answer.position ?? null };
      }
  }
}

let numbersFor = true; // whether this token may see them
let lastNumbers: (Numbers & { at: number }) | null = null;

function count(answer: Numbers & { time: string }): void {
  const at = Date.parse(answer.time);
  if (lastNumbers && at > lastNumbers.at) {
    const updates = answer.updates - lastNumbers.updates;
    const sent = answer.transmissions - lastNumbers.transmissions;
    const seconds = (at - lastNumbers.at) / 1000;
    if (updates >= 0 && sent >= 0) {
      rates.value = { updates: updates / seconds, transmissions: updates ? sent / updates : null };
    }
  }
  lastNumbers = { ...answer, at };
  numbers.value = answer;
}

export async function signIn(given: string): Promise<void> {
  const tried = new Api(given.trim());
  try {
    templates.value = await tried.templates();
  } catch (error) {
    refusal.value =
      error instanceof Problem ? error.message : "The service does not answer. Is it running?";
    return;
  }
  sessionStorage.setItem(KEPT, tried.token);
  refusal.value = null;
  token.value = tried.token;
}

export function signOut(why: string | null = null): void {
  sessionStorage.removeItem(KEPT);
  session?.close();
  session = null;
  batch(() => {
    objects.begin([], 0);
    objects.end();
    token.value = null;
    refusal.value = why;
    numbers.value = rates.value = null;
    chosen.value = null;
    version.value++;
  });
}

async function loadPlaces(): Promise<void> {
  try {
    places.value = new Places((await (api as Api).places()).features);
  } catch (error) {
    if (!(error instanceof Problem)) setTimeout(loadPlaces, 2_000);
    return;
  }
  const levels = places.value.floors.map((known) => known.level);
  if (floor.value === null || !levels.includes(floor.value)) floor.value = levels[0] ?? null;
}

// What filters may name: asked when somebody begins to write one, since it changes with the map.
let vocabularyAt = 0;
export async function loadVocabulary(): Promise<void> {
  if (api === null || Date.now() - vocabularyAt < VOCABULARY_MS) return;
  vocabularyAt = Date.now();
  type Queryables = { properties: Record<string, { examples?: unknown[] }> };
  try {
    const { properties } = await api.get<Queryables>("/collections/contexts/queryables");
    const attributes = new Map<string, string[]>();
    for (const [name, { examples }] of Object.entries(properties)) {
      if (!FIXED.has(name)) attributes.set(name, (examples ?? []).map(String));
    }
    vocabulary.value = { attributes, places: [...places.value.byPath.keys()] };
  } catch {
    // completion is a help: without it the filter is written by hand
  }
}

export const views = signal<Saved[]>(savedViews(localStorage));

export function saveView(name: string): void {
  views.value = withView(views.value, name, location.hash);
  keepViews(localStorage, views.value);
}

export function dropView(name: string): void {
  views.value = withoutView(views.value, name);
  keepViews(localStorage, views.value);
}

export function showView(saved: Saved): void {
  const view = readView(saved.fragment);
  batch(() => {
    apply(view.filter === EVERYTHING ? "" : view.filter);
    chosen.value = view.object;
    if (view.floor) floor.value = view.floor;
    tab.value = view.tab;
    if (view.camera) goTo.value = view.camera;
  });
}

function start(given: string): void {
  api = new Api(given);
  numbersFor = true;
  void loadPlaces();
  void loadPast();
  void loadNode();
  if (templates.value.length === 0) {
    api.templates().then(
      (known) => {
        templates.value = known;
      },
      () => {}, // a refused token ends the session below, with its reason
    );
  }
  const address = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/session`;
  session = new Session({
    open: () => new WebSocket(address, subprotocols(given)) as unknown as Line,
    refused: () => (api as Api).refused(),
    state: (state) => {
      connection.value = state;
      if (state === "refused") signOut("This token is not valid any more.");
      if (state === "open") {
        lastNumbers = null;
        returning = true;
      }
    },
    answer: take,
  });
  follow();
}

// Where the past of this service begins; asked again now and then, since it moves.
async function loadPast(): Promise<void> {
  if (api === null) return;
  try {
    const { begins } = await api.get<{ begins: string | null }>("/past");
    pastBegins.value = begins === null ? null : Date.parse(begins);
  } catch {
    pastBegins.value = null; // a service without it answers questions all the same
  }
}
setInterval(() => void loadPast(), 60_000);

async function loadNode(): Promise<void> {
  if (api === null) return;
  try {
    node.value = (await api.get<{ node: string }>("/me")).node;
  } catch (error) {
    if (!(error instanceof Problem)) setTimeout(loadNode, 2_000);
  }
}

export function service(): Api {
  return api as Api;
}

effect(() => {
  const given = token.value;
  // untracked: what `start` reads, such as the filter, must not start another session when it changes
  if (given !== null) untracked(() => start(given));
});

setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1_000);
setInterval(() => session?.beat(Date.now()), BEAT_MS);
setInterval(() => {
  if (!document.hidden && numbersFor) session?.send({ type: "numbers", re: "numbers" });
}, NUMBERS_MS);

effect(() => {
  const view = {
    filter: filter.value,
    object: chosen.value,
    floor: floor.value,
    camera: camera.value,
    tab: tab.value,
  };
  history.replaceState(null, "", location.pathname + writeView(view));
});

effect(() => {
  document.documentElement.dataset.theme = theme.value;
});
