// The worker that answers commands: a message {number, argv, files} gets {number, status, out, err} back.

import { start } from "./python.js";

const TYPES = { wasm: "application/wasm", js: "text/javascript", mjs: "text/javascript", json: "application/json" };
const network = self.fetch.bind(self);
const base = new URL("./", self.location.href).href;

const packing = await (async () => {
  try {
    new DecompressionStream("brotli");
    return "brotli";
  } catch {
    return "gzip";
  }
})();

const address = (name) => `${base}${packing}/${name}.bin`;
// The large files are requested at once, although they are needed after others.
const large = ["pyodide.asm.wasm", "python_stdlib.zip", "sbatchgen.bin"];
const begun = new Map(large.map((name) => [name, network(address(name))]));

/** Return a file of this folder, unpacked here, because servers differ in what they compress. */
async function unpacked(name) {
  const packed = await (begun.get(name) ?? network(address(name)));
  begun.delete(name);
  if (!packed.ok) throw new Error(`${packing}/${name}.bin: ${packed.status}`);
  const stream = packed.body.pipeThrough(new DecompressionStream(packing));
  return new Response(stream, { headers: { "Content-Type": TYPES[name.split(".").pop()] ?? "application/zip" } });
}

const bytes = async (name) => new Uint8Array(await (await unpacked(name)).arrayBuffer());

async function script(name) {
  const url = URL.createObjectURL(await (await unpacked(name)).blob());
  try {
    return await import(url);
  } finally {
    URL.revokeObjectURL(url);
  }
}

/** Return two files that Pyodide requests by itself unpacked; fetch all others. */
self.fetch = (url, options) => {
  const name = String(url.url ?? url).split("/").pop();
  return ["pyodide.asm.wasm", "python_stdlib.zip"].includes(name) ? unpacked(name) : network(url, options);
};

async function begin() {
  const [pyodide, core, lock] = await Promise.all([
    script("pyodide.mjs"),
    script("pyodide.asm.mjs"),
    unpacked("pyodide-lock.json").then((response) => response.text()),
  ]);
  return start({
    loadPyodide: pyodide.loadPyodide,
    options: { indexURL: base, lockFileContents: lock, createPyodideModule: core.default },
    trees: () => script("web-tree-sitter.js"),
    go: async () => {
      await script("go.js");
      return self.Go;
    },
    bytes,
    module: async (name) => WebAssembly.compileStreaming(unpacked(name)),
    parserOptions: async () => ({ wasmBinary: await bytes("web-tree-sitter.wasm"), locateFile: (name) => base + name }),
  });
}

const ready = begin();
ready.then(
  () => self.postMessage({ ready: true }),
  (error) => self.postMessage({ failed: String(error?.message ?? error) }),
);
self.onmessage = async ({ data: { number, argv, files } }) => {
  const answer = await ready;
  self.postMessage({ number, ...(await answer(argv, files)) });
};
