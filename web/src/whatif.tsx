// What if: a stretch of the past replayed by a real broker with another setting. The panel asks and has
// the counts; the two maps stand where the map is (sidebyside.tsx).

import { computed, signal } from "@preact/signals";
import { reasonOf } from "./api.ts";
import { PlayIcon } from "./icons.tsx";
import { nameOf } from "./names.ts";
import { kindIn } from "./objects.ts";
import { type Answer, countsOf, differing, shownAt } from "./replay.ts";
import * as state from "./state.ts";
import { EVERYTHING } from "./view.ts";
import { clock } from "./when.ts";

const MINUTE = 60_000;
const LENGTHS_MIN = [1, 5, 15, 60];
const PRECISIONS = ["hidden", "presence", "region", "building", "floor", "room"];
const DIFFERENT_MAX = 8;

type Setting = { name: string; says: string; first: string; from?: number };
const SETTINGS: Setting[] = [
  { name: "limit_bytes", says: "a watcher’s bytes a second", first: "2000", from: 1024 },
  { name: "default_precision", says: "how precisely people without rules show", first: "building" },
  { name: "subscribers_min", says: "q: subscribers that earn a channel", first: "4", from: 1 },
  { name: "history_max", says: "m: sets of queries in the history", first: "32", from: 1 },
];

export const answer = signal<Answer | null>(null);
export const atMs = signal(0); // after the begin of the stretch
export const lengthMs = computed(() => {
  const given = answer.value;
  return given ? Date.parse(given.to) - Date.parse(given.from) : 0;
});
export const was = computed(() => answer.value && shownAt(answer.value, "was", atMs.value));
export const would = computed(() => answer.value && shownAt(answer.value, "would", atMs.value));
export const different = computed(() =>
  was.value && would.value ? differing(was.value, would.value) : [],
);

const setting = signal(SETTINGS[0] as Setting);
const value = signal(setting.value.first);
const fromMs = signal(0); // 0: as long ago as the stretch is long
const minutes = signal(5);
const asking = signal(false);
const trouble = signal<string | null>(null);

async function ask(): Promise<void> {
  const length = minutes.value * MINUTE;
  const now = Date.now();
  const horizon = (state.pastBegins.value ?? 0) + 1; // it is known to the millisecond, downwards
  const from = fromMs.value || Math.max(now - length, horizon);
  const to = Math.min(from + length, now - 1);
  const { name } = setting.value;
  const tried = name === "default_precision" ? value.value : Number(value.value);
  asking.value = true;
  trouble.value = null;
  try {
    answer.value = await state.service().ask<Answer>("POST", "/what-if", {
      from: new Date(from).toISOString(),
      to: new Date(to).toISOString(),
      filter: state.timed.value.base || EVERYTHING,
      settings: { [name]: tried },
    });
    atMs.value = answer.value.differences.at_ms;
  } catch (error) {
    trouble.value = reasonOf(error);
  } finally {
    asking.value = false;
  }
}

export function WhatIf() {
  return (
    <div class="pane">
      <form
        class="composer"
        onSubmit={(event) => {
          event.preventDefault();
          void ask();
        }}
      >
        <p class="quiet-text">
          What would somebody have seen who watched this filter, had one setting been another? A
          real broker lives the time again, both ways.
          {state.node.value && (
            <>
              {" "}
              It is the past of broker <b>{state.node.value}</b> alone.
            </>
          )}
        </p>
        <label for="whatif-setting">Setting</label>
        <select
          id="whatif-setting"
          value={setting.value.name}
          onChange={({ currentTarget }) => {
            const chosen = SETTINGS.find(({ name }) => name === currentTarget.value) as Setting;
            setting.value = chosen;
            value.value = chosen.first;
          }}
        >
          {SETTINGS.map(({ name, says }) => (
            <option key={name} value={name}>
              {says}
            </option>
          ))}
        </select>
        <label for="whatif-value">Try</label>
        <Value />
        <label for="whatif-from">From (empty: until now)</label>
        <input
          id="whatif-from"
          type="datetime-local"
          step={1}
          onChange={({ currentTarget }) => {
            fromMs.value = Date.parse(currentTarget.value) || 0;
          }}
        />
        <div class="composer-row">
          <label>
            <span class="unseen">For how long</span>
            <select
              value={String(minutes.value)}
              onChange={({ currentTarget }) => {
                minutes.value = Number(currentTarget.value);
              }}
            >
              {LENGTHS_MIN.map((count) => (
                <option key={count} value={count}>
                  for {count} min
                </option>
              ))}
            </select>
          </label>
          <span class="grow" />
          <button type="submit" class="main" disabled={asking.value}>
            <PlayIcon /> {asking.value ? "Replaying …" : "Replay"}
          </button>
        </div>
        {trouble.value && (
          <p class="says bad" role="alert">
            {trouble.value}
          </p>
        )}
      </form>
      <Counts />
    </div>
  );
}

function Value() {
  const { from } = setting.value;
  if (from === undefined) {
    return (
      <select
        id="whatif-value"
        value={value.value}
        onChange={({ currentTarget }) => {
          value.value = currentTarget.value;
        }}
      >
        {PRECISIONS.map((name) => (
          <option key={name}>{name}</option>
        ))}
      </select>
    );
  }
  return (
    <input
      id="whatif-value"
      type="number"
      required
      min={from}
      value={value.value}
      onInput={({ currentTarget }) => {
        value.value = currentTarget.value;
      }}
    />
  );
}

function Counts() {
  const given = answer.value;
  if (given === null) return null;
  const [name, tried] = Object.entries(given.tried)[0] as [string, string | number];
  const { seconds, contexts_max, mean_contexts } = given.differences;
  return (
    <section class="whatif-counts" aria-label="Differences">
      <h2>
        {name} = {tried}
      </h2>
      <table>
        <thead>
          <tr>
            <td />
            <th scope="col">was</th>
            <th scope="col">would</th>
          </tr>
        </thead>
        <tbody>
          {countsOf(given).map((row) => (
            <tr key={row.name} class={row.was === row.would ? "" : "other"}>
              <th scope="row">{row.name}</th>
              <td>{row.was}</td>
              <td>{row.would}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="quiet-text">
        {contexts_max === 0
          ? "Both maps are the same at every moment; what differs is how they are sent."
          : `The maps differ for ${seconds.toFixed(1)} s, in ${contexts_max} objects at most and ${mean_contexts.toFixed(1)} on average.`}
        {" Times of pseudonyms are rounded, so more of them are shown than were there at once."}
        {given.would.ended && ` The watcher would have been cut off: ${given.would.ended}.`}
      </p>
      <Different given={given} />
    </section>
  );
}

// Who is shown otherwise at the moment that the maps show.
function Different({ given }: { given: Answer }) {
  const vids = different.value;
  const place = (number: number | undefined) =>
    number === undefined ? "not shown" : String(given.features[number]?.properties.place ?? "–");
  const name = (vid: string) => {
    const feature = given.features[was.value?.get(vid) ?? would.value?.get(vid) ?? -1];
    return nameOf(vid, feature && kindIn(feature.properties));
  };
  return (
    <>
      <h2>
        {vids.length} different at {clock(Date.parse(given.from) + atMs.value, state.now.value)}
      </h2>
      <ul class="places">
        {vids.slice(0, DIFFERENT_MAX).map((vid) => (
          <li key={vid}>
            <b title={vid}>{name(vid)}</b>
            <span>
              {place(was.value?.get(vid))} → {place(would.value?.get(vid))}
            </span>
          </li>
        ))}
      </ul>
    </>
  );
}
