// The query bar: a filter in CQL2, completed as it is written, underlined where the service says that
// it is wrong; and the views that somebody saved.

import { useEffect, useRef, useState } from "preact/hooks";
import type { Template } from "./api.ts";
import { accept, NOTHING, type Suggestion, type Suggestions, suggest } from "./completion.ts";
import { fill } from "./filling.ts";
import { CloseIcon, TakeIcon } from "./icons.tsx";
import * as state from "./state.ts";
import { EVERYTHING } from "./view.ts";

export function QueryBar() {
  const area = useRef<HTMLTextAreaElement>(null);
  const mirror = useRef<HTMLDivElement>(null);
  const text = state.draft.value;
  const wrong = state.wrong.value;
  const [offered, offer] = useState<Suggestions>(NOTHING);
  const [at, setAt] = useState(-1);
  const open = offered.options.length > 0;

  const known = state.vocabulary.value;
  useEffect(() => {
    if (document.activeElement === area.current && text) look(); // it came after the first letters
  }, [known]);

  function look() {
    const box = area.current as HTMLTextAreaElement;
    offer(suggest(box.value, box.selectionEnd, known));
    setAt(-1);
  }

  function take(chosen: Suggestion) {
    const box = area.current as HTMLTextAreaElement;
    const [written, caret] = accept(box.value, offered, chosen);
    box.value = written;
    box.setSelectionRange(caret, caret);
    box.focus();
    state.check(written);
    look();
  }

  // Arrows choose, Tab or Enter takes; without a choice Enter applies the filter, as ever.
  function press(event: KeyboardEvent) {
    const count = offered.options.length;
    const chosen = offered.options[at];
    if (open && event.key === "ArrowDown") setAt((at + 1) % count);
    else if (open && event.key === "ArrowUp") setAt((at <= 0 ? count : at) - 1);
    else if (open && event.key === "Escape") offer(NOTHING);
    else if (chosen && (event.key === "Tab" || event.key === "Enter")) take(chosen);
    else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      offer(NOTHING);
      state.apply((event.currentTarget as HTMLTextAreaElement).value);
    } else return;
    event.preventDefault();
  }

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
          aria-autocomplete="list"
          aria-haspopup="listbox"
          aria-controls="filter-offers"
          {...(at >= 0 ? { "aria-activedescendant": `offer-${at}` } : {})}
          aria-describedby="filter-says"
          onScroll={follow}
          onFocus={() => void state.loadVocabulary()}
          onBlur={() => offer(NOTHING)}
          onInput={(event) => {
            state.check(event.currentTarget.value);
            look();
          }}
          onKeyDown={press}
        />
        {state.filter.value !== EVERYTHING && (
          <button
            type="button"
            class="round clear"
            aria-label="Clear the filter"
            title="Clear the filter"
            onClick={() => {
              state.apply("");
              area.current?.focus();
            }}
          >
            <CloseIcon />
          </button>
        )}
        <div
          id="filter-offers"
          class="offers"
          role="listbox"
          aria-label="Suggestions"
          hidden={!open}
        >
          {offered.options.map((option, index) => (
            <div
              key={option.text}
              id={`offer-${index}`}
              role="option"
              aria-selected={index === at}
              tabIndex={-1}
              onPointerDown={(event) => {
                event.preventDefault(); // the field keeps the focus
                take(option);
              }}
            >
              {option.says}
            </div>
          ))}
        </div>
      </div>
      <p id="filter-says" class={wrong ? "says bad" : "says"} aria-live="polite">
        {wrong ? wrong.detail : hint(text)}
      </p>
      <div class="query-row">
        <Templates />
        <Views />
        <button
          type="button"
          class="quiet take"
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
  if (count === null) return "Enter applies it.";
  // the service counts its own map; the answer will have those of its neighbours, too
  return `${count} match now${state.node.value ? " at this broker" : ""}. Enter applies it.`;
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
    <label class="menu templates">
      <span class="unseen">Standard queries</span>
      <select
        value=""
        onChange={(event) => {
          const template = known.find(({ name }) => name === event.currentTarget.value);
          event.currentTarget.value = "";
          if (template) use(template);
        }}
      >
        <option value="">{state.narrow.matches ? "Queries …" : "Standard queries …"}</option>
        {known.map((template) => (
          <option key={template.name} value={template.name}>
            {template.says}
          </option>
        ))}
      </select>
    </label>
  );
}

const SAVE = "+";
const DROP = "-";

// Choosing a saved view shows it; the last entries save what is shown now, or forget the view shown.
function Views() {
  const known = state.views.value;
  const [naming, setNaming] = useState<string | null>(null);
  const [shown, setShown] = useState("");
  if (naming !== null) {
    const done = () => {
      if (naming.trim()) {
        state.saveView(naming.trim());
        setShown(naming.trim());
      }
      setNaming(null);
    };
    return (
      <label class="menu views naming">
        <span class="unseen">Name of the view</span>
        <input
          value={naming}
          maxLength={80}
          placeholder="Name of this view; Enter saves it"
          ref={(box) => box?.focus()}
          onInput={(event) => setNaming(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Escape") setNaming(null);
            else if (event.key === "Enter") done();
            else return;
            event.preventDefault();
          }}
          onBlur={done}
        />
      </label>
    );
  }
  return (
    <label class="menu views">
      <span class="unseen">Saved views</span>
      <select
        value={shown}
        onChange={(event) => {
          const chosen = event.currentTarget.value;
          event.currentTarget.value = shown;
          if (chosen === SAVE) setNaming(shown);
          else if (chosen === DROP) {
            state.dropView(shown);
            setShown("");
          } else {
            const view = known.find(({ name }) => `=${name}` === chosen);
            if (view) state.showView(view);
            setShown(view?.name ?? "");
          }
        }}
      >
        <option value="">{state.narrow.matches ? "Views …" : "Saved views …"}</option>
        {known.map(({ name }) => (
          <option key={name} value={`=${name}`} selected={name === shown}>
            {name}
          </option>
        ))}
        <option value={SAVE}>Save this view …</option>
        {shown && <option value={DROP}>Forget “{shown}”</option>}
      </select>
    </label>
  );
}

function use(template: Template): void {
  const example = state.chosenObject.value ?? state.listed.value[0] ?? null;
  state.apply(fill(template, example, state.places.value));
  document.getElementById("filter")?.focus();
}
