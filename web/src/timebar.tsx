// The time bar: past, now and future of the same question. Moving it rewrites the filter, so that what is
// seen, previewed and cast to stays one text.

import { signal } from "@preact/signals";
import { PauseIcon, PlayIcon } from "./icons.tsx";
import * as state from "./state.ts";
import { clock, offset } from "./when.ts";

const SPANS_MIN = [15, 60, 360, 1_440];
const SPEEDS = [1, 2, 5, 10, 20];
const FRAME_MS = 400;
const MINUTE = 60_000;
const LABEL = 14; // percent of the bar that a label takes
const SNAP = 0.015; // of the bar: so near to now is now

const span = signal(15); // minutes to either side
const speed = signal(10);
export const playing = signal(false);

let timer = 0;
let played = 0;

function play(): void {
  const at = state.when.value;
  if (at.tense !== "past") return;
  playing.value = true;
  played = performance.now();
  clearInterval(timer);
  timer = window.setInterval(frame, FRAME_MS);
}

export function pause(): void {
  clearInterval(timer);
  playing.value = false;
}

// The next moment; a slow service is waited for, and time goes on by what has passed.
function frame(): void {
  const at = state.when.value;
  if (at.tense !== "past") {
    pause();
    return;
  }
  if (state.asOf.value !== at.toMs) return;
  const step = (performance.now() - played) * speed.value;
  if (step < 1_000) return; // moments are whole seconds
  played = performance.now();
  const next = at.toMs + step;
  if (next >= Date.now()) {
    pause();
    state.move({ tense: "now" });
  } else {
    state.move({ tense: "past", fromMs: next, toMs: next });
  }
}

function set(seconds: number): void {
  const nowMs = Date.now();
  const atMs = nowMs + seconds * 1000;
  if (Math.abs(seconds) < SNAP * span.value * 60) state.move({ tense: "now" });
  else if (seconds < 0) state.move({ tense: "past", fromMs: atMs, toMs: atMs });
  else state.move({ tense: "future", fromMs: nowMs, toMs: atMs });
}

export function TimeBar() {
  const nowMs = state.now.value;
  const when = state.when.value;
  const edge = span.value * 60;
  const at = when.tense === "now" ? 0 : (when.toMs - nowMs) / 1000;
  const begins = state.pastBegins.value;
  const lost = begins === null ? 0 : share((begins - nowMs) / 1000, edge);
  const thumb = share(at, edge);
  const middle = 50;
  const [from, to] = thumb < middle ? [thumb, middle] : [middle, thumb];
  return (
    <section class={`time ${when.tense}`} aria-label="Time">
      <button
        type="button"
        class="round"
        disabled={when.tense !== "past"}
        aria-label={playing.value ? "Pause" : "Play"}
        title={when.tense === "past" ? "Play the past" : "Move into the past to play it"}
        onClick={() => (playing.value ? pause() : play())}
      >
        {playing.value ? <PauseIcon /> : <PlayIcon />}
      </button>
      <label class="speed">
        <span class="unseen">Speed</span>
        <select
          value={String(speed.value)}
          onChange={(event) => {
            speed.value = Number(event.currentTarget.value);
          }}
        >
          {SPEEDS.map((times) => (
            <option key={times} value={times}>
              {times}×
            </option>
          ))}
        </select>
      </label>
      <div class="track">
        <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
          <defs>
            <pattern id="gone" width="2" height="3" patternUnits="userSpaceOnUse">
              <rect width="1" height="3" class="gone" />
            </pattern>
          </defs>
          <rect x="0" width="100" y="3.5" height="3" class="whole" />
          <rect x={from} width={Math.max(0, to - from)} y="3.5" height="3" class="chosen" />
          {lost > 0 && (
            <rect x="0" width={Math.min(lost, 50)} y="3.5" height="3" fill="url(#gone)" />
          )}
        </svg>
        {lost > 0 && (
          <span
            class="horizon"
            style={{ left: `${Math.min(lost, 50)}%` }}
            title="The horizon: the past ends here. What was before is deleted, with the keys of its pseudonyms; nobody can ask for it or reach them."
          />
        )}
        <span class="tick" />
        <input
          type="range"
          aria-label="Time of the map"
          aria-valuetext={spoken(at, when.tense)}
          min={-edge}
          max={edge}
          step={edge / 900}
          value={Math.max(-edge, Math.min(edge, at))}
          onInput={(event) => {
            pause();
            set(Number(event.currentTarget.value));
          }}
        />
        <span class="ends" aria-hidden="true">
          <span>−{offset(edge * 1000)}</span>
          <span>now</span>
          <span>+{offset(edge * 1000)}</span>
        </span>
        {lost > LABEL && lost < 50 - LABEL && (
          <span class="ends horizon-name" aria-hidden="true" style={{ left: `${lost}%` }}>
            horizon
          </span>
        )}
      </div>
      <p class="moment" role="status">
        <Moment at={at} />
      </p>
      <label class="speed">
        <span class="unseen">Reach of the time bar</span>
        <select
          value={String(span.value)}
          onChange={(event) => {
            span.value = Number(event.currentTarget.value);
          }}
        >
          {SPANS_MIN.map((minutes) => (
            <option key={minutes} value={minutes}>
              ±{offset(minutes * MINUTE)}
            </option>
          ))}
        </select>
      </label>
      <button
        type="button"
        class="quiet"
        disabled={when.tense === "now"}
        onClick={() => {
          pause();
          state.move({ tense: "now" });
        }}
      >
        Now
      </button>
    </section>
  );
}

function Moment({ at }: { at: number }) {
  const when = state.when.value;
  if (state.trouble.value) return <small class="bad">{state.trouble.value}</small>;
  if (when.tense === "now") {
    return (
      <>
        <b>Now</b>
        <small>as it changes</small>
      </>
    );
  }
  if (when.tense === "future") {
    return (
      <>
        <b>Until {clock(when.toMs, state.now.value)}</b>
        <small>who comes by then</small>
      </>
    );
  }
  const loading = state.asOf.value !== when.toMs && !playing.value;
  const gone = when.toMs < (state.pastBegins.value ?? 0);
  return (
    <>
      <b>{clock(when.toMs, state.now.value)}</b>
      <small>
        {gone ? "beyond the horizon" : loading ? "looking …" : `${offset(at * 1000)} ago`}
      </small>
    </>
  );
}

function spoken(at: number, tense: string): string {
  if (tense === "now") return "now";
  return at < 0 ? `${offset(at * 1000)} ago` : `from now until in ${offset(at * 1000)}`;
}

// Seconds from now as a share of the bar, 0 to 100.
function share(seconds: number, edge: number): number {
  return Math.max(0, Math.min(100, 50 + (50 * seconds) / edge));
}
