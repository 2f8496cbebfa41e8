// Compress what Vite built, and weigh it. Every file is kept once, as gzip: the service unpacks it for
// the rare client that takes none.
import { readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

const FOLDER = new URL("../src/roamcast/page/", import.meta.url).pathname;
const BUDGET_BYTES = 520 * 1024;

let total = 0;
const rows: [string, number][] = [];
for (const name of readdirSync(FOLDER, { recursive: true, encoding: "utf8" }).sort()) {
  const path = join(FOLDER, name);
  if (!statSync(path).isFile()) continue;
  const packed = gzipSync(readFileSync(path), { level: 9 });
  writeFileSync(`${path}.gz`, packed);
  rmSync(path);
  total += packed.length;
  rows.push([name, packed.length]);
}
for (const [name, size] of rows) console.log(`${(size / 1024).toFixed(1).padStart(8)} KB  ${name}`);
console.log(
  `${(total / 1024).toFixed(1).padStart(8)} KB  in all, gzip; at most ${BUDGET_BYTES / 1024}`,
);
if (total > BUDGET_BYTES) {
  console.error("the page is too large: see the list above");
  process.exit(1);
}
