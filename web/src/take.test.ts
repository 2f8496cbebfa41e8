import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import { recipes, shell } from "./take.ts";

const NASTY = `type = 'o''neil' AND name = "$(touch x)" \\ \`id\` ü`;

test("a shell reads back exactly the filter", () => {
  const out = execFileSync("sh", ["-c", `printf %s ${shell(NASTY)}`], { encoding: "utf8" });
  assert.equal(out, NASTY);
});

test("every recipe names the filter and the service, and none a token", () => {
  for (const { text } of recipes("http://127.0.0.1:8080", "type = 'printer'")) {
    assert.match(text, /127\.0\.0\.1:8080/);
    assert.match(text, /printer/);
    assert.doesNotMatch(text, /Bearer [^$]/);
  }
});
