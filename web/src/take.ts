// "Take this away": what the page shows now, as a command or a program. The token is named, never
// written out.

export type Recipe = { name: string; text: string };

export function recipes(origin: string, filter: string): Recipe[] {
  const query = new URLSearchParams({ filter }).toString().replaceAll("+", "%20");
  return [
    {
      name: "curl",
      text: `curl -N -H "Authorization: Bearer $ROAMCAST_TOKEN" \\\n  ${shell(`${origin}/changes?${query}`)}`,
    },
    {
      name: "Command",
      text: `export ROAMCAST_URL=${shell(origin)}\nroamcast watch --where ${shell(filter)}`,
    },
    {
      name: "Python",
      text: [
        "import asyncio, os",
        "from roamcast.client import connect",
        "",
        "async def main():",
        `    async with connect(${python(origin)}, os.environ["ROAMCAST_TOKEN"]) as me:`,
        `        async for change in me.watch(${python(filter)}):`,
        "            print(change.kind, change.context)",
        "",
        "asyncio.run(main())",
      ].join("\n"),
    },
    {
      name: "QGIS, GDAL",
      text: `export GDAL_HTTP_HEADERS="Authorization: Bearer $ROAMCAST_TOKEN"\nogrinfo -ro -al ${shell(`OAPIF:${origin}/collections/contexts?${query}`)}`,
    },
  ];
}

export function shell(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

export function python(text: string): string {
  // JSON's escapes are Python's too, but for characters beyond the BMP, which JSON leaves as they are
  return JSON.stringify(text);
}
