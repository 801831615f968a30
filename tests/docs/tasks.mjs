// Five tasks of a newcomer: from the first page of the site, by links at its side, to the page that solves each.
// node tasks.mjs SITE NODE_MODULES prints a line of JSON for each task.

import { pathToFileURL } from "node:url";
import { join } from "node:path";
import { tools } from "../page/browser.mjs";

const [site, packages] = process.argv.slice(2);
// The links to follow, by the words that are shown, and what the last page has to type.
const TASKS = {
  "a first job on two nodes": [["Several GPUs and nodes"], ["sbatchgen review ddp", "--nodes 2", "sbatchgen submit ddp", "sbatchgen status"]],
  "resume at the time limit": [["Resume and requeue", "How your trainer continues"], ["--requeue-on-timeout", "sbatchgen rehearse"]],
  "a container": [["Choose where Python and torch come from", "Apptainer"], ["sbatchgen image pull", "--image"]],
  "a job that failed": [["When something goes wrong"], ["sbatchgen diagnose"]],
  "a profile": [["Add a cluster"], ["sbatchgen profile discover", "sbatchgen profile check"]],
};

const { launch } = await tools(packages);
const browser = await launch();
for (const [name, [links, typed]] of Object.entries(TASKS)) {
  const page = await browser.newPage();
  const seen = [];
  let error = null;
  try {
    await page.setViewport({ width: 1400, height: 900 });
    await page.goto(pathToFileURL(join(site, "docs/index.html")).href);
    for (const words of links) {
      const found = await page.$$(".sidebar-tree a.reference.internal");
      let link = null;
      for (const each of found) {
        const text = await each.evaluate((node) => (node.offsetParent ? node.textContent : ""));
        if (text.includes(words)) link ??= each;
      }
      if (!link) throw new Error(`no link '${words}' is shown at the side of ${page.url()}`);
      await Promise.all([page.waitForNavigation(), link.click()]);
      seen.push(page.url().split("/").pop());
    }
    const code = await page.$$eval("article pre, article code", (nodes) => nodes.filter((node) => node.offsetParent).map((node) => node.textContent).join("\n"));
    const missing = typed.filter((words) => !code.includes(words));
    if (missing.length) throw new Error(`${seen.at(-1)} does not show ${missing.join(", ")}`);
    if ((await page.$eval(".sidebar-tree .current-page", (node) => node.textContent)).trim() === "") throw new Error("the place in the list is not marked");
  } catch (problem) {
    error = String(problem?.message ?? problem);
  }
  process.stdout.write(`${JSON.stringify({ name, seen, error })}\n`);
  await page.close();
}
await browser.close();
