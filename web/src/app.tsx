// The page: one map, and everything beside it.

import { signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { Composer } from "./composer.tsx";
import { ChosenLine, Details } from "./details.tsx";
import { Feed } from "./feedlist.tsx";
import { CloseIcon, LeaveIcon, MoonIcon, SunIcon } from "./icons.tsx";
import { List } from "./list.tsx";
import { Mailbox } from "./mailbox.tsx";
import { MapView } from "./map.tsx";
import { Network } from "./network.tsx";
import { QueryBar } from "./query.tsx";
import { ShareLink } from "./share.tsx";
import { SideBySide } from "./sidebyside.tsx";
import * as state from "./state.ts";
import { Tabs } from "./tabs.tsx";
import { recipes } from "./take.ts";
import { TimeBar } from "./timebar.tsx";
import { startTour, Tour } from "./tour.tsx";
import { answer, WhatIf } from "./whatif.tsx";
import { You } from "./you.tsx";

export function App() {
  if (state.token.value === null) return <SignIn />;
  return (
    <main class={state.sheet.value ? "page sheet" : "page"}>
      <h1 class="unseen">Roamcast: who and what is where</h1>
      <section class="panel" aria-label="Query and panels">
        <Head />
        <QueryBar />
        <Lost />
        <Tabs />
        <Pane />
        <Strip />
      </section>
      <Stage />
      <div class="tour-place">
        <Tour />
      </div>
      <TakeAway />
    </main>
  );
}

function Stage() {
  const compared = state.tab.value === "whatif" && answer.value !== null;
  return (
    <div class="stage">
      {compared ? (
        <SideBySide />
      ) : (
        <>
          <MapView>
            <ChosenLine />
          </MapView>
          <TimeBar />
        </>
      )}
    </div>
  );
}

function Pane() {
  const tab = state.tab.value;
  return (
    <div id="pane" class="holder" role="tabpanel" aria-labelledby={`tab-${tab}`}>
      {tab === "list" && (
        <>
          <Details />
          <List />
        </>
      )}
      {tab === "feed" && <Feed />}
      {tab === "cast" && <Composer />}
      {tab === "mail" && <Mailbox />}
      {tab === "you" && <You />}
      {tab === "network" && <Network />}
      {tab === "whatif" && <WhatIf />}
    </div>
  );
}

function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
      <circle cx="16" cy="16" r="4.5" />
      <path d="M16 5a11 11 0 0 1 11 11M16 27A11 11 0 0 1 5 16" />
    </svg>
  );
}

function Head() {
  const open = state.connection.value === "open";
  const past = state.when.value.tense === "past";
  const dark = state.theme.value === "dark";
  return (
    <header>
      <Mark />
      <strong>Roamcast</strong>
      <span class={open ? (past ? "pulse past" : "pulse live") : "pulse"} role="status">
        {open
          ? past
            ? "past"
            : "live"
          : state.connection.value === "lost"
            ? "reconnecting"
            : "connecting"}
      </span>
      <span class="grow" />
      <button type="button" class="quiet" onClick={startTour}>
        Tour
      </button>
      <button
        type="button"
        class="round"
        aria-label={dark ? "Light colours" : "Dark colours"}
        title={dark ? "Light colours" : "Dark colours"}
        onClick={state.turnTheme}
      >
        {dark ? <SunIcon /> : <MoonIcon />}
      </button>
      <button
        type="button"
        class="round"
        aria-label="Sign out"
        title="Sign out: forget the token"
        onClick={() => state.signOut()}
      >
        <LeaveIcon />
      </button>
    </header>
  );
}

const lostAt = signal<Date | null>(null);
state.connection.subscribe((value) => {
  if (value === "open") lostAt.value = null;
  else if (value === "lost" && lostAt.peek() === null) lostAt.value = new Date();
});

function Lost() {
  const since = lostAt.value;
  if (since === null) return null;
  return (
    <p class="lost" role="alert">
      The connection is lost. You see what was known at {since.toLocaleTimeString()}.
    </p>
  );
}

