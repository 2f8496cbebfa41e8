// The list: the same objects as on the map, for the keyboard, for screen readers, and for finding one.
// Only the rows in view exist; `aria-posinset` and `aria-setsize` say where they stand.

import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { ago } from "./ago.ts";
import { SearchIcon } from "./icons.tsx";
import { show } from "./map.tsx";
import { kindOf, type Seen } from "./objects.ts";
import { pointOf } from "./picture.ts";
import * as state from "./state.ts";

const NOBODY = {
  past: "Nobody matched this filter then, as far as this service remembers.",
  now: "Nobody matches this filter now.",
  future: "Nobody has come yet. Whoever does is shown as they come.",
};

const ROW_PX = 52;
const SPARE = 4;

const top = signal(0);
const height = signal(600);

export function List() {
  const box = useRef<HTMLDivElement>(null);
  const rows = state.listed.value;
  const chosen = state.chosen.value;
  const at = chosen === null ? -1 : rows.findIndex((row) => row.vid === chosen);
  const first = Math.max(0, Math.floor(top.value / ROW_PX) - SPARE);
  const last = Math.min(rows.length, Math.ceil((top.value + height.value) / ROW_PX) + SPARE);

  useEffect(() => {
    const holder = box.current as HTMLDivElement;
    const watch = new ResizeObserver(() => {
      height.value = holder.clientHeight;
    });
    watch.observe(holder);
    return () => watch.disconnect();
  }, []);

  // the chosen row comes into view when another is chosen, not whenever the list changes
  useEffect(() => {
    const holder = box.current as HTMLDivElement;
    if (at < 0) return;
    const y = at * ROW_PX;
    if (y < holder.scrollTop) holder.scrollTop = y;
    else if (y + ROW_PX > holder.scrollTop + holder.clientHeight) {
      holder.scrollTop = y + ROW_PX - holder.clientHeight;
    }
  }, [chosen]);

  function go(index: number) {
    const row = rows[Math.max(0, Math.min(rows.length - 1, index))];
    if (row === undefined) return;
    state.choose(row.vid);
    show(row.vid);
  }

  function press(event: KeyboardEvent) {
    const page = Math.max(1, Math.floor(height.value / ROW_PX) - 1);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page }[event.key];
    if (step !== undefined) go(at < 0 ? 0 : at + step);
    else if (event.key === "Home") go(0);
    else if (event.key === "End") go(rows.length - 1);
    else if (event.key === "Enter" && at >= 0) go(at);
    else if (event.key === "Escape") state.choose(null);
    else return;
    event.preventDefault();
  }

  return (
    <div class="list">
      <div class="search">
        <SearchIcon />
        <input
          type="search"
          aria-label="Search the list"
          placeholder="Search"
          autocomplete="off"
          value={state.search.value}
          onInput={(event) => {
            state.search.value = event.currentTarget.value;
          }}
        />
        <span class="count" aria-live="polite">
          {counted(rows.length)}
        </span>
      </div>
      <div
        ref={box}
        class="rows"
        role="listbox"
        aria-label="Objects"
        tabIndex={0}
        {...(at >= first && at < last ? { "aria-activedescendant": `row-${at}` } : {})}
        onScroll={(event) => {
          top.value = event.currentTarget.scrollTop;
        }}
        onKeyDown={press}
      >
        <div class="extent" role="presentation" style={{ height: `${rows.length * ROW_PX}px` }}>
          {rows.slice(first, last).map((row, index) => (
            <Row
              key={row.vid}
              row={row}
              index={first + index}
              count={rows.length}
              chosen={row.vid === chosen}
              go={go}
            />
          ))}
        </div>
      </div>
      {rows.length === 0 && state.complete.value && (
        <p class="empty">
          {state.search.value ? "Nothing here has these words." : NOBODY[state.when.value.tense]}
        </p>
      )}
    </div>
  );
}

type RowProps = {
  row: Seen;
  index: number;
  count: number;
  chosen: boolean;
  go: (index: number) => void;
};

function Row({ row, index, count, chosen, go }: RowProps) {
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: the listbox has the keys
    <div
      id={`row-${index}`}
      class={chosen ? "row chosen" : "row"}
      role="option"
      tabIndex={-1}
      aria-selected={chosen}
      aria-posinset={index + 1}
      aria-setsize={count}
      style={{ transform: `translateY(${index * ROW_PX}px)` }}
      onClick={() => go(index)}
    >
      <i class={signOf(row)} />
      <span class="names">
        <b>{row.name}</b>
        <small>
          {[row.name === row.vid && kindOf(row), row.place].filter(Boolean).join(" · ")}
        </small>
      </span>
      <time>{ago(state.now.value - row.changedMs)}</time>
    </div>
  );
}

export function signOf(object: Seen): string {
  const kind = kindOf(object) === "person" ? "person" : "thing";
  return `sign ${kind}${pointOf(object, state.places.value) ? "" : " hollow"}`;
}

function counted(count: number): string {
  const all = state.objects.all.size;
  if (!state.complete.value) return "loading …";
  if (count !== all) return `${count} of ${all}`;
  return count === 1 ? "1 object" : `${count} objects`;
}
