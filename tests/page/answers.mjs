// Answers commands as a page does, in Node: `node answers.mjs PAGE FOLDER`. PAGE: what `sbatchgen page` wrote. FOLDER: an
// empty one. Reads a line of JSON for each command, [argv, files], and prints one, {status, out, err, ms}.

import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { brotliDecompressSync } from "node:zlib";

const [page, folder] = process.argv.slice(2).map((path) => resolve(path));
mkdirSync(folder, { recursive: true });
writeFileSync(join(folder, "package.json"), '{"type": "module"}');
for (const name of readdirSync(join(page, "brotli"))) {
  const data = brotliDecompressSync(readFileSync(join(page, "brotli", name)));
  writeFileSync(join(folder, name.slice(0, -".bin".length)), data);
}
const load = (name) => import(pathToFileURL(join(folder, name)));
const bytes = async (name) => new Uint8Array(readFileSync(join(folder, name)));
const { start } = await import(pathToFileURL(join(page, "python.js")));
const { loadPyodide } = await load("pyodide.mjs");
const before = performance.now();
const answer = await start({
  loadPyodide,
  options: { indexURL: folder, lockFileContents: readFileSync(join(folder, "pyodide-lock.json"), "utf8") },
  trees: () => load("web-tree-sitter.js"),
  go: async () => {
    await load("go.js");
    return globalThis.Go;
  },
  bytes,
  module: async (name) => WebAssembly.compile(await bytes(name)),
  parserOptions: async () => ({}),
});
process.stderr.write(`ready after ${Math.round(performance.now() - before)} ms\n`);
for await (const line of createInterface({ input: process.stdin })) {
  const [argv, files] = JSON.parse(line);
  const from = performance.now();
  const { status, out, err } = await answer(argv, files);
  process.stdout.write(`${JSON.stringify({ status, out, err, ms: performance.now() - from })}\n`);
}
