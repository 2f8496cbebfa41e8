// The query bar: a filter in CQL2, underlined where the service says that it is wrong.

import { useEffect, useRef } from "preact/hooks";
import type { Template } from "./api.ts";
import { fill } from "./filling.ts";
import { TakeIcon } from "./icons.tsx";
import * as state from "./state.ts";
import { EVERYTHING } from "./view.ts";

export function QueryBar() {
  const area = useRef<HTMLTextAreaElement>(null);
  const mirror = useRef<HTMLDivElement>(null);
  const text = state.draft.value;
  const wrong = state.wrong.value;

  useEffect(() => {
    const box = area.current as HTMLTextAreaElement;
    box.style.height = "auto";
    box.style.height = `${Math.min(box.scrollHeight, 160)}px`;
    follow();
  }, [text]);

  function follow() {
    if (mirror.current && area.current) mirror.current.scrollTop = area.current.scrollTop;
  }

  return (
    <form
      class="query"
      onSubmit={(event) => {
        event.preventDefault();
        state.apply(text);
      }}
    >
      <label for="filter">Filter</label>
      <div class={wrong ? "editor bad" : "editor"}>
        <div class="mirror" ref={mirror} aria-hidden="true">
          <Marked text={text} position={wrong?.position ?? null} />
        </div>
        <textarea
          id="filter"
          ref={area}
          rows={1}
          value={text}
          placeholder="everything; try type = 'printer'"
          spellcheck={false}
          autocomplete="off"
          autocapitalize="off"
          aria-invalid={wrong !== null}
          aria-describedby="filter-says"
          onScroll={follow}
          onInput={(event) => state.check(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
              event.preventDefault();
              state.apply(event.currentTarget.value);
            }
          }}
        />
      </div>
      <p id="filter-says" class={wrong ? "says bad" : "says"} aria-live="polite">
        {wrong ? wrong.detail : hint(text)}
      </p>
      <div class="query-row">
        <Templates />
        <span class="grow" />
        {state.filter.value !== EVERYTHING && (
          <button
            type="button"
            class="quiet"
            onClick={() => {
              state.apply("");
              area.current?.focus();
            }}
          >
            Clear
          </button>
        )}
        <button
          type="button"
          class="quiet"
          aria-haspopup="dialog"
          onClick={() => {
            state.taking.value = true;
          }}
        >
          <TakeIcon /> Take <span class="wide-only">this away</span>
        </button>
        <button type="submit" class="main">
          Apply
        </button>
      </div>
    </form>
  );
}

function hint(text: string): string {
  const wanted = text.trim() ? text : EVERYTHING;
  if (wanted === state.filter.value) return "";
  if (!text.trim()) return "Enter shows everything.";
  const count = state.matches.value;
  return count === null ? "Enter applies it." : `${count} match now. Enter applies it.`;
}

// The text again, with the wrong word marked. Positions count characters from 1, as the service does;
// one behind the end marks the space where something is missing.
function Marked({ text, position }: { text: string; position: number | null }) {
  if (position === null) return <>{text}</>;
  const letters = [...text];
  const start = Math.min(Math.max(position - 1, 0), letters.length);
  let end = start;
  while (end < letters.length && /\S/u.test(letters[end] as string)) end++;
  if (end === start) end = Math.min(start + 1, letters.length);
  return (
    <>
      {letters.slice(0, start).join("")}
      <mark class="wrong">{letters.slice(start, end).join("") || "\u00a0"}</mark>
      {letters.slice(end).join("")}
    </>
  );
}

function Templates() {
  const known = state.templates.value;
  if (known.length === 0) return null;
  return (
    <label class="templates">
      <span class="unseen">Standard queries</span>
      <select
        value=""
        onChange={(event) => {
          const template = known.find(({ name }) => name === event.currentTarget.value);
          event.currentTarget.value = "";
          if (template) use(template);
        }}
      >
        <option value="">Standard queries …</option>
        {known.map((template) => (
          <option key={template.name} value={template.name}>
            {template.says}
          </option>
        ))}
      </select>
    </label>
  );
}

function use(template: Template): void {
  const example = state.chosenObject.value ?? state.listed.value[0] ?? null;
  state.apply(fill(template, example, state.places.value));
  document.getElementById("filter")?.focus();
}
