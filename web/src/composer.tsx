// The cast composer: to whom (the filter above, in its tense), what, and what became of it.

import { ago } from "./ago.ts";
import * as casts from "./casts.ts";
import { CastIcon, WhyIcon } from "./icons.tsx";
import * as state from "./state.ts";
import { EVERYTHING } from "./view.ts";

const LIFETIMES: [number, string][] = [
  [3_600, "for an hour"],
  [86_400, "for a day"],
  [7 * 86_400, "for a week"],
];
const PRIORITIES = ["routine", "notice", "warning", "emergency"];

const TENSES: Record<casts.Tense, string> = {
  historic: "whoever was there",
  present: "whoever is there now",
  future: "whoever comes from now on",
  hybrid: "whoever was there or comes",
};

export function Composer() {
  return (
    <div class="pane">
      <form
        class="composer"
        onSubmit={(event) => {
          event.preventDefault();
          void casts.send();
        }}
      >
        <Audience />
        <label for="cast-text">Message</label>
        <textarea
          id="cast-text"
          rows={3}
          required
          maxLength={20_000}
          placeholder="They read it; you never learn who they are"
          value={casts.text.value}
          onInput={(event) => {
            casts.text.value = event.currentTarget.value;
          }}
        />
        <div class="composer-row">
          <label>
            <span class="unseen">Priority</span>
            <select
              value={casts.priority.value}
              onChange={(event) => {
                casts.priority.value = event.currentTarget.value;
              }}
            >
              {PRIORITIES.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </label>
          <label>
            <span class="unseen">How long it lives</span>
            <select
              value={String(casts.lifetimeS.value)}
              onChange={(event) => {
                casts.lifetimeS.value = Number(event.currentTarget.value);
              }}
            >
              {LIFETIMES.map(([seconds, says]) => (
                <option key={seconds} value={seconds}>
                  {says}
                </option>
              ))}
            </select>
          </label>
          <span class="grow" />
          <button type="submit" class="main" disabled={casts.sending.value}>
            <CastIcon /> Cast
          </button>
        </div>
        {casts.trouble.value && (
          <p class="says bad" role="alert">
            {casts.trouble.value}
          </p>
        )}
      </form>
      <SentList />
    </div>
  );
}

function Audience() {
  const found = casts.audience.value;
  const everybody = state.filter.value === EVERYTHING;
  return (
    <section class="audience" aria-label="Audience">
      <h2>
        To {found ? TENSES[found.tense] : "whoever satisfies the filter"}
        {everybody && ", anywhere"}
      </h2>
      <div class="tenses" aria-live="polite">
        <Tense name="past" count={found ? counted(found.past.about, found, "past") : null} />
        <Tense name="now" count={found ? counted(found.present.about, found, "present") : null} />
        <Tense name="future" count={found ? estimate(found.future) : null} />
      </div>
      {found && <Where audience={found} />}
      <p class="quiet-text">
        Counts are of pseudonyms, and never exact; “few” may be nobody. Move the time bar to write
        to the past or the future.
        {state.node.value && (
          <>
            {" "}
            Broker <b>{state.node.value}</b> counts those that it knows; the cast reaches people of
            all brokers.
          </>
        )}
      </p>
    </section>
  );
}

function Tense({ name, count }: { name: string; count: string | null }) {
  return (
    <span class={count && count !== "–" ? "tense on" : "tense"}>
      <b>{count ?? "…"}</b>
      <small>{name}</small>
    </span>
  );
}

function counted(about: number, found: casts.Audience, which: "past" | "present"): string {
  const asked = which === "present" ? ["present"] : ["historic", "hybrid"];
  if (!asked.includes(found.tense)) return "–";
  return told(about);
}

// The service tells few people, and nobody, as 0.
function told(about: number): string {
  return about ? `≈ ${about}` : "few";
}

function estimate(about: number | null): string {
  if (about === null) return "–";
  return about ? `≈ ${about}` : "?";
}

function Where({ audience }: { audience: casts.Audience }) {
  const places = [...audience.past.places, ...audience.present.places].slice(0, 4);
  if (places.length === 0) return null;
  return (
    <ul class="places">
      {places.map(({ place, about }) => (
        <li key={place}>
          {place} <b>≈ {about}</b>
        </li>
      ))}
    </ul>
  );
}

function SentList() {
  if (casts.sent.value.length === 0) return null;
  return (
    <section aria-label="Casts that you sent">
      <h2 class="pane-title">Sent</h2>
      <ul class="cards">
        {casts.sent.value.map((cast) => (
          <SentCast key={cast.id} cast={cast} />
        ))}
      </ul>
    </section>
  );
}

function SentCast({ cast }: { cast: casts.Sent }) {
  const known = casts.progress.value[cast.id];
  const why = casts.reasons.value[cast.id];
  return (
    <li class="entry" data-cast={cast.id}>
      <p class="entry-text">{cast.text}</p>
      <p class="entry-meta">
        <code>{cast.filter}</code>
      </p>
      {known && <Bar known={known} />}
      <div class="entry-row">
        <small class="grow">
          {known ? stateOf(known) : "…"} · <span class="whole">{since(cast.atMs)}</span>
        </small>
        {known?.state === "live" && (
          <button type="button" class="quiet" onClick={() => void casts.cancel(cast.id)}>
            Stop<span class="unseen"> this cast</span>
          </button>
        )}
        <button
          type="button"
          class={why ? "quiet on" : "quiet"}
          aria-expanded={why !== undefined}
          onClick={() => void casts.ask(cast.id)}
        >
          <WhyIcon /> Why
        </button>
      </div>
      {why && (
        <ul class="why" aria-label="Why it reached whom it did">
          {why.lines.map((line) => (
            <li key={line}>{line}</li>
          ))}
        </ul>
      )}
    </li>
  );
}

function Bar({ known }: { known: casts.Progress }) {
  const whole = Math.max(known.found, known.delivered + known.waiting + known.refused, 1);
  const share = (count: number) => `${(100 * count) / whole}%`;
  return (
    <>
      <div class="progress" aria-hidden="true">
        <i style={{ width: share(known.delivered) }} />
        <i class="refused" style={{ width: share(known.refused + known.unreachable) }} />
      </div>
      <p class="entry-meta">
        {known.found
          ? `${told(known.found)} found, ${told(known.delivered)} in a mailbox`
          : "too few to be told, so far"}
        {known.refused > 0 && `, ≈ ${known.refused} refused by their own rules`}
        {known.nodes_asked > 1 && ` · ${known.nodes_answered} of ${known.nodes_asked} brokers`}
      </p>
    </>
  );
}

function stateOf(known: casts.Progress): string {
  return known.state === "live" ? `live: ${TENSES[known.tense]}` : known.state;
}

function since(atMs: number): string {
  const passed = ago(state.now.value - atMs);
  return passed === "now" ? "just now" : `${passed} ago`;
}
