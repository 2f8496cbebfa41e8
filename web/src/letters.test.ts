import assert from "node:assert/strict";
import { test } from "node:test";
import { packed, unpack } from "./letters.ts";

test("what is packed is unpacked, each number in its shortest form", () => {
  const values = ["", "é".repeat(40), 0, 127, 128, 65_535, 65_536, 2 ** 32, 1_794_910_627_000_001];
  assert.deepEqual(unpack(packed(values)), values);
  const bytes = Uint8Array.from({ length: 300 }, (_, n) => n & 255);
  assert.deepEqual(unpack(packed([bytes])), [bytes]);
  assert.deepEqual([...packed([255, 256])], [0x92, 0xcc, 0xff, 0xcd, 1, 0]);
});
