// A browser, a server for a page, and what walks have in common.

import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const PIECE = 1 << 15;
const TYPES = { html: "text/html", js: "text/javascript", css: "text/css", svg: "image/svg+xml" };

// The headers that the documentation wants of a site.
const documented = readFileSync(new URL("../../docs/how-to/publish-a-profile.md", import.meta.url), "utf8");
const HEADERS = Object.fromEntries([...documented.matchAll(/^    ((?:Content-Security|X-Content)[\w-]+): (.+)$/gm)].map(([, name, value]) => [name, value]));
if (Object.keys(HEADERS).length !== 2) throw new Error("no headers");

/** Serve a folder, all answers together at so many bytes a second if given. Return its address, and what was asked for. */
export async function serve(folder, below = "/job/", speed = 0) {
  const asked = [];
  let free = 0; // when the network is free again
  const replaced = new Map(); // other texts of files, by their names
  const server = createServer(async (request, answer) => {
    const path = decodeURIComponent(request.url.split("?")[0]);
    let data;
    try {
      if (!path.startsWith(below) || path.includes("..")) throw new Error("not there");
      const name = path.slice(below.length) || "index.html";
      data = replaced.has(name) ? Buffer.from(replaced.get(name)) : readFileSync(join(folder, name));
      asked.push([name, data.length]);
      answer.writeHead(200, { ...HEADERS, "Content-Type": TYPES[name.split(".").pop()] ?? "application/octet-stream", "Cache-Control": "max-age=600" });
    } catch {
      asked.push([path, 0]);
      answer.writeHead(404);
    }
    if (!speed) {
      answer.end(data);
      return;
    }
    for (let at = 0; at < (data?.length ?? 0); at += PIECE) {
      const piece = data.subarray(at, at + PIECE);
      free = Math.max(free, performance.now()) + (piece.length / speed) * 1000;
      await new Promise((done) => setTimeout(done, free - performance.now()));
      answer.write(piece);
    }
    answer.end();
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { base: `http://localhost:${server.address().port}${below}`, asked, replaced, close: () => server.close() };
}

/** Return what starts Chromium, and the text of axe, from a node_modules. */
export async function tools(packages) {
  const require = createRequire(resolve(packages, "x.js"));
  const { default: puppeteer } = await import(require.resolve("puppeteer-core"));
  const launch = (options = []) =>
    puppeteer.launch({
      executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
      args: ["--no-sandbox", "--disable-dev-shm-usage", ...options], // tests run as root, in containers
      protocolTimeout: 300_000,
    });
  return { launch, axe: readFileSync(require.resolve("axe-core/axe.min.js"), "utf8") };
}
