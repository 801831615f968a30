// The service worker: it keeps the page, so that it works without a network. `sbatchgen page` fills in the two values.

const VERSION = "{{ version }}";
const FILES = {{ files | tojson }};
const here = new URL("./", self.location.href).href;
const packing = (() => {
  try {
    new DecompressionStream("brotli");
    return "brotli";
  } catch {
    return "gzip";
  }
})();
const kept = FILES.filter((name) => !name.endsWith(".bin") || name.startsWith(packing));

self.addEventListener("install", (event) => {
  const requests = kept.map((name) => new Request(here + name, { cache: name.endsWith(".bin") ? "force-cache" : "reload" }));
  event.waitUntil(caches.open(VERSION).then((cache) => cache.addAll(requests)).then(() => self.skipWaiting()));
});
self.addEventListener("activate", (event) => {
  const forget = async () => {
    const old = (await caches.keys()).filter((name) => name.startsWith("sbatchgen-") && name !== VERSION);
    await Promise.all(old.map((name) => caches.delete(name)));
    await self.clients.claim();
  };
  event.waitUntil(forget());
});
self.addEventListener("fetch", (event) => {
  const name = event.request.url.split(/[?#]/)[0].slice(here.length);
  if (event.request.method !== "GET" || !event.request.url.startsWith(here)) return;
  if (name !== "" && !kept.includes(name)) return;
  const look = async () => {
    const cache = await caches.open(VERSION);
    return (await cache.match(here + (name || "index.html"))) ?? fetch(event.request);
  };
  event.respondWith(look());
});
