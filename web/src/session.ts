// One WebSocket session with the service that comes back by itself. The token travels as a subprotocol:
// a browser sets no headers there, and an address would land in logs.

import type { Change, Feature } from "./objects.ts";

export type Numbers = {
  contexts: number;
  sessions: number;
  clients: number;
  queries: number;
  channels: number;
  bands: number;
  updates: number;
  transmissions: number;
};

export type Answer =
  | { type: "welcome"; session: string; time: string; ping_s: number }
  | { type: "subscribed"; re: string; query: number; count: number; features: Feature[] }
  | { type: "current"; query: number }
  | { type: "changes"; query: number; events: Change[] }
  | ({ type: "numbers"; re: string; time: string } & Numbers)
  | { type: "count"; re: string; count: number }
  | { type: "alive"; re: string; time: string }
  | { type: "done"; re: string; vid: string | null }
  | {
      type: "error";
      re: string;
      status: number;
      title: string;
      detail: string;
      position?: number;
    };

export type State = "connecting" | "open" | "lost" | "refused";

export type Line = {
  onopen: (() => void) | null;
  onmessage: ((event: { data: string }) => void) | null;
  onclose: (() => void) | null;
  send(data: string): void;
  close(): void;
};

export type Parts = {
  open(): Line;
  refused(): Promise<boolean>; // whether the service answers, and refuses the token
  state(state: State): void;
  answer(answer: Answer): void;
  wait?(ms: number, then: () => void): void;
  random?(): number;
};

export const FIRST_WAIT_MS = 250;
export const LAST_WAIT_MS = 1_500;
export const SILENCE_MS = 30_000;

export function subprotocols(token: string): string[] {
  return ["roamcast.json.v1", `roamcast.token.${token}`];
}

export class Session {
  state: State = "connecting";
  #parts: Parts;
  #line: Line | null = null;
  #filter: string | null = null;
  #waitMs = FIRST_WAIT_MS;
  #over = false;
  #heard = 0;

  constructor(parts: Parts) {
    this.#parts = parts;
    this.#connect();
  }

  // Follow a filter; after a reconnection it is placed again.
  follow(filter: string): void {
    this.#filter = filter;
    this.send({ type: "subscribe", re: "view", filter });
  }

  // Follow nothing until the next filter.
  leave(): void {
    if (this.#filter !== null) this.send({ type: "unsubscribe", re: "view" });
    this.#filter = null;
  }

  send(message: object): boolean {
    if (this.state !== "open" || this.#line === null) return false;
    this.#line.send(JSON.stringify(message));
    return true;
  }

  // Ask for a sign of life; a line that has been silent for too long is given up.
  beat(nowMs: number): void {
    if (this.state !== "open") return;
    if (this.#heard && nowMs - this.#heard > SILENCE_MS) this.#line?.close();
    else this.send({ type: "heartbeat" });
  }

  close(): void {
    this.#over = true;
    this.#line?.close();
  }

  #connect(): void {
    if (this.#over) return;
    const line = this.#parts.open();
    this.#line = line;
    line.onmessage = ({ data }) => this.#take(JSON.parse(data) as Answer);
    line.onclose = () => {
      if (line === this.#line) void this.#lost();
    };
  }

  #take(answer: Answer): void {
    this.#heard = Date.now();
    if (answer.type === "welcome") {
      this.#become("open");
      this.#waitMs = FIRST_WAIT_MS;
      if (this.#filter !== null) this.follow(this.#filter);
    }
    this.#parts.answer(answer);
  }

  async #lost(): Promise<void> {
    this.#line = null;
    this.#heard = 0;
    if (this.#over) return;
    this.#become("lost");
    if (await this.#parts.refused()) {
      this.#over = true;
      this.#become("refused");
      return;
    }
    // a drawn share of the wait, so that the pages of a service that comes back do not come at once
    const random = this.#parts.random ?? Math.random;
    const wait = this.#parts.wait ?? ((ms, then) => setTimeout(then, ms));
    wait(this.#waitMs * (0.5 + 0.5 * random()), () => this.#connect());
    this.#waitMs = Math.min(LAST_WAIT_MS, this.#waitMs * 2);
  }

  #become(state: State): void {
    this.state = state;
    this.#parts.state(state);
  }
}
