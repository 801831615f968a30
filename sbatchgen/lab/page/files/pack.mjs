// The packing of Python for a browser: `node pack.mjs LIST.json`. `sbatchgen page` starts it and shows each line.
//
// All files exist when this prints "complete". Then some files are made smaller, until all are or the caller ends this.
// The best quality of Brotli takes 95 s of a CPU. Quality 9 takes 4 s and gives a tenth more bytes.
//
// LIST: packages (a node_modules), cache (a folder for compressed files), to (the new folder), and files:
// [path in the browser, path on this machine, whether docstrings are kept].

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
const list = JSON.parse(readFileSync(process.argv[2], "utf8"));
const say = (line) => console.log(line);
const of = (name, file) => join(list.packages, name, file);
const { loadPyodide } = await import(pathToFileURL(of("pyodide", "pyodide.mjs")));
say("loads Python for browsers");
const python = await loadPyodide({ indexURL: of("pyodide", "") });
python.runPython(readFileSync(new URL("python/compile_for_browser.py", import.meta.url), "utf8"));
const compile = python.globals.get("compiled");

/** Return an archive of [path, bytes]; python.js reads it. */
function archive(parts) {
  const entries = Buffer.from(JSON.stringify(parts.map(([path, data]) => [path, data.length])));
  const size = Buffer.alloc(4);
  size.writeUInt32LE(entries.length);
  return Buffer.concat([size, entries, ...parts.map(([, data]) => data)]);
}

say(`compiles ${list.files.length} files of sbatchgen`);
const own = list.files.map(([path, file, whole]) => {
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

const kept = (data, suffix) => join(list.cache, createHash("sha256").update(data).digest("hex") + suffix);

/** Return the compressed bytes, which the cache keeps for files that do not change. */
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
const best = [`.brotli-${list.quality}`, brotli(list.quality)];
const quick = list.quality > 9 ? [".brotli-9", brotli(9)] : best;
for (const folder of [list.cache, ...["brotli", "gzip"].map((name) => join(list.to, name))]) {
  mkdirSync(folder, { recursive: true });
}
const write = async (folder, name, bytes) => replace(join(list.to, folder, `${name}.bin`), await bytes);

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
  rest.sort(([, a], [, b]) => a.length - b.length); // small files first, so that more are kept if this is ended
  await Promise.all(
    rest.map(async ([name, data]) => {
      await write("brotli", name, compressed(data, ...best));
      number += 1;
      say(`has made ${number} of ${rest.length} files smaller`);
    }),
  );
}
