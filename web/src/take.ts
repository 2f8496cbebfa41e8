// "Take this away": what the page shows, as a command or a program. The token is named, never written
// out. What is and what comes is followed; the past is asked for once, and stays what it was.

import { datetimeOf, type When } from "./when.ts";

const ITEMS_MAX = 10_000; // of one page; the service's own default is ten

export type Recipe = { name: string; text: string };

export function recipes(origin: string, filter: string, when: When): Recipe[] {
  const at = when.tense === "past" ? datetimeOf(when) : null;
  const asked = new URLSearchParams({ filter, ...(at && { datetime: at }) });
  const query = asked.toString().replaceAll("+", "%20");
  const follows = `curl -N -H "Authorization: Bearer $ROAMCAST_TOKEN" \\\n  ${shell(`${origin}/changes?${query}`)}`;
  const asks = `curl -H "Authorization: Bearer $ROAMCAST_TOKEN" \\\n  ${shell(`${origin}/collections/contexts/items?${query}&limit=${ITEMS_MAX}`)}`;
  const command = at ? `who --at ${at}` : "watch";
  return [
    { name: "curl", text: at ? asks : follows },
    {
      name: "Command",
      text: `export ROAMCAST_URL=${shell(origin)}\nroamcast ${command} --where ${shell(filter)}`,
    },
    { name: "Python", text: program(origin, filter, at) },
    {
      name: "QGIS, GDAL",
      text: `export GDAL_HTTP_HEADERS="Authorization: Bearer $ROAMCAST_TOKEN"\nogrinfo -ro -al ${shell(`OAPIF:${origin}/collections/contexts?${query}`)}`,
    },
  ];
}

function program(origin: string, filter: string, at: string | null): string {
  const body = at
    ? [
        `        for context in await me.who(${python(filter)}, at=${python(at)}):`,
        "            print(context)",
      ]
    : [
        `        async for change in me.watch(${python(filter)}):`,
        "            print(change.kind, change.context)",
      ];
  return [
    "import asyncio, os",
    "from roamcast.client import connect",
    "",
    "async def main():",
    '    token = os.environ["ROAMCAST_TOKEN"]',
    `    async with connect(${python(origin)}, token) as me:`,
    ...body,
    "",
    "asyncio.run(main())",
  ].join("\n");
}

export function shell(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

export function python(text: string): string {
  // JSON's escapes are Python's too, but for characters beyond the BMP, which JSON leaves as they are
  return JSON.stringify(text);
}
