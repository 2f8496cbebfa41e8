// The feed: entries and departures of what the filter asks for, as they happen.

import { ago } from "./ago.ts";
import { show } from "./map.tsx";
import * as state from "./state.ts";

const SAYS = { came: "came to", moved: "went to", left: "left" } as const;

export function Feed() {
  const past = state.when.value.tense === "past";
  const all = state.feed.value;
  return (
    <div class="pane">
      <p class="quiet-text">Who comes, moves and leaves, of what the filter asks for.</p>
      {all.length === 0 && (
        <p class="pane-empty">
          {past ? "The past has no news. Choose Now." : "Nothing has happened since you asked."}
        </p>
      )}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a box that scrolls needs the keyboard */}
      <ol class="feed" tabIndex={0} aria-label="Entries and departures">
        {all.map(({ kind, vid, name, place, from, atMs, key }) => (
          <li key={key} class={kind}>
            <i aria-hidden="true" />
            <span>
              <button
                type="button"
                class="link"
                title={vid}
                onClick={() => {
                  state.choose(vid);
                  show(vid);
                }}
              >
                {name}
              </button>{" "}
              {SAYS[kind]} <b>{place ?? from ?? "the map"}</b>
            </span>
            <time>{ago(state.now.value - atMs)}</time>
          </li>
        ))}
      </ol>
    </div>
  );
}
