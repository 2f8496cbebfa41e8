import assert from "node:assert/strict";
import { test } from "node:test";
import { accept, suggest, type Vocabulary } from "./completion.ts";

const KNOWN: Vocabulary = {
  attributes: new Map([
    ["type", ["person", "printer"]],
    ["team name", ["it's", "ops"]],
    ["temperature", []],
  ]),
  places: ["campus", "campus/hall", "campus/b1/2"],
};

function choose(text: string, caret: number, which: number): [string, number] {
  const found = suggest(text, caret, KNOWN);
  const chosen = found.options[which];
  assert.ok(chosen);
  return accept(text, found, chosen);
}

function shown(text: string): string[] {
  return suggest(text, text.length, KNOWN).options.map((option) => option.text);
}

test("names, functions and words follow what is begun", () => {
  assert.deepEqual(shown("ty"), ["type"]);
  assert.deepEqual(shown("type = 'person' AND te"), ['"team name"', "temperature"]);
  assert.deepEqual(shown("with"), ["within(place, '')"]);
  assert.deepEqual(shown("type = 'person' an"), ["AND "]);
  assert.deepEqual(shown("type"), []);
  assert.deepEqual(shown(""), []);
});

test("inside quotes come values of the name before, or places", () => {
  assert.deepEqual(shown("type = 'p"), ["person'", "printer'"]);
  assert.deepEqual(shown("type IN ('person', 'pri"), ["printer'"]);
  assert.deepEqual(shown("within(place, 'hall"), ["campus/hall'"]);
  assert.deepEqual(shown('"team name" = \'i'), ["it''s'"]);
  assert.deepEqual(shown("unknown = 'p"), []);
});

test("what is chosen takes the place of what was begun, and the caret stands where one goes on", () => {
  const begun = "type = 'printer' AND with";
  const [text, caret] = choose(begun, begun.length, 0);
  assert.equal(text, "type = 'printer' AND within(place, '')");
  assert.equal(text.slice(caret), "')");
  assert.equal(suggest(text, caret, KNOWN).options.length, 3);
  const [whole, end] = choose(text, caret, 1);
  assert.equal(whole, "type = 'printer' AND within(place, 'campus/hall')");
  assert.equal(whole.slice(end), ")");
});
