// You: stand somewhere, choose how precisely others may see you, and see it with their eyes first.

import { useEffect } from "preact/hooks";
import { FollowIcon, MirrorIcon } from "./icons.tsx";
import { show } from "./map.tsx";
import { label } from "./objects.ts";
import { AddPhone } from "./share.tsx";
import * as state from "./state.ts";
import * as you from "./you.ts";

const LEVELS: [you.Precision, string][] = [
  ["exact", "exactly where I am"],
  ["room", "my room"],
  ["floor", "my floor"],
  ["building", "my building only"],
  ["region", "only that I am on the campus"],
  ["presence", "only that somebody is there"],
  ["hidden", "nothing"],
];

export function You() {
  useEffect(() => {
    void you.load();
  }, []);
  const may = state.grant.value.scopes.includes("publish");
  const on = you.own.value.length > 0;
  return (
    <div class="pane">
      <p>
        You are <b>{state.grant.value.subject}</b>. On the map you are a pseudonym that changes
        every hour.
      </p>
      {may ? <Stand on={on} /> : <p class="pane-empty">Your token may not publish.</p>}
      {on && <Rules />}
      {may && <AddPhone />}
      {you.trouble.value && (
        <p class="says bad" role="alert">
          {you.trouble.value}
        </p>
      )}
    </div>
  );
}

function Stand({ on }: { on: boolean }) {
  const places = [...state.places.value.byPath.values()].filter(
    (place) => place.kind !== "floor" && place.polygons.length > 0,
  );
  const at = label(you.own.value[0]?.properties.place ?? "");
  return (
    <section class="audience" aria-label="Where you are">
      <h2>{on ? "You are on the map" : "Put yourself on the map"}</h2>
      {you.own.value.map((one) => (
        <div class="entry-row" key={one.id}>
          <code class="vid grow" title={one.id}>
            {one.id.split("@")[0]}
          </code>
          <button
            type="button"
            class="quiet"
            onClick={() => {
              state.choose(one.id);
              show(one.id);
            }}
          >
            <FollowIcon /> Show me
          </button>
        </div>
      ))}
      <div class="entry-row">
        <label class="whole-row">
          <span class="unseen">Stand in</span>
          <select
            class="wide"
            value={at}
            onChange={(event) => {
              const path = event.currentTarget.value;
              if (path) void you.stand(path);
            }}
          >
            <option value="">Stand in …</option>
            {places.map(({ path }) => (
              <option key={path} value={path}>
                {path}
              </option>
            ))}
          </select>
        </label>
        <button
          type="button"
          class={you.placing.value ? "quiet on" : "quiet"}
          aria-pressed={you.placing.value}
          onClick={() => {
            you.placing.value = !you.placing.value;
            if (you.placing.value) state.sheet.value = false;
          }}
        >
          {you.placing.value ? "Click on the map …" : "Choose on the map"}
        </button>
        {on && (
          <button type="button" class="quiet" onClick={() => void you.leave()}>
            Leave
          </button>
        )}
      </div>
    </section>
  );
}

function Rules() {
  const look = () => void you.look();
  return (
    <>
      <div class="entry-row">
        <label class="field grow">
          Everybody sees
          <select
            class="wide"
            id="precision"
            value={you.precision.value}
            onChange={(event) => {
              you.precision.value = event.currentTarget.value as you.Precision;
              look();
            }}
          >
            {LEVELS.map(([level, says]) => (
              <option key={level} value={level}>
                {says}
              </option>
            ))}
          </select>
        </label>
        <label class="check">
          <input
            type="checkbox"
            checked={you.past.value}
            onChange={(event) => {
              you.past.value = event.currentTarget.checked;
              look();
            }}
          />
          my past, too
        </label>
      </div>
      <Mirror />
      <label class="field">
        But these people and groups see me exactly
        <input
          type="text"
          value={you.friends.value}
          placeholder="ada, team-blue"
          autocomplete="off"
          onInput={(event) => {
            you.friends.value = event.currentTarget.value;
            look();
          }}
        />
      </label>
      <button
        type="button"
        class="main"
        disabled={!you.unsaved.value}
        onClick={() => void you.save()}
      >
        {you.unsaved.value ? "Save: from now on they see me so" : "Saved"}
      </button>
    </>
  );
}

function Mirror() {
  const images = you.images.value;
  return (
    <section class="mirror-box" aria-label="Mirror">
      <h2>
        <MirrorIcon /> The mirror
      </h2>
      <label class="field">
        Look with the eyes of
        <input
          type="text"
          value={you.viewer.value}
          placeholder="a stranger"
          autocomplete="off"
          onInput={(event) => {
            you.viewer.value = event.currentTarget.value;
            void you.look();
          }}
        />
      </label>
      <div class="image" role="status">
        {images === null ? "…" : images.map((image) => <Seen key={image.yours.id} image={image} />)}
      </div>
    </section>
  );
}

function Seen({ image: { yours, theirs } }: { image: you.Image }) {
  const place = theirs?.properties.place;
  const own = yours.properties.place;
  return (
    <>
      <p>
        You are in <b>{label(own)}</b>.
      </p>
      <p class={theirs ? "theirs" : "theirs none"}>
        {theirs === null
          ? "They see nothing: you are not on their map."
          : place === undefined || place === null
            ? "They see that somebody is there, and not where."
            : place === own
              ? `They see you in ${label(place)}${theirs.geometry ? ", at the point" : ""}.`
              : `They see somebody somewhere in ${label(place)}.`}
      </p>
    </>
  );
}
