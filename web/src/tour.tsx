// The tour: six steps on the real service. Each step does on this page what a visitor would do, and says
// what the service answered; nothing is rehearsed.

import { computed, effect, signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import * as casts from "./casts.ts";
import { quoted } from "./filling.ts";
import { CloseIcon } from "./icons.tsx";
import { fitAll, show } from "./map.tsx";
import { overlay } from "./network.tsx";
import { kindOf, label } from "./objects.ts";
import type { Place } from "./places.ts";
import * as state from "./state.ts";
import { open } from "./tabs.tsx";
import { offset, writeWhen } from "./when.ts";
import * as you from "./you.ts";

const MINUTE = 60_000;
const BACK_MS = 10 * MINUTE;
const WAYS = new Set(["corridor", "lift", "stairs"]); // nobody meets there
const SETTLED_MS = 3 * MINUTE; // after its begin a demo's first meeting has filled the hall

type Step = {
  title: string;
  says: string;
  action: string;
  act: () => void;
  live: () => ComponentChildren;
};

export const step = signal<number | null>(null);
const acted = signal<ReadonlySet<number>>(new Set());

// The hall, the lab and an office of this map: named kinds if it has them, else its first rooms.
const hall = computed(() => find("hall", 0));
const lab = computed(() => find("lab", 1));
const office = computed(() => {
  const inside = state.places.value.rooms.filter((place) => place.floor !== null);
  return inside.find((place) => place.kind === "office") ?? inside[0] ?? hall.value;
});

function find(kind: string, fallback: number): Place | null {
  const rooms = state.places.value.rooms.filter(({ kind }) => !WAYS.has(kind));
  return rooms.find((place) => place.kind === kind) ?? rooms[fallback] ?? null;
}

function inside(place: Place | null): string {
  return place ? `within(place, ${quoted(place.path)})` : "";
}

// Changes of the followed filter, and what the service sent for them, since the filter was in force. Both
// are read when numbers arrive: they come by the same session, after every frame they count.
type Count = { heard: number; sent: number };
const measured = signal<Count | null>(null);
let marked: Count | null = null;
let settling = 0; // numbers that may still count what another filter caused

function mark(): void {
  marked = measured.value = null;
  settling = 1;
}

effect(() => {
  const numbers = state.numbers.value;
  if (step.value !== 1 || numbers === null) return;
  const found = { heard: state.heard, sent: numbers.transmissions };
  if (settling > 0) settling--;
  else if (marked === null) marked = found;
  else measured.value = { heard: found.heard - marked.heard, sent: found.sent - marked.sent };
});

function backMs(): number {
  const nowMs = Date.now();
  const begins = state.pastBegins.value;
  const wanted = Math.max(nowMs - BACK_MS, begins === null ? 0 : begins + SETTLED_MS);
  return Math.min(wanted, nowMs - 30_000);
}

const STEPS: Step[] = [
  {
    title: "Who is here",
    says: "Everybody on this map is a pseudonym that nobody can link to the next one. A filled dot is known to its point, a hollow one only to its room; the service says no more, and the page draws no more.",
    action: "Show everybody",
    act: () => {
      state.apply("");
      open("list");
      state.sheet.value = false;
      fitAll();
    },
    live: () => {
      const people = state.listed.value.filter((one) => kindOf(one) === "person").length;
      return (
        <>
          <b>{people}</b> people and <b>{state.listed.value.length - people}</b> things, as they
          move.
        </>
      );
    },
  },
  {
    title: "Hundreds served by one channel",
    says: "Everybody who watches the hall asks the same question, so the service answers it once. However many they are, a change in the hall is one transmission.",
    action: "Watch the hall, as they do",
    act: () => {
      state.apply(inside(hall.value));
      open("feed");
      mark();
    },
    live: () => {
      const found = measured.value;
      const watchers = state.numbers.value?.sessions;
      if (watchers === undefined) return "Your token may not see the service's numbers.";
      if (!found || found.heard === 0) {
        return (
          <>
            <b>{watchers}</b> watchers. Waiting for the hall to change …
          </>
        );
      }
      return (
        <>
          <b>{watchers}</b> watchers, <b>{found.heard}</b> changes in the hall, <b>{found.sent}</b>{" "}
          transmissions: <b>{(found.sent / found.heard).toFixed(1)}</b> a change instead of{" "}
          {watchers}.
        </>
      );
    },
  },
  {
    title: "Everyone who was in the hall",
    says: "Ten minutes ago, or as far back as this service remembers. The map goes back in time, and a cast reaches them wherever they are now. You learn about how many, never who.",
    action: "Go back, and write to them",
    act: () => {
      const atMs = backMs();
      state.apply(writeWhen(inside(hall.value), { tense: "past", fromMs: atMs, toMs: atMs }));
      casts.text.value = "You were in the hall: the slides are at the front desk.";
      open("cast");
    },
    live: () => <Written />,
  },
  {
    title: "Whoever enters the lab within the hour",
    says: "The same filter, pointed at the future. The cast waits where people will be, and reaches each of them once, as they come.",
    action: "Write to the future",
    act: () => {
      const nowMs = Date.now();
      const when = { tense: "future", fromMs: nowMs, toMs: nowMs + 60 * MINUTE } as const;
      state.apply(writeWhen(inside(lab.value), when));
      casts.text.value = "Welcome to the lab: goggles on, please.";
      open("cast");
    },
    live: () => <Written />,
  },
  {
    title: "Watch yourself blur",
    says: "Stand in a room. Then let everybody see your building only: the mirror shows it with a stranger's eyes before you save it, and your dot on this map grows faint when you do.",
    action: "Stand, and look",
    act: () => {
      state.apply("");
      open("you");
      const room = office.value;
      void (async () => {
        if (room) await you.stand(room.path);
        you.precision.value = "building";
        await you.look();
        const own = you.own.value[0];
        if (own) {
          state.choose(own.id);
          show(own.id);
        }
      })();
    },
    live: () => {
      const image = you.images.value?.[0];
      if (!image) return "You are not on the map yet.";
      const theirs = image.theirs?.properties.place;
      return (
        <>
          You: <b>{String(image.yours.properties.place)}</b>. They:{" "}
          <b>{theirs ? `somewhere in ${String(theirs)}` : "nothing"}</b>
          {you.unsaved.value ? ", once you save it." : ", from now on."}
        </>
      );
    },
  },
  {
    title: "Walk across a border",
    says: "Each building has a broker of its own. A courier walks from one to the next, and reads a parcel a second. The next broker prepares before it comes, and goes on where the last one stopped: what was sent meanwhile arrives once and in order.",
    action: "Follow the courier",
    act: () => {
      state.apply(COURIERS);
      open("network");
      seekCourier();
    },
    live: () => <Crossing />,
  },
];

const COURIERS = "type = 'courier'";

const courier = computed(
  () => state.listed.value.find((one) => one.attributes.type === "courier") ?? null,
);

// Choose the courier and keep it in view, as soon as it is on the map.
function seekCourier(): void {
  const seek = effect(() => {
    const found = courier.value;
    if (found === null) return;
    queueMicrotask(() => {
      seek();
      if (state.filter.value !== COURIERS) return; // somebody went on meanwhile
      state.choose(found.vid);
      state.following.value = true;
      show(found.vid);
    });
  });
}

function Crossing() {
  const seen = overlay.value;
  const found = courier.value;
  if (!seen) {
    return (
      <>
        This service is one broker, so there is no border here.{" "}
        <code>roamcast serve --demo --brokers 3</code> has two.
      </>
    );
  }
  if (!found) {
    return (
      <>
        <b>{seen.nodes.length}</b> brokers. The courier is between two of them, or this service has
        none: it is a program of the demo.
      </>
    );
  }
  const { broker, crossed, parcels, missed, repeated } = found.attributes;
  return (
    <>
      In <b>{found.place}</b>, served by <b>{label(broker)}</b>. Crossed <b>{label(crossed)}</b>{" "}
      times, <b>{label(parcels)}</b> parcels read, <b>{label(missed)}</b> missed,{" "}
      <b>{label(repeated)}</b> twice.
    </>
  );
}

function Written() {
  const found = casts.audience.value;
  const last = casts.sent.value.find((one) => one.filter === state.filter.value);
  if (last) {
    const known = casts.progress.value[last.id];
    return known?.delivered ? (
      <>
        Sent. About <b>{known.delivered}</b> have it; <b>Why</b> says how it was decided.
      </>
    ) : (
      <>Sent. It is on disk, and finds its people …</>
    );
  }
  if (!found) return <>Counting the audience …</>;
  const about =
    found.future ?? (found.tense === "present" ? found.present.about : found.past.about);
  const when = state.when.value;
  return (
    <>
      {about ? "About " : ""}
      <b>{about || "Few, or nobody,"}</b> {found.future !== null ? "would come" : "were there"}
      {when.tense === "past" && `, ${offset(state.now.value - when.toMs)} ago`}. Press <b>Cast</b>.
    </>
  );
}

export function startTour(): void {
  acted.value = new Set();
  step.value = 0;
}

function go(to: number): void {
  step.value = Math.max(0, Math.min(STEPS.length - 1, to));
}

export function Tour() {
  const at = step.value;
  if (at === null) return null;
  const { title, says, action, act, live } = STEPS[at] as Step;
  const done = acted.value.has(at);
  const last = at === STEPS.length - 1;
  return (
    <section class="tour" aria-label="Tour">
      <div class="tour-head">
        <small>
          {at + 1} of {STEPS.length}
        </small>
        <h2>{title}</h2>
        <button
          type="button"
          class="round"
          aria-label="End the tour"
          onClick={() => {
            step.value = null;
          }}
        >
          <CloseIcon />
        </button>
      </div>
      <p>{says}</p>
      {done && (
        <p class="tour-live" role="status">
          {live()}
        </p>
      )}
      <div class="entry-row">
        <button type="button" class="quiet" disabled={at === 0} onClick={() => go(at - 1)}>
          Back
        </button>
        <span class="grow" />
        <button
          type="button"
          class={done ? "quiet" : "main"}
          onClick={() => {
            act();
            acted.value = new Set([...acted.value, at]);
          }}
        >
          {action}
        </button>
        <button
          type="button"
          class={done ? "main" : "quiet"}
          onClick={() => {
            if (last) step.value = null;
            else go(at + 1);
          }}
        >
          {last ? "Done" : "Next"}
        </button>
      </div>
    </section>
  );
}
