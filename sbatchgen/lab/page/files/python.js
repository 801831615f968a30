// Python with sbatchgen, for the worker of the page and for Node. This file does not print or use the network itself.


/** Yield the files of an archive of pack.mjs, which holds the length of its list, the list of [path, size], and the bytes. */
export function* parts(data) {
  const start = 4 + new DataView(data.buffer, data.byteOffset).getUint32(0, true);
  let at = start;
  for (const [path, size] of JSON.parse(new TextDecoder().decode(data.subarray(4, start)))) {
    yield [path, data.subarray(at, at + size)];
    at += size;
  }
}

/** Return the parser of bash: `rows` returns 4 numbers for each node of an ASCII text, or undefined after some seconds. */
async function grammar({ Parser, Language }, wasm, languageWasm) {
  await Parser.init(wasm);
  const language = await Language.load(languageWasm);
  const parser = new Parser().setLanguage(language);
  const rows = (text, seconds) => {
    const end = performance.now() + seconds * 1000;
    const tree = parser.parse(text, null, { progressCallback: () => performance.now() > end });
    if (!tree) {
      parser.reset();
      return undefined;
    }
    const cursor = tree.walk();
    const found = [];
    for (let depth = 0; ; ) {
      const missing = cursor.startIndex === cursor.endIndex && cursor.nodeIsMissing;
      found.push(missing ? ~cursor.nodeTypeId : cursor.nodeTypeId, cursor.startIndex, cursor.endIndex, depth);
      if (cursor.gotoFirstChild()) {
        depth++;
        continue;
      }
      while (!cursor.gotoNextSibling()) {
        if (!cursor.gotoParent()) {
          cursor.delete();
          tree.delete();
          return new Int32Array(found);
        }
        depth--;
      }
    }
  };
  const kinds = Array.from({ length: language.nodeTypeCount }, (_, number) => [
    language.nodeTypeForId(number) ?? "",
    language.nodeTypeIsNamed(number),
    language.nodeTypeIsVisible(number),
  ]);
  return { rows, kinds };
}

/** Return the function that finds the first fault of bash in a text: [line, message] or undefined. Each text gets a new parser. */
function syntax(Go, module) {
  const BASH = 1;
  return (text) => {
    const go = new Go();
    const instance = new WebAssembly.Instance(module, go.importObject);
    go.run(instance);
    const { memory, wasmAlloc, process } = instance.exports;
    const bytes = new TextEncoder().encode(text);
    const at = wasmAlloc(bytes.length);
    new Uint8Array(memory.buffer).set(bytes, at);
    const none = wasmAlloc(0);
    // The name of the file, the text, print, comments, variant, stop at, recover, and how to print.
    const shape = [false, false, 0, false, false, false, false, false, false, false];
    const from = process(none, 0, 0, at, bytes.length, bytes.length, false, false, BASH, none, 0, 0, 0, ...shape);
    const answer = new Uint8Array(memory.buffer).subarray(from);
    const { parseError, message } = JSON.parse(new TextDecoder().decode(answer.subarray(0, answer.indexOf(0))));
    if (parseError) return [parseError.Pos.Line, parseError.Text];
    return message ? [1, message] : undefined; // Python's None
  };
}

/**
 * Start Python. Return the function that runs a command line with files, and returns its status, stdout and stderr.
 *
 * loadPyodide, options: of Pyodide. trees, go: return web-tree-sitter, and the class Go of sh-syntax, when called.
 * bytes: returns the bytes of a file. module: returns the compiled WebAssembly module of a file.
 */
export async function start({ loadPyodide, options, trees, go, bytes, module, parserOptions }) {
  const files = bytes("sbatchgen.bin");
  const python = await loadPyodide({ ...options, env: { HOME: "/", PYTHONDONTWRITEBYTECODE: "1" }, packages: [] });
  const { FS } = python;
  const made = new Set();
  for (const [path, data] of parts(await files)) {
    const folder = path.slice(0, path.lastIndexOf("/"));
    if (!made.has(folder)) FS.mkdirTree(folder, 0o755); // profiles and templates that others can write are ignored
    made.add(folder);
    FS.writeFile(path, data, { mode: 0o644 });
  }
  const browser = python.pyimport("sbatchgen_in_browser");
  const answer = browser.start();
  // The parsers of bash are loaded last, because the first script does not need them.
  const reads = (async () => {
    const { rows, kinds } = await grammar(await trees(), await parserOptions(), await bytes("bash.wasm"));
    browser.read_with(rows, kinds, syntax(await go(), await module("sh.wasm")));
  })();
  reads.catch(() => {}); // each answer that needs a parser reports the error
  return async (argv, texts = {}) => {
    try {
      if (argv[0] !== "render") await reads;
      const proxy = answer(argv, texts);
      const [status, out, err] = proxy.toJs();
      proxy.destroy();
      return { status, out, err };
    } catch (error) {
      return { status: 70, out: "", err: `error: ${error?.message ?? error}` };
    }
  };
}
