// Times of a page in Chromium: `node measure.mjs PAGE PACKAGES MBIT`. Prints JSON. MBIT: of the network in a second, 0 for any.

import { serve, tools } from "./browser.mjs";

const [folder, packages, mbit] = process.argv.slice(2);
const server = await serve(folder, "/", (Number(mbit) * 1e6) / 8);
const { launch } = await tools(packages);
const browser = await launch();
const page = (await browser.pages())[0];
page.setDefaultTimeout(120_000);
const shown = () => page.waitForFunction(() => document.documentElement.dataset.shown === document.getElementById("command").textContent, { polling: 20 });
const visit = async () => {
  const from = performance.now();
  await page.goto(server.base, { waitUntil: "domcontentloaded" });
  const form = performance.now() - from;
  await page.waitForFunction(() => document.getElementById("script").dataset.text, { polling: 20 });
  const script = performance.now() - from;
  await shown();
  return { form, script, findings: performance.now() - from };
};
const first = await visit();
const bytes = server.asked.reduce((sum, [, size]) => sum + size, 0);
await page.evaluate(() => navigator.serviceWorker.ready);
await page.waitForFunction(() => navigator.serviceWorker.controller !== null);
const asked = server.asked.length;
await page.goto("about:blank");
const second = await visit();

/** Change the form, and return the milliseconds until the script is there. */
const change = (value) =>
  page.evaluate(async (text) => {
    const from = performance.now();
    const node = document.getElementById("job_name");
    node.value = text;
    node.dispatchEvent(new Event("input", { bubbles: true }));
    const command = document.getElementById("command").textContent;
    while (document.documentElement.dataset.shown !== command) await new Promise((done) => setTimeout(done, 1));
    return performance.now() - from;
  }, value);
const typed = [];
for (let number = 0; number < 20; number++) typed.push(await change(`job-${number}`));
const lint = await page.evaluate(async () => {
  const lines = Array.from({ length: 96 }, (_, number) => `echo "$((${number} + 1))" >>log # a line`);
  const node = document.getElementById("source");
  const times = [];
  for (let run = 0; run < 5; run++) {
    delete document.documentElement.dataset.linted;
    node.value = ["#!/bin/bash", "#SBATCH --time=01:00:00", `#SBATCH --nodes=${run + 1}`, ...lines, "srun python train.py", ""].join("\n");
    const from = performance.now();
    node.dispatchEvent(new Event("input"));
    while (document.documentElement.dataset.linted === undefined) await new Promise((done) => setTimeout(done, 1));
    times.push(performance.now() - from);
  }
  return times;
});
process.stdout.write(`${JSON.stringify({ bytes, first, second, again: server.asked.length - asked, typed, lint })}\n`);
await browser.close();
server.close();
