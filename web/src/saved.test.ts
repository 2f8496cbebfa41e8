import assert from "node:assert/strict";
import { test } from "node:test";
import { keepViews, SAVED_MAX, savedViews, withoutView, withView } from "./saved.ts";

class Shelf {
  text: string | null = null;
  getItem(): string | null {
    return this.text;
  }
  setItem(_name: string, text: string): void {
    this.text = text;
  }
}

test("a view is kept under its name, once, the newest first, without a token", () => {
  const shelf = new Shelf();
  let views = withView(savedViews(shelf), "hall", "#filter=place+%3D+'hall'&token=secret");
  views = withView(views, "all", "");
  views = withView(views, "hall", "#filter=x");
  keepViews(shelf, views);
  assert.deepEqual(savedViews(shelf), [
    { name: "hall", fragment: "#filter=x" },
    { name: "all", fragment: "#" },
  ]);
  assert.ok(!JSON.stringify(withView([], "a", "#token=secret")).includes("secret"));
  assert.deepEqual(withoutView(views, "hall"), [{ name: "all", fragment: "#" }]);
});

test("at most so many, and what is damaged is no view", () => {
  let views = savedViews(new Shelf());
  for (let n = 0; n <= SAVED_MAX; n++) views = withView(views, `v${n}`, "");
  assert.equal(views.length, SAVED_MAX);
  const shelf = new Shelf();
  for (const text of ["{", '"x"', "[1, null]"]) {
    shelf.text = text;
    assert.deepEqual(savedViews(shelf), []);
  }
});
