// What may follow in a filter at the caret: names, frequent values, places, functions and words. The
// vocabulary is what the service says its viewer may see.

export type Vocabulary = {
  attributes: ReadonlyMap<string, readonly string[]>; // with their frequent values
  places: readonly string[];
};

export type Suggestion = { text: string; says: string; caret: number }; // caret: within `text`
export type Suggestions = { start: number; end: number; options: Suggestion[] };

export const OPTIONS_MAX = 8;
export const NOTHING: Suggestions = { start: 0, end: 0, options: [] };

const INTERVAL = "(time, INTERVAL('', ''))";
const FUNCTIONS: [string, string, number][] = [
  ["within(place, '')", "a place and everything below it", 2],
  ["near(geometry, POINT( ), 100)", "metres around a point", 8],
  [`overlaps${INTERVAL}`, "there at some moment of it", 8],
  [`contains${INTERVAL}`, "there all of it", 8],
  [`during${INTERVAL}`, "came and went within it", 8],
  [`start_by${INTERVAL}`, "came within it", 8],
  [`end_by${INTERVAL}`, "went within it", 8],
  ["S_INTERSECTS(geometry, BBOX(, , , ))", "in a rectangle", 9],
];
const WORDS = ["AND ", "OR ", "NOT ", "IN (", "LIKE ", "BETWEEN ", "IS NULL", "IS NOT NULL"];
const NAMES = ["place", "vid", "time", "geometry"];

export function suggest(text: string, caret: number, known: Vocabulary): Suggestions {
  const before = text.slice(0, caret);
  const quotes = before.split("'").length - 1;
  return quotes % 2 ? values(text, before, caret, known) : words(text, before, caret, known);
}

// Inside a text: values of the attribute it is compared with, or paths of places.
function values(text: string, before: string, caret: number, known: Vocabulary): Suggestions {
  const start = before.lastIndexOf("'") + 1;
  const asked = before.slice(start).toLowerCase();
  const head = before.slice(0, start - 1);
  const name = named(head);
  const all = name === "place" ? known.places : (known.attributes.get(name) ?? []);
  const closed = text[caret] === "'";
  const options = fitting(all, asked).map((value) => {
    const quoted = value.replaceAll("'", "''") + (closed ? "" : "'");
    return { text: quoted, says: value, caret: quoted.length + (closed ? 1 : 0) };
  });
  return { start, end: caret, options: options.filter(({ says }) => says !== asked) };
}

// The name that stands before a comparison, a list or within(… , '
function named(head: string): string {
  const name = `("[^"]+"|[\\p{L}_][\\p{L}\\p{N}_.:]*)`;
  const list = `\\(\\s*(?:'(?:[^']|'')*'\\s*,\\s*)*`;
  const shapes = [
    new RegExp(`${name}\\s*(?:=|<>|<=?|>=?|(?:NOT\\s+)?LIKE)\\s*$`, "iu"),
    new RegExp(`${name}\\s+(?:NOT\\s+)?IN\\s*${list}$`, "iu"),
    new RegExp(`within\\(\\s*${name}\\s*,\\s*$`, "iu"),
  ];
  for (const shape of shapes) {
    const found = shape.exec(head);
    if (found?.[1]) return found[1].replaceAll('"', "");
  }
  return "";
}

// Outside: the word at the caret as a name, a function or an operator.
function words(text: string, before: string, caret: number, known: Vocabulary): Suggestions {
  const word = /[\p{L}_][\p{L}\p{N}_.:]*$/u.exec(before)?.[0] ?? "";
  const after = text[caret] ?? "";
  if (!word || /[\p{L}\p{N}_]/u.test(after)) return NOTHING;
  const names = [...known.attributes.keys(), ...NAMES];
  const asked = word.toLowerCase();
  const starts = (one: string) => one.toLowerCase().startsWith(asked) && one.length > word.length;
  const options: Suggestion[] = names.filter(starts).map((name) => {
    const written = /^[\p{L}][\p{L}\p{N}_.:]*$/u.test(name) ? name : `"${name}"`;
    const some = known.attributes.get(name)?.slice(0, 3).join(", ") ?? "";
    return { text: written, says: some ? `${name}: ${some}` : name, caret: written.length };
  });
  for (const [form, says, back] of FUNCTIONS) {
    if (starts(form))
      options.push({
        text: form,
        says: `${form.split("(")[0]}: ${says}`,
        caret: form.length - back,
      });
  }
  for (const one of WORDS.filter(starts))
    options.push({ text: one, says: one.trim(), caret: one.length });
  return { start: caret - word.length, end: caret, options: options.slice(0, OPTIONS_MAX) };
}

function fitting(all: readonly string[], asked: string): string[] {
  const begin = all.filter((one) => one.toLowerCase().startsWith(asked));
  const inside = all.filter((one) => !begin.includes(one) && one.toLowerCase().includes(asked));
  return [...begin, ...inside].slice(0, OPTIONS_MAX);
}

export function accept(
  text: string,
  { start, end }: Suggestions,
  chosen: Suggestion,
): [string, number] {
  return [text.slice(0, start) + chosen.text + text.slice(end), start + chosen.caret];
}
