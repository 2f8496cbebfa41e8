import assert from "node:assert/strict";
import { test } from "node:test";
import {
  type Answer,
  FIRST_WAIT_MS,
  LAST_WAIT_MS,
  type Line,
  Session,
  type State,
} from "./session.ts";

class Wire implements Line {
  onopen = null;
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: (() => void) | null = null;
  sent: { type: string; filter?: string }[] = [];
  send(data: string): void {
    this.sent.push(JSON.parse(data));
  }
  close(): void {
    this.onclose?.();
  }
  says(answer: object): void {
    this.onmessage?.({ data: JSON.stringify(answer) });
  }
}

function stage(refused = false) {
  const wires: Wire[] = [];
  const waits: [number, () => void][] = [];
  const states: State[] = [];
  const answers: Answer[] = [];
  const session = new Session({
    open: () => {
      const wire = new Wire();
      wires.push(wire);
      return wire;
    },
    refused: async () => refused,
    state: (state) => states.push(state),
    answer: (answer) => answers.push(answer),
    wait: (ms, then) => waits.push([ms, then]),
    random: () => 1,
  });
  return { session, wires, waits, states, answers };
}

const welcome = { type: "welcome", session: "s", time: "", ping_s: 20 };
const settled = () => new Promise((resolve) => setImmediate(resolve));

test("a filter is followed when the session opens, and again when it comes back", async () => {
  const { session, wires, waits, states } = stage();
  session.follow("type = 'printer'");
  assert.deepEqual(wires[0]?.sent, []);
  wires[0]?.says(welcome);
  wires[0]?.close();
  await settled();
  waits[0]?.[1]();
  wires[1]?.says(welcome);
  for (const wire of wires) {
    assert.deepEqual(wire.sent, [{ type: "subscribe", re: "view", filter: "type = 'printer'" }]);
  }
  assert.deepEqual(states, ["open", "lost", "open"]);
});

test("waits double up to a bound, and start anew after a welcome", async () => {
  const { wires, waits } = stage();
  for (let n = 0; n < 6; n++) {
    wires[n]?.close();
    await settled();
    waits[n]?.[1]();
  }
  const waited = waits.map(([ms]) => ms);
  assert.deepEqual(waited.slice(0, 3), [FIRST_WAIT_MS, 2 * FIRST_WAIT_MS, 4 * FIRST_WAIT_MS]);
  assert.equal(Math.max(...waited), LAST_WAIT_MS);
  wires[6]?.says(welcome);
  wires[6]?.close();
  await settled();
  assert.equal(waits[6]?.[0], FIRST_WAIT_MS);
});

test("a token that is refused ends the session; nothing is tried again", async () => {
  const { wires, waits, states } = stage(true);
  wires[0]?.close();
  await settled();
  assert.deepEqual(states, ["lost", "refused"]);
  assert.deepEqual(waits, []);
});

test("a line that is silent for too long is given up", async () => {
  const { session, wires, states } = stage();
  wires[0]?.says(welcome);
  session.beat(Date.now());
  assert.deepEqual(wires[0]?.sent, [{ type: "heartbeat" }]);
  session.beat(Date.now() + 60_000);
  await settled();
  assert.deepEqual(states, ["open", "lost"]);
});
