// The chosen object: what is known of it, beside the list; and a line of it on the map, where the list
// does not show.

import { ago } from "./ago.ts";
import { quoted } from "./filling.ts";
import { CloseIcon, FollowIcon } from "./icons.tsx";
import { signOf } from "./list.tsx";
import { show } from "./map.tsx";
import { nameOf } from "./names.ts";
import { label, type Seen } from "./objects.ts";
import { pointOf } from "./picture.ts";
import * as state from "./state.ts";
import { open } from "./tabs.tsx";

const GONE =
  "Not among the objects of this filter now. People who leave come back under another pseudonym.";

export function Details() {
  const vid = state.chosen.value;
  if (vid === null) return null;
  const object = state.chosenObject.value;
  return (
    <section class="details" aria-label="Chosen object">
      <div class="details-head">
        {object && <i class={signOf(object)} />}
        <h2>{object?.name ?? nameOf(vid, "person")}</h2>
        <Close />
      </div>
      {object ? (
        <Facts object={object} />
      ) : (
        <p class="quiet-text">{state.complete.value ? GONE : "Loading …"}</p>
      )}
    </section>
  );
}

// On the map, where the details do not show: who is chosen, where, and how fresh that is.
export function ChosenLine() {
  const vid = state.chosen.value;
  if (vid === null) return null;
  const object = state.chosenObject.value;
  return (
    <section
      class={state.tab.value === "list" ? "chosen-line listed" : "chosen-line"}
      aria-label="Chosen on the map"
    >
      {object && <i class={signOf(object)} />}
      <button type="button" class="link" title="Show its details" onClick={() => open("list")}>
        {object?.name ?? nameOf(vid, "person")}
      </button>
      {object ? (
        <>
          <span class="where">{object.place ?? "somewhere"}</span>
          <small>{since(state.now.value - object.changedMs)}</small>
          <Follow object={object} />
        </>
      ) : (
        <small class="where">not among the objects of this filter now</small>
      )}
      <Close />
    </section>
  );
}

function Close() {
  return (
    <button
      type="button"
      class="round"
      aria-label="Close"
      title="Close"
      onClick={() => state.choose(null)}
    >
      <CloseIcon />
    </button>
  );
}

function Follow({ object }: { object: Seen }) {
  return (
    <button
      type="button"
      class={state.following.value ? "quiet on" : "quiet"}
      aria-pressed={state.following.value}
      onClick={() => {
        state.following.value = !state.following.value;
        if (state.following.value) show(object.vid);
      }}
    >
      <FollowIcon /> Follow
    </button>
  );
}

function Facts({ object }: { object: Seen }) {
  const { vid, name, place, attributes } = object;
  // the name says the kind already, and how far it is known says the accuracy
  const more = Object.entries(attributes).filter(
    ([key]) => key !== "accuracy_m" && (key !== "type" || name === vid),
  );
  return (
    <>
      <div class="details-row">
        <Follow object={object} />
        <button type="button" class="quiet" onClick={() => state.apply(`vid = ${quoted(vid)}`)}>
          Only this
        </button>
        {place && (
          <button
            type="button"
            class="quiet"
            onClick={() => state.apply(`within(place, ${quoted(place)})`)}
          >
            All in this place
          </button>
        )}
      </div>
      <dl>
        {place && (
          <>
            <dt>place</dt>
            <dd>
              {place}, {precision(object)}
            </dd>
          </>
        )}
        {more.map(([key, value]) => (
          <>
            <dt>{key}</dt>
            <dd>{label(value)}</dd>
          </>
        ))}
        <dt>changed</dt>
        <dd>
          {since(state.now.value - object.changedMs)}
          {object.since && `, here for ${ago(state.now.value - Date.parse(object.since))}`}
        </dd>
        {name !== vid && (
          <>
            <dt>vid</dt>
            <dd>
              <code>{vid}</code>
            </dd>
          </>
        )}
      </dl>
    </>
  );
}

function since(ms: number): string {
  const long = ago(ms);
  return long === "now" ? "just now" : `${long} ago`;
}

// What is known, and no more.
function precision(object: Seen): string {
  if (pointOf(object, state.places.value)) {
    const accuracy = Number(object.attributes.accuracy_m);
    return accuracy ? `known to ${Math.round(accuracy)} m` : "known to the point";
  }
  const place = state.places.value.byPath.get(object.place ?? "");
  return place ? `known to its ${place.kind}` : "known to its place";
}
