// Writes what a browser needs of Python: `node pack.mjs PLAN.json`. Called by `sbatchgen page`, which shows each line.
//
// All files are there once this says "complete"; then some are made smaller, until that is done or the caller ends it.
// The best of Brotli takes 95 s of a CPU, and a tenth less bytes than quality 9, which takes 4 s.
//
// PLAN: packages (a node_modules), cache (a folder for compressed files), to (the new folder), and files:
// [path in the browser, path here, whether texts for people are kept].

import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { promisify } from "node:util";
import zlib, { constants } from "node:zlib";

if (parseInt(process.versions.node, 10) < 18) {
  console.error(`Node.js 18 or newer is needed, and this is ${process.version}`);
  process.exit(1);
}
const plan = JSON.parse(readFileSync(process.argv[2], "utf8"));
const say = (line) => console.log(line);
const of = (name, file) => join(plan.packages, name, file);
const { loadPyodide } = await import(pathToFileURL(of("pyodide", "pyodide.mjs")));
say("loads Python for browsers");
const python = await loadPyodide({ indexURL: of("pyodide", "") });
python.runPython(readFileSync(new URL("python/compile_for_browser.py", import.meta.url), "utf8"));
const compile = python.globals.get("compiled");

/** An archive of [path, bytes]; python.js has its reader. */
function archive(parts) {
  const list = Buffer.from(JSON.stringify(parts.map(([path, data]) => [path, data.length])));
  const size = Buffer.alloc(4);
  size.writeUInt32LE(list.length);
  return Buffer.concat([size, list, ...parts.map(([, data]) => data)]);
}

say(`compiles ${plan.files.length} files of sbatchgen`);
const own = plan.files.map(([path, file, whole]) => {
  const data = readFileSync(file);
  if (!path.endsWith(".py")) return [path, data];
  const code = compile(data.toString(), path, whole);
  const bytes = Buffer.from(code.toJs());
  code.destroy();
  return [path + "c", bytes];
});
say("compiles the library of Python");
const library = python.globals.get("library")();
const zip = Buffer.from(library.toJs());
library.destroy();

const { packages, ...lock } = JSON.parse(readFileSync(of("pyodide", "pyodide-lock.json"), "utf8"));
const outputs = {
  "sbatchgen.bin": archive(own),
  "python_stdlib.zip": zip,
  "pyodide.asm.wasm": readFileSync(of("pyodide", "pyodide.asm.wasm")),
  "pyodide.asm.mjs": readFileSync(of("pyodide", "pyodide.asm.mjs")),
  "pyodide.mjs": readFileSync(of("pyodide", "pyodide.mjs")),
  "web-tree-sitter.js": readFileSync(of("web-tree-sitter", "web-tree-sitter.js")),
  "web-tree-sitter.wasm": readFileSync(of("web-tree-sitter", "web-tree-sitter.wasm")),
  "bash.wasm": readFileSync(of("tree-sitter-bash", "tree-sitter-bash.wasm")),
  "sh.wasm": readFileSync(of("sh-syntax", "main.wasm")),
  "go.js": readFileSync(of("sh-syntax", "vendors/wasm_exec.cjs")),
  "pyodide-lock.json": Buffer.from(JSON.stringify({ ...lock, packages: {} })),
};

const kept = (data, suffix) => join(plan.cache, createHash("sha256").update(data).digest("hex") + suffix);

/** Return the compressed bytes; they are kept for files that do not change. */
async function compressed(data, suffix, work) {
  const file = kept(data, suffix);
  if (existsSync(file)) return readFileSync(file);
  const small = await work(data);
  replace(file, small);
  return small;
}

function replace(file, bytes) {
  writeFileSync(file + ".new", bytes);
  renameSync(file + ".new", file);
}

const gzip = (data) => promisify(zlib.gzip)(data, { level: 9 });
const brotli = (quality) => (data) =>
  promisify(zlib.brotliCompress)(data, {
    params: { [constants.BROTLI_PARAM_QUALITY]: quality, [constants.BROTLI_PARAM_LGWIN]: 24, [constants.BROTLI_PARAM_SIZE_HINT]: data.length },
  });
const best = [`.brotli-${plan.quality}`, brotli(plan.quality)];
const quick = plan.quality > 9 ? [".brotli-9", brotli(9)] : best;
for (const folder of [plan.cache, ...["brotli", "gzip"].map((name) => join(plan.to, name))]) {
  mkdirSync(folder, { recursive: true });
}
const write = async (folder, name, bytes) => replace(join(plan.to, folder, `${name}.bin`), await bytes);

say(`compresses ${Object.keys(outputs).length} files`);
const rest = Object.entries(outputs).filter(([, data]) => !existsSync(kept(data, best[0])));
await Promise.all(
  Object.entries(outputs).flatMap(([name, data]) => [
    write("brotli", name, compressed(data, ...(existsSync(kept(data, best[0])) ? best : quick))),
    write("gzip", name, compressed(data, ".gzip", gzip)),
  ]),
);
say("complete");
if (best !== quick) {
  let number = 0;
  rest.sort(([, a], [, b]) => a.length - b.length); // the more are kept, should this be ended
  await Promise.all(
    rest.map(async ([name, data]) => {
      await write("brotli", name, compressed(data, ...best));
      number += 1;
      say(`has made ${number} of ${rest.length} files smaller`);
    }),
  );
}
