// The network: brokers, the areas that they serve, their links and loads, as this broker sees them.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { reasonOf } from "./api.ts";
import * as state from "./state.ts";

type LinkView = { node: string; state: string; reason: string; waiting: number };
type Overlay = {
  node: string;
  links: LinkView[];
  graph: Record<string, string[]>;
  tree: string[];
  nodes: { node: string; url: string; places: string[] }[];
  loads: Record<string, number>;
  held: Record<string, [number, number]>;
};
type Placement = {
  root: string;
  state: string;
  placement: { traffic: number; nowhere: number; best: number; reason: string } | null;
};

const LOOK_MS = 3_000;

// What of a broker's many bounds an operator looks for, in words that need no glossary.
const HELD: [key: string, says: string][] = [
  ["exchange: crowd.members", "contexts on its own map"],
  ["states: contexts of others", "contexts of others, watched here"],
  ["handoff: consumers", "readers of events"],
  ["handoff: virtual consumers", "virtual consumers: readers who may come, prepared for"],
  ["custody: parcels", "casts on their way to others"],
  ["links: queue messages", "messages that wait for a link"],
];

export const overlay = signal<Overlay | null>(null);
const placement = signal<Placement | null>(null);
const trouble = signal<string | null>(null);

async function load(): Promise<void> {
  try {
    overlay.value = await state.service().get<Overlay>("/overlay");
    placement.value = await state.service().get<Placement>("/placement");
    trouble.value = null;
  } catch (error) {
    trouble.value = reasonOf(error);
  }
}

export function Network() {
  const node = state.node.value;
  useEffect(() => {
    if (!node) return undefined;
    void load();
    const timer = setInterval(() => {
      if (!document.hidden) void load();
    }, LOOK_MS);
    return () => clearInterval(timer);
  }, [node]);
  const seen = overlay.value;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a box that scrolls needs the keyboard
    <section class="pane" tabIndex={0} aria-label="Brokers, links and loads">
      {trouble.value && <p class="says bad">{trouble.value}</p>}
      {node === "" && <Alone />}
      {seen && node && (
        <>
          <Graph seen={seen} />
          <Brokers seen={seen} />
          <Links seen={seen} />
          <Spared />
          <Loads seen={seen} />
        </>
      )}
    </section>
  );
}

function Alone() {
  const numbers = state.numbers.value;
  return (
    <>
      <svg class="graph" viewBox="0 0 320 120" role="img" aria-label="One broker">
        <circle cx="160" cy="52" r="22" class="own" />
        <text x="160" y="98">
          this broker serves everything
        </text>
      </svg>
      {numbers && (
        <dl class="loads">
          <dt>contexts</dt>
          <dd>{numbers.contexts}</dd>
          <dt>watchers</dt>
          <dd>{numbers.sessions}</dd>
          <dt>programs on links</dt>
          <dd>{numbers.clients}</dd>
          <dt>queries</dt>
          <dd>{numbers.queries}</dd>
          <dt>channels</dt>
          <dd>{numbers.channels}</dd>
          <dt>of these for bandwidth limits</dt>
          <dd>{numbers.bands}</dd>
        </dl>
      )}
      <p class="pane-empty">
        With <code>roamcast serve --demo --brokers 3</code> each building has a broker of its own:
        areas, links, and who crosses from one to the next are here.
      </p>
    </>
  );
}

function Graph({ seen }: { seen: Overlay }) {
  const names = Object.keys(seen.graph).sort();
  const spot = (name: string): [number, number] => {
    const turn = (2 * Math.PI * names.indexOf(name)) / names.length - Math.PI / 2;
    return names.length === 1 ? [160, 100] : [160 + 96 * Math.cos(turn), 100 + 70 * Math.sin(turn)];
  };
  const edges = names.flatMap((from) =>
    (seen.graph[from] ?? []).filter((to) => from < to).map((to) => [from, to] as const),
  );
  return (
    <svg class="graph" viewBox="0 0 320 200" role="img" aria-label="Brokers and their links">
      {edges.map(([from, to]) => {
        const [[x1, y1], [x2, y2]] = [spot(from), spot(to)];
        const ours = [from, to].includes(seen.node);
        const tree = ours && seen.tree.includes(from === seen.node ? to : from);
        return <line key={from + to} class={tree ? "tree" : ""} x1={x1} y1={y1} x2={x2} y2={y2} />;
      })}
      {names.map((name) => {
        const [x, y] = spot(name);
        return (
          <g key={name}>
            <circle cx={x} cy={y} r="19" class={name === seen.node ? "own" : ""} />
            <text x={x} y={y + 4} class={name === seen.node ? "on" : ""}>
              {name.slice(0, 6)}
            </text>
          </g>
        );
      })}
    </svg>
  );
}

function Brokers({ seen }: { seen: Overlay }) {
  return (
    <section aria-label="Brokers">
      <h2 class="pane-title">Brokers and their areas</h2>
      <ul class="places">
        {seen.nodes.map(({ node, places }) => (
          <li key={node}>
            <b>
              {node}
              {node === seen.node && " (this one)"}
            </b>
            <span>
              {places.join(", ") || "everywhere"}
              {seen.loads[node] !== undefined && ` · ${percent(seen.loads[node])} busy`}
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Links({ seen }: { seen: Overlay }) {
  return (
    <section aria-label="Links of this broker">
      <h2 class="pane-title">Links of {seen.node}</h2>
      <ul class="places">
        {seen.links.map((link) => (
          <li key={link.node}>
            <b>{link.node}</b>
            <span class={link.state === "up" ? "up" : "down"}>
              {link.state}
              {link.state !== "up" && link.reason && `: ${link.reason}`}
              {link.waiting > 0 && ` · ${link.waiting} waiting`}
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Spared() {
  const plan = placement.value?.placement;
  if (!plan) return null;
  return (
    <section aria-label="Filters between brokers">
      <h2 class="pane-title">Filters between brokers</h2>
      <p class="quiet-text">
        {plan.traffic.toFixed(0)} items crossed the links of late. Without filters it would be{" "}
        {plan.nowhere.toFixed(0)}, with the best placement {plan.best.toFixed(0)}: {plan.reason}.
      </p>
    </section>
  );
}

function Loads({ seen }: { seen: Overlay }) {
  const rows = HELD.filter(([key]) => key in seen.held);
  return (
    <section aria-label="What this broker holds">
      <h2 class="pane-title">What {seen.node} holds</h2>
      <dl class="loads">
        {rows.map(([key, says]) => (
          <>
            <dt>{says}</dt>
            <dd>{seen.held[key]?.[0].toLocaleString("en-GB")}</dd>
          </>
        ))}
      </dl>
    </section>
  );
}

function percent(share: number): string {
  return `${Math.round(100 * share)} %`;
}
