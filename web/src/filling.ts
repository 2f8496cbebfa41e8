// A standard query needs values; the page fills them in from what is chosen or on the map, to be edited.

import type { Template } from "./api.ts";
import { label, type Seen } from "./objects.ts";
import type { Places } from "./places.ts";

export function fill(template: Template, example: Seen | null, places: Places): string {
  return template.filter.replace(/\{([a-z_]+)\}/g, (_, name: string) =>
    quoted(exampleOf(name, template, example, places)),
  );
}

function exampleOf(name: string, template: Template, example: Seen | null, places: Places): string {
  if (name === "vid") return example?.vid ?? "";
  if (name === "place") {
    const at = example?.place ?? [...places.byPath.keys()][0] ?? "";
    // "in" asks for a part of the world, so the place around is the more telling example
    const above = at.includes("/") ? at.slice(0, at.lastIndexOf("/")) : at;
    return template.filter.includes("within(") ? above : at;
  }
  const value = example?.attributes[name];
  return value === undefined ? "" : label(value);
}

export function quoted(text: string): string {
  return `'${text.replaceAll("'", "''")}'`;
}
