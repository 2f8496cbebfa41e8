import assert from "node:assert/strict";
import { test } from "node:test";
import { apart, type Dot } from "./dots.ts";

const dots = (count: number, across: number): Dot[] =>
  Array.from({ length: count }, (_, n) => ({
    x: 0.5 + across * (n % 20),
    y: 0.5 + across * Math.floor(n / 20),
    thing: false,
    known: "point",
    shown: true,
  }));

test("a crowd is as far apart as its dots fill the box around them", () => {
  const found = apart(dots(400, 1e-8));
  assert.ok(found > 0.9e-8 && found < 1.1e-8, String(found));
});

test("a few dots are no crowd, and nobody counts who is not shown", () => {
  assert.equal(apart(dots(100, 1e-8)), 1);
  assert.equal(apart(dots(400, 1e-8).map((dot) => ({ ...dot, shown: false }))), 1);
});
