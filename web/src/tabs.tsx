// What stands beside the map, one at a time. On a narrow screen the tabs are a bar at the bottom, and
// the map is one of them.

import type { ComponentChildren } from "preact";
import {
  CastIcon,
  FeedIcon,
  ListIcon,
  MailIcon,
  MapIcon,
  NetIcon,
  WhatIfIcon,
  YouIcon,
} from "./icons.tsx";
import * as mail from "./mail.ts";
import * as state from "./state.ts";
import type { Tab } from "./view.ts";

type Entry = { tab: Tab; name: string; icon: ComponentChildren; scope: string };

const ENTRIES: Entry[] = [
  { tab: "list", name: "List", icon: <ListIcon />, scope: "read" },
  { tab: "feed", name: "Feed", icon: <FeedIcon />, scope: "subscribe" },
  { tab: "cast", name: "Cast", icon: <CastIcon />, scope: "cast" },
  { tab: "mail", name: "Mail", icon: <MailIcon />, scope: "subscribe" },
  { tab: "you", name: "You", icon: <YouIcon />, scope: "publish" },
  { tab: "network", name: "Brokers", icon: <NetIcon />, scope: "admin" },
  { tab: "whatif", name: "What if", icon: <WhatIfIcon />, scope: "admin" },
];

export function open(tab: Tab): void {
  state.tab.value = tab;
  state.sheet.value = true;
}

export function Tabs() {
  const may = state.grant.value;
  const shown = ENTRIES.filter(({ scope }) => may.scopes.includes(scope));
  const current = state.tab.value;

  function press(event: KeyboardEvent) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const at = shown.findIndex(({ tab }) => tab === current);
    const next = step !== undefined ? shown[(at + step + shown.length) % shown.length] : undefined;
    if (!next) return;
    event.preventDefault();
    open(next.tab);
    document.getElementById(`tab-${next.tab}`)?.focus();
  }

  return (
    <nav class="tabs" aria-label="Beside the map">
      <button
        type="button"
        class="tab map-tab"
        aria-pressed={!state.sheet.value}
        onClick={() => {
          state.sheet.value = false;
        }}
      >
        <MapIcon />
        Map
      </button>
      <div role="tablist" aria-label="Panels" onKeyDown={press}>
        {shown.map(({ tab, name, icon }) => (
          <button
            key={tab}
            type="button"
            role="tab"
            id={`tab-${tab}`}
            class={tab === current ? "tab on" : "tab"}
            aria-selected={tab === current}
            aria-controls="pane"
            tabIndex={tab === current ? 0 : -1}
            onClick={() => open(tab)}
          >
            {icon}
            {name}
            {tab === "mail" && <Unread />}
          </button>
        ))}
      </div>
    </nav>
  );
}

function Unread() {
  const count = mail.mails.value.filter(({ id }) => !mail.seen.value.has(id)).length;
  if (count === 0) return null;
  return (
    <span class="badge">
      {count}
      <span class="unseen"> unread</span>
    </span>
  );
}