function Strip() {
  const numbers = state.numbers.value;
  if (numbers === null) return null;
  const rates = state.rates.value;
  return (
    <div class="strip">
      <Figure
        name="updates/s"
        title="Changes of the map a second"
        value={rates ? rates.updates.toFixed(rates.updates < 10 ? 1 : 0) : "–"}
      />
      <Figure
        name="sent/update"
        title="Transmissions for each change, however many watch"
        value={rates?.transmissions == null ? "–" : rates.transmissions.toFixed(1)}
      />
      <Figure name="watchers" title="Open sessions" value={String(numbers.sessions)} />
      {numbers.channels > 0 && (
        <Figure
          name="channels"
          title="Channels that programs share"
          value={String(numbers.channels)}
        />
      )}
      {numbers.bands > 0 && (
        <Figure
          name="bands"
          title="Of these channels, those for programs with a bandwidth limit"
          value={String(numbers.bands)}
        />
      )}
    </div>
  );
}

function Figure({ name, title, value }: { name: string; title: string; value: string }) {
  return (
    <span class="number" title={title}>
      <b>{value}</b>
      <small>{name}</small>
    </span>
  );
}

const copied = signal<string | null>(null);

function TakeAway() {
  const dialog = useRef<HTMLDialogElement>(null);
  const open = state.taking.value;
  // before the paint: a key pressed as soon as the recipes show must reach the open dialog
  useLayoutEffect(() => {
    const box = dialog.current as HTMLDialogElement;
    if (open && !box.open) box.showModal();
    if (!open && box.open) box.close();
  }, [open]);

  async function copy(name: string, text: string) {
    await navigator.clipboard.writeText(text);
    copied.value = name;
  }

  return (
    <dialog
      ref={dialog}
      aria-labelledby="take-title"
      onClose={() => {
        state.taking.value = false;
        copied.value = null;
      }}
    >
      <div class="dialog-head">
        <h2 id="take-title">Take this away</h2>
        <button
          type="button"
          class="round"
          aria-label="Close"
          onClick={() => dialog.current?.close()}
        >
          <CloseIcon />
        </button>
      </div>
      <p class="quiet-text">
        The same objects outside this page. Put your token into <code>ROAMCAST_TOKEN</code> first.
      </p>
      {open && <ShareLink />}
      {open &&
        recipes(location.origin, state.filter.value, state.when.value).map(({ name, text }) => (
          <section key={name} class="recipe">
            <div class="recipe-head">
              <h3>{name}</h3>
              <button type="button" class="quiet" onClick={() => copy(name, text)}>
                {copied.value === name ? "Copied" : "Copy"}
                <span class="unseen"> {name}</span>
              </button>
            </div>
            {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a box that scrolls needs the keyboard */}
            <pre tabIndex={0}>{text}</pre>
          </section>
        ))}
    </dialog>
  );
}

function SignIn() {
  const field = useRef<HTMLInputElement>(null);
  return (
    <main class="sign-in">
      <form
        class="card"
        onSubmit={(event) => {
          event.preventDefault();
          void state.signIn((field.current as HTMLInputElement).value);
        }}
      >
        <Mark />
        <h1>Roamcast</h1>
        <p>Who and what is where, now. Nobody learns who they are.</p>
        <label for="token">Token</label>
        <input
          id="token"
          ref={field}
          type="password"
          autocomplete="off"
          required
          spellcheck={false}
          aria-describedby="token-help"
        />
        {state.refusal.value && (
          <p class="says bad" role="alert">
            {state.refusal.value}
          </p>
        )}
        <button type="submit" class="main">
          Open the map
        </button>
        <p id="token-help" class="quiet-text">
          The service printed a token when it started; <code>roamcast token</code> makes others. It
          stays in this tab and is forgotten when you close it.
        </p>
        <p class="quiet-text">
          <a href="/docs">The API</a>
        </p>
      </form>
    </main>
  );
}
