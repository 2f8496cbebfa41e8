// Share this view, or add a phone: each gets a token of its own, narrower and shorter than yours
// (decision 0191).

import { signal } from "@preact/signals";
import { toSvgPath } from "lean-qr/extras/svg";
import { generate } from "lean-qr/nano";
import { reasonOf } from "./api.ts";
import * as state from "./state.ts";
import { EVERYTHING, shareAddress } from "./view.ts";

type Made = { token: string; id: string; expires: string };

const DAY_S = 86_400;
const PHONE_DAYS = 30;
const FIX_S = 30; // between two fixes of a phone that was just added
const FIX_M = 10;

const made = signal<{ link: string; token: string; expires: string } | null>(null);
const phone = signal<{ config: string; token: string } | null>(null);
const trouble = signal<string | null>(null);
const copied = signal(false);

state.token.subscribe(() => {
  made.value = phone.value = trouble.value = null;
});

function narrower(wanted: object): Promise<Made> {
  return state.service().ask<Made>("POST", "/tokens", wanted);
}

async function share(): Promise<void> {
  try {
    const base = state.timed.value.base || EVERYTHING;
    const wanted = {
      lifetime_s: DAY_S,
      scopes: ["read", "subscribe"],
      ...(base === EVERYTHING ? {} : { filter: base }),
    };
    const { token, expires } = await narrower(wanted);
    made.value = { link: shareAddress(location.origin, token, location.hash), token, expires };
    copied.value = false;
    trouble.value = null;
  } catch (error) {
    trouble.value = reasonOf(error);
  }
}

async function revoke(token: string): Promise<void> {
  try {
    await state.service().ask("POST", "/tokens/revoke", { token });
    if (made.value?.token === token) made.value = null;
    if (phone.value?.token === token) phone.value = null;
  } catch (error) {
    trouble.value = reasonOf(error);
  }
}

async function addPhone(): Promise<void> {
  try {
    const { token } = await narrower({
      lifetime_s: PHONE_DAYS * DAY_S,
      scopes: ["publish", "read", "subscribe"],
    });
    const settings = {
      _type: "configuration",
      mode: 3,
      url: `${location.origin}/owntracks`,
      auth: true,
      username: state.grant.value.subject,
      password: token,
      deviceId: "phone",
      tid: "me",
      // "move": the default mode says nothing before the phone has gone 500 m
      monitoring: 2,
      locatorInterval: FIX_S, // of iOS; Android has one for this mode
      moveModeLocatorInterval: FIX_S,
      locatorDisplacement: FIX_M,
    };
    const inline = btoa(String.fromCharCode(...new TextEncoder().encode(JSON.stringify(settings))));
    const config = `owntracks:///config?inline=${encodeURIComponent(inline)}`;
    phone.value = { config, token };
    trouble.value = null;
  } catch (error) {
    trouble.value = reasonOf(error);
  }
}

export function ShareLink() {
  const known = made.value;
  return (
    <section class="recipe" aria-label="A link to this view">
      <div class="recipe-head">
        <h3>A link</h3>
        {known === null ? (
          <button type="button" class="quiet" onClick={() => void share()}>
            Make a link
          </button>
        ) : (
          <span class="entry-row">
            <button
              type="button"
              class="quiet"
              onClick={async () => {
                await navigator.clipboard.writeText(known.link);
                copied.value = true;
              }}
            >
              {copied.value ? "Copied" : "Copy"}
              <span class="unseen"> the link</span>
            </button>
            <button type="button" class="quiet" onClick={() => void revoke(known.token)}>
              Revoke
            </button>
          </span>
        )}
      </div>
      <p class="quiet-text">
        {known === null
          ? "For somebody without a token: it sees what this filter asks for, for a day, and changes nothing."
          : `Whoever has it sees what this filter asks for until ${new Date(known.expires).toLocaleString("en-GB")}.`}
      </p>
      {known && (
        <div class="share">
          <Code text={known.link} says="The link as a QR code" />
          {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a box that scrolls needs the keyboard */}
          <pre tabIndex={0} class="link-text">
            {known.link}
          </pre>
        </div>
      )}
      {trouble.value && <p class="says bad">{trouble.value}</p>}
    </section>
  );
}

export function AddPhone() {
  const known = phone.value;
  const far = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
  return (
    <section class="audience" aria-label="Add a phone">
      <div class="entry-row">
        <h2>Add a phone</h2>
        <span class="grow" />
        {known === null ? (
          <button type="button" class="quiet" onClick={() => void addPhone()}>
            Show the code
          </button>
        ) : (
          <button type="button" class="quiet" onClick={() => void revoke(known.token)}>
            Revoke
          </button>
        )}
      </div>
      {known === null ? (
        <p class="quiet-text">
          With the free app OwnTracks your phone is on this map within a minute, under your rules.
        </p>
      ) : (
        <>
          <Code text={known.config} says="OwnTracks configuration as a QR code" />
          <p class="quiet-text">
            Scan it with the phone's camera, or <a href={known.config}>open it on this device</a>.
            It holds a token for this phone alone, for {PHONE_DAYS} days. The app then reports every{" "}
            {FIX_S} seconds; its mode <i>significant changes</i> spares the battery.
          </p>
        </>
      )}
      {far && (
        <p class="quiet-text">
          This service listens on this machine only; for a phone it needs an address and TLS.
        </p>
      )}
    </section>
  );
}

function Code({ text, says }: { text: string; says: string }) {
  const code = generate(text);
  const edge = code.size + 4;
  return (
    <svg
      class="qr"
      shape-rendering="crispEdges"
      viewBox={`-2 -2 ${edge} ${edge}`}
      role="img"
      aria-label={says}
    >
      <rect x="-2" y="-2" width={edge} height={edge} />
      <path d={toSvgPath(code)} />
    </svg>
  );
}
