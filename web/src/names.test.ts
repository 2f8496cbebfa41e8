import assert from "node:assert/strict";
import { test } from "node:test";
import { drawn, nameOf } from "./names.ts";

test("a pseudonym is called by its kind and its last letters", () => {
  assert.equal(nameOf("0654d0e6b411455eec", "person"), "Person 455eec");
  assert.equal(nameOf("AAEuh6-0VKbTkOxDCokVe8st@trust", "person"), "Person kVe8st");
  assert.equal(nameOf("AAHPfwHCoYqiNHdEUmrq-_Wz@trust.example", "person"), "Person UmrqWz");
  assert.equal(nameOf("0654d0e6b411455eec"), "Object 455eec");
});

test("a name that somebody chose stays as it is", () => {
  for (const vid of ["printer-00", "bus-12", "ada:phone", "hall-sensor", "decade"]) {
    assert.equal(nameOf(vid, "person"), vid);
  }
  assert.equal(drawn("meeting-room-display-on-the-second-floor"), false);
});
