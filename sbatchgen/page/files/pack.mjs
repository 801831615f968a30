// Writes what a browser needs of Python: `node pack.mjs PLAN.json`. Called by `sbatchgen page`.
//
// PLAN: packages (a node_modules), cache (a folder for compressed files), to (the new folder), and files:
// [path in the browser, path here, whether texts for people are kept].

import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";

const plan = JSON.parse(readFileSync(process.argv[2], "utf8"));
const of = (name, file) => join(plan.packages, name, file);
const { loadPyodide } = await import(pathToFileURL(of("pyodide", "pyodide.mjs")));
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

const own = plan.files.map(([path, file, whole]) => {
  const data = readFileSync(file);
  if (!path.endsWith(".py")) return [path, data];
  const code = compile(data.toString(), path, whole);
  const bytes = Buffer.from(code.toJs());
  code.destroy();
  return [path + "c", bytes];
});
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

/** The compressed bytes; those of large files that do not change are kept. */
function compressed(data, suffix, work) {
  const kept = join(plan.cache, createHash("sha256").update(data).digest("hex") + suffix);
  if (existsSync(kept)) return readFileSync(kept);
  const small = work(data);
  writeFileSync(kept + ".new", small);
  renameSync(kept + ".new", kept);
  return small;
}

const brotli = (data) =>
  brotliCompressSync(data, {
    params: { [constants.BROTLI_PARAM_QUALITY]: plan.quality, [constants.BROTLI_PARAM_LGWIN]: 24, [constants.BROTLI_PARAM_SIZE_HINT]: data.length },
  });
for (const folder of [plan.cache, ...["brotli", "gzip"].map((name) => join(plan.to, name))]) {
  mkdirSync(folder, { recursive: true });
}
for (const [name, data] of Object.entries(outputs)) {
  writeFileSync(join(plan.to, "brotli", `${name}.bin`), compressed(data, `.brotli-${plan.quality}`, brotli));
  writeFileSync(join(plan.to, "gzip", `${name}.bin`), compressed(data, ".gzip", (raw) => gzipSync(raw, { level: 9 })));
}
