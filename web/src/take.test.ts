import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import { recipes, shell } from "./take.ts";
import { readWhen } from "./when.ts";

const NASTY = `type = 'o''neil' AND name = "$(touch x)" \\ \`id\` ü`;

test("a shell reads back exactly the filter", () => {
  const out = execFileSync("sh", ["-c", `printf %s ${shell(NASTY)}`], { encoding: "utf8" });
  assert.equal(out, NASTY);
});

const NOW = { tense: "now" } as const;

test("every recipe names the filter and the service, and none a token", () => {
  for (const { text } of recipes("http://127.0.0.1:8080", "type = 'printer'", NOW)) {
    assert.match(text, /127\.0\.0\.1:8080/);
    assert.match(text, /printer/);
    assert.doesNotMatch(text, /Bearer [^$]/);
  }
});

test("the past is asked for as it was, by every recipe", () => {
  const filter = "type = 'printer' AND overlaps(time, TIMESTAMP('2026-11-18T20:00:00Z'))";
  const { when } = readWhen(filter, Date.parse("2026-11-18T21:00:00Z"));
  for (const { text } of recipes("http://127.0.0.1:8080", filter, when)) {
    assert.match(text, /(datetime=|--at |at=")2026-11-18T20(:|%3A)00(:|%3A)00Z/);
    assert.doesNotMatch(text, /changes|watch/);
  }
});
