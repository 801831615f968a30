// People's ways through a page, in Chromium: `node walks.mjs PAGE PACKAGES [PICTURES]`. Prints a line of JSON for each:
// name, error or null, and what the walk has seen.

import { mkdirSync, mkdtempSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { serve, tools } from "./browser.mjs";

const [folder, packages, pictures] = process.argv.slice(2);
const TIMEOUT = 60_000;
const server = await serve(folder);
const { launch, axe } = await tools(packages);
const browser = await launch(["--js-flags=--liftoff-only"]); // what is visited for seconds is not compiled twice
const opened = new Set();
let shared; // a page that stays open: to start the program takes longer than most walks
const left = new Set(); // addresses outside of the folder
if (pictures) mkdirSync(pictures, { recursive: true });

function check(ok, what) {
  if (!ok) throw new Error(what || "an empty text");
}

class Visit {
  static async open(hash = "", { width = 1280, height = 900, downloadPath = undefined } = {}) {
    const visit = new Visit();
    const downloadBehavior = downloadPath && { policy: "allow", downloadPath };
    visit.context = await browser.createBrowserContext({ downloadBehavior }); // nothing is left of the visit before
    visit.downloads = downloadPath;
    opened.add(visit.context);
    await visit.context.overridePermissions(new URL(server.base).origin, ["clipboard-read", "clipboard-write", "clipboard-sanitized-write"]);
    visit.page = await visit.context.newPage();
    await visit.page.setViewport({ width, height });
    visit.page.setDefaultTimeout(TIMEOUT);
    visit.errors = [];
    visit.page.on("pageerror", (error) => visit.errors.push(String(error)));
    visit.page.on("console", (message) => message.type() === "error" && visit.errors.push(message.text()));
    visit.page.on("request", (request) => {
      if (!/^(blob|data):/.test(request.url()) && !request.url().startsWith(server.base)) left.add(request.url());
    });
    await visit.page.goto(server.base + hash);
    return visit;
  }
  /** Return the page that stays open, with a form as a new page has it, and then that of a link. */
  static async again(hash = "", { width = 1280, height = 900 } = {}) {
    if (!shared) {
      shared = await Visit.open("", { downloadPath: mkdtempSync(join(tmpdir(), "downloads-")) });
      await shared.settled();
      shared.link = await shared.page.evaluate(() => location.hash);
    }
    shared.errors = [];
    delete shared.fixed;
    await shared.page.setViewport({ width, height });
    await shared.page.emulateMediaType();
    await shared.page.emulateMediaFeatures([]);
    await shared.page.evaluate(() => {
      for (const id of ["source", "programs"]) document.getElementById(id).value = "";
      for (const node of document.querySelectorAll("details")) node.open = false;
    });
    await shared.restored(shared.link);
    await shared.settled();
    if (hash) await shared.restored(hash);
    return shared;
  }
  /** Follow a link of the page itself. */
  async restored(hash) {
    await this.page.evaluate((link) => {
      document.documentElement.dataset.shown = "";
      delete document.documentElement.dataset.linted;
      history.replaceState(null, "", link);
      dispatchEvent(new Event("hashchange"));
    }, hash);
  }
  /** Wait until the script is that of the form. */
  async settled() {
    await this.page.waitForFunction(() => {
      const { shown } = document.documentElement.dataset;
      return shown === document.getElementById("command").textContent;
    });
  }
  text(selector) {
    return this.page.$eval(selector, (node) => node.textContent);
  }
  script() {
    return this.page.$eval("#script", (node) => node.dataset.text);
  }
  async fill(id, value) {
    await this.page.$eval(`#${id}`, (node) => node.closest("details")?.setAttribute("open", ""));
    const isSelect = await this.page.$eval(`#${id}`, (node) => node.tagName === "SELECT");
    if (isSelect) await this.page.select(`#${id}`, value);
    else {
      await this.page.click(`#${id}`, { clickCount: 3 });
      await this.page.keyboard.press("Backspace");
      await this.page.type(`#${id}`, value);
    }
    await this.settled();
  }
  async mode(name) {
    await this.page.click(`[name=mode][value=${name}]`);
    await this.settled();
  }
  async press(text, inside = "body") {
    const found = await this.page.evaluateHandle(
      (wanted, where) => [...document.querySelectorAll(`${where} button`)].find((node) => node.textContent.includes(wanted) && node.offsetParent),
      text,
      inside,
    );
    check(found.asElement(), `no button '${text}': ${await this.page.$$eval(`${inside} button`, (all) => all.map((node) => node.textContent).join(", "))}`);
    await found.click();
  }
  async lint(text) {
    await this.page.click("#tab-check");
    await this.page.$eval(
      "#source",
      (node, value) => {
        delete document.documentElement.dataset.linted;
        node.value = value;
        node.dispatchEvent(new Event("input"));
      },
      text,
    );
    await this.linted();
  }
  async linted() {
    await this.page.waitForFunction(() => document.documentElement.dataset.linted !== undefined);
  }
  clipboard() {
    return this.page.evaluate(() => navigator.clipboard.readText());
  }
  async picture(name) {
    if (pictures) await this.page.screenshot({ path: join(pictures, `${name}.png`), fullPage: true });
  }
  async axe(name) {
    await this.page.evaluate(axe);
    const { violations } = await this.page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
    const said = violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(({ html }) => html.slice(0, 150)).join(" | ")}`);
    check(!said.length, `axe, ${name}: ${said.join("; ")}`);
  }
}

const BAD = "#!/bin/bash\n#SBATCH --time=24\n#SBATCH -p=gpu\nhostname\n#SBATCH --nodes=2\nsrun python train.py\n";
const GOOD = "#!/bin/bash\n#SBATCH --job-name=mnist\n#SBATCH --nodes=1\n#SBATCH --gres=gpu:1\n#SBATCH --time=02:00:00\nmodule load cuda\nsrun python train.py --epochs 3\n";
const walks = {
  "the form is there before the program": async () => {
    server.replaced.set("worker.js", "// not there\n");
    const visit = await Visit.open();
    const labels = await visit.page.$$eval("#form label", (all) => all.filter((node) => node.offsetParent).map((node) => node.textContent));
    check(labels.length > 12, labels.join());
    check(labels.includes("GPUs on each node --gpus-per-node"), await visit.text("#partition"));
    await visit.picture("before-the-program");
    return visit;
  },
  "the first script": async () => {
    const visit = await Visit.again();
    await visit.settled();
    await visit.page.waitForSelector("#script .template");
    await visit.picture("first");
    return visit;
  },
  "another mode has other fields": async () => {
    const visit = await Visit.again();
    await visit.settled();
    await visit.mode("single");
    check(await visit.page.$eval("[data-field=nodes]", (node) => node.hidden), "nodes are asked for");
    check(!(await visit.script()).includes("torchrun.py"), "torchrun");
    return visit;
  },
  "too long a time, and its fix": async () => {
    const visit = await Visit.again("#profile=kestrel&mode=ddp&account=abc&partition=debug&time=20:00:00");
    await visit.settled();
    await visit.fill("gpus_per_node", "1"); // a user has two in this partition
    check((await visit.script()) === "", "there is a script");
    check(await visit.page.$eval("#time", (node) => node.getAttribute("aria-invalid")), "the field is not marked");
    await visit.picture("too-long");
    await visit.press("--time", "#findings");
    await visit.settled();
    check((await visit.page.$eval("#time", (node) => node.value)) === "0-01:00:00", await visit.page.$eval("#time", (node) => node.value));
    check((await visit.script()).includes("#SBATCH --time=0-01:00:00"), "not fixed: " + (await visit.text("#findings")) + (await visit.text("#command")));
    return visit;
  },
  "a word that is no time": async () => {
    const visit = await Visit.again();
    await visit.settled();
    await visit.fill("time", "tomorrow");
    check((await visit.text("#findings")).includes("tomorrow"), await visit.text("#findings"));
    check((await visit.script()) === "", "there is a script");
    await visit.picture("no-time");
    await visit.fill("time", "00:30:00");
    check((await visit.script()).includes("#SBATCH --time="), await visit.text("#findings"));
    return visit;
  },
  "too many GPUs, and the fix": async () => {
    const visit = await Visit.again("#profile=kestrel&mode=ddp&account=abc&time=01:00:00");
    await visit.settled();
    await visit.fill("gpus_per_node", "16");
    check((await visit.text("#findings")).includes("GPU"), await visit.text("#findings"));
    await visit.picture("too-many");
    await visit.press("--gpus-per-node", "#findings");
    await visit.settled();
    check((await visit.page.$eval("#nodes", (node) => node.value)) === "8", "the fix has two parts");
    check((await visit.script()).includes("#SBATCH --nodes=8"), await visit.text("#findings"));
    return visit;
  },
  "an account that the cluster wants": async () => {
    const visit = await Visit.again("#profile=lumi&mode=ddp");
    await visit.settled();
    check((await visit.text("#findings")).includes("requires --account"), await visit.text("#findings"));
    check((await visit.script()).includes("--account=ACCOUNT"), "no script before the account is known");
    check((await visit.text("[data-field=account] .error")).includes("set --account"), "nothing beside the field");
    await visit.press("--account", "#findings");
    check((await visit.page.evaluate(() => document.activeElement.id)) === "account", "the field has no focus");
    await visit.page.keyboard.type("project_465");
    await visit.settled();
    check((await visit.script()).includes("--account=project_465"), "no account");
    await visit.picture("account");
    return visit;
  },
  "a partition, and those that are not used": async () => {
    const visit = await Visit.again("#profile=troila&mode=single");
    await visit.settled();
    await visit.fill("gres", "shard:16");
    check((await visit.script()).includes("shard:16"), await visit.text("#findings"));
    await visit.picture("shards");
    return visit;
  },
  "the script is copied": async () => {
    const visit = await Visit.again();
    await visit.settled();
    await visit.page.click("#copy");
    await visit.page.waitForFunction(() => document.getElementById("copy").textContent === "Copied");
    check((await visit.clipboard()) === (await visit.script()), "another text");
    return visit;
  },
  "the script is downloaded": async () => {
    const visit = await Visit.again("#profile=msu&mode=ddp&job-name=mine");
    const to = visit.downloads;
    await visit.settled();
    await visit.page.click("#download");
    for (let waited = 0; !readdirSync(to).includes("mine.slurm") && waited < 100; waited++) await new Promise((done) => setTimeout(done, 100));
    check(readFileSync(join(to, "mine.slurm"), "utf8") === (await visit.script()), readdirSync(to).join());
    return visit;
  },
  "a link opens the same job": async () => {
    const visit = await Visit.again("#profile=torchrun&mode=ddp");
    await visit.settled();
    await visit.fill("nodes", "3");
    await visit.fill("args", "--lr '1e-3' --name \"two words\"");
    await visit.fill("env", "A=1 B='2 3'");
    await visit.page.click("#link");
    await visit.page.waitForFunction(() => document.getElementById("link").textContent === "Copied");
    const link = await visit.clipboard();
    const again = await Visit.open(new URL(link).hash);
    await again.settled();
    check((await again.script()) === (await visit.script()), "another script");
    check((await again.text("#command")) === (await visit.text("#command")), await again.text("#command"));
    check((await again.text("#command")).includes("two words"), "no words");
    await again.picture("link");
    return again;
  },
  "a pasted script and the fix of a line": async () => {
    const visit = await Visit.again();
    await visit.lint(BAD);
    const lint = await visit.text("#lint");
    check(lint.includes("SB111") && lint.includes("SB104") && lint.includes("SB127"), lint);
    await visit.picture("lint");
    await visit.axe("findings");
    await visit.page.evaluate(() => delete document.documentElement.dataset.linted);
    await visit.press("Fix this", "#lint");
    await visit.linted();
    check((await visit.page.$eval("#source", (node) => node.value)) !== BAD, "nothing has changed");
    return visit;
  },
  "fix all": async () => {
    const visit = await Visit.again("#tab=check");
    await visit.lint(BAD);
    await visit.page.evaluate(() => delete document.documentElement.dataset.linted);
    await visit.page.click("#fix-all");
    await visit.linted();
    visit.fixed = await visit.page.$eval("#source", (node) => node.value);
    check(visit.fixed === BAD.replace("-p=gpu", "--partition=gpu"), visit.fixed);
    return visit;
  },
  "the page of a rule": async () => {
    const visit = await Visit.again("#tab=check");
    await visit.lint("#!/bin/bash\n#sbatch --time=01:00:00\n#SBATCH --nodes=1\nsrun python train.py\n");
    await visit.press("SB105");
    await visit.page.waitForSelector("dialog[open]");
    const text = await visit.text("#page-text");
    check(text.includes("# SBATCH to turn a directive off"), text);
    check(!text.includes("`"), text);
    await visit.picture("page");
    await visit.axe("the page of a rule");
    await visit.page.keyboard.press("Escape");
    return visit;
  },
  "a script that bash can't parse": async () => {
    const visit = await Visit.again("#tab=check");
    await visit.lint("#!/bin/bash\n#SBATCH --time=01:00:00\nif true; then\nsrun python train.py\n");
    check((await visit.text("#lint")).includes("SB814"), await visit.text("#lint-state"));
    await visit.picture("broken");
    return visit;
  },
  "a script of hostile text": async () => {
    const visit = await Visit.again("#profile=msu&mode=ddp&trainer=" + encodeURIComponent("<img src=x onerror=alert(1)>.py") + "&args=" + encodeURIComponent("</script><b>x</b>"));
    await visit.settled();
    await visit.lint('#!/bin/bash\n#SBATCH --job-name=<img src=x onerror="document.title=1">\n#SBATCH --nodes=<b>2</b>\n');
    check((await visit.page.$$("#lint img, #lint b b, #script img, #findings img")).length === 0, "HTML of the script");
    await visit.picture("hostile");
    return visit;
  },
  "a link of hostile text": async () => {
    const paste = "x\x1b[201~\x03\nid\x0f";
    const hidden = "x\u202ey";
    const visit = await Visit.again(`#profile=msu&mode=ddp&time=01:00:00&trainer=${encodeURIComponent(paste)}&args=${encodeURIComponent(paste)}&job-name=${encodeURIComponent(hidden)}`);
    await visit.settled();
    check((await visit.text("#command")).includes("--time 01:00:00"), await visit.text("#command"));
    check(!/[^ -~]|201|\bid\b/.test(await visit.text("#command")), await visit.text("#command"));
    await visit.page.$eval("#source", (node, value) => (node.value = value), paste);
    await visit.page.click("#tab-check");
    await visit.page.click("#link-source");
    await visit.page.waitForFunction(() => document.getElementById("link-source").textContent === "Copied");
    const again = await Visit.open(new URL(await visit.clipboard()).hash);
    await again.page.waitForFunction(() => !document.getElementById("check").hidden); // once the link is read
    check((await again.page.$eval("#source", (node) => node.value)) === "", "a script with control characters");
    return again;
  },
  "a worker reaches no other server, by the headers of this one": async () => {
    const other = await serve(folder);
    const visit = await Visit.open();
    await visit.settled();
    const ask = (address) => fetch(address, { mode: "no-cors" }).then(() => "it went out", () => "it was stopped");
    const answers = await Promise.all(visit.page.workers().map((worker) => worker.evaluate(ask, other.base)));
    other.close();
    check(answers.length && answers.every((answer) => answer === "it was stopped"), answers.join());
    check(!other.asked.length, other.asked.join());
    visit.errors = [];
    return visit;
  },
  "a script is adopted": async () => {
    const visit = await Visit.again("#tab=check");
    await visit.lint(GOOD);
    await visit.page.click("#adopt");
    await visit.page.waitForSelector("#adopted pre");
    check((await visit.text("#adopted")).includes("mnist-cluster.yaml") || (await visit.text("#adopted")).includes("job-cluster.yaml"), await visit.text("#adopted"));
    await visit.axe("an adopted script");
    await visit.picture("adopted");
    return visit;
  },
  "a file is opened, and its link opened again": async () => {
    const to = mkdtempSync(join(tmpdir(), "scripts-"));
    writeFileSync(join(to, "mine.sh"), BAD);
    const visit = await Visit.again("#tab=check&for=princeton");
    const input = await visit.page.$("#file");
    await input.uploadFile(join(to, "mine.sh"));
    await visit.linted();
    await visit.page.click("#link-source");
    await visit.page.waitForFunction(() => document.getElementById("link-source").textContent === "Copied");
    const again = await Visit.open(new URL(await visit.clipboard()).hash);
    await again.linted();
    check((await again.page.$eval("#source", (node) => node.value)) === BAD, "another script");
    check((await again.page.$eval("#lint-profile", (node) => node.value)) === "princeton", "another cluster");
    return again;
  },
  "a file is dropped": async () => {
    const visit = await Visit.again();
    await visit.page.evaluate((text) => {
      const data = new DataTransfer();
      data.items.add(new File([text], "job.sh"));
      document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    }, BAD);
    await visit.linted();
    check((await visit.text("#lint")).includes("SB104"), await visit.text("#lint"));
    return visit;
  },
  "keyboard only": async () => {
    const visit = await Visit.open();
    await visit.settled();
    const { keyboard } = visit.page;
    const at = () => visit.page.evaluate(() => document.activeElement.id || document.activeElement.value);
    const tabTo = async (wanted) => {
      for (let presses = 0; presses < 80 && (await at()) !== wanted; presses++) await keyboard.press("Tab");
      check((await at()) === wanted, `no way to ${wanted}`);
    };
    await tabTo("ddp");
    await keyboard.press("ArrowUp");
    check((await at()) === "dataparallel", await at());
    await visit.settled();
    await tabTo("time");
    await keyboard.type("00:45:00");
    await visit.settled();
    check((await visit.script()).includes("#SBATCH --time=0-00:45:00"), await visit.text("#findings"));
    await visit.page.waitForSelector("#script .template");
    await tabTo("script");
    for (let line = 0; line < 3; line++) await keyboard.press("ArrowDown");
    check((await visit.text("#origin")).startsWith("line 3: --job-name"), await visit.text("#origin"));
    await visit.picture("keyboard");
    await visit.page.focus("#tab-build");
    await keyboard.press("ArrowRight");
    check((await at()) === "tab-check", await at());
    return visit;
  },
  "a narrow screen": async () => {
    const visit = await Visit.again("#profile=kestrel&mode=ddp&account=abc&time=01:00:00&gpus-per-node=16", { width: 320, height: 640 });
    await visit.settled();
    const wide = () => visit.page.evaluate(() => document.documentElement.scrollWidth);
    check((await wide()) <= 320, `${await wide()} pixels`);
    await visit.picture("narrow");
    await visit.axe("narrow");
    await visit.lint(BAD);
    check((await wide()) <= 320, `${await wide()} pixels, lint`);
    await visit.picture("narrow-lint");
    return visit;
  },
  "a phone": async () => {
    const visit = await Visit.again("#profile=lumi&mode=ddp", { width: 360, height: 640 });
    await visit.settled();
    const top = await visit.page.$eval("#script", (node) => node.getBoundingClientRect().top + window.scrollY);
    check(top <= 2 * 640, `the script begins at ${top} pixels`);
    check((await visit.text("#next")).startsWith("sbatch ddp.slurm"), "no next step");
    await visit.picture("phone");
    await visit.axe("phone");
    return visit;
  },
  "several programs": async () => {
    const text = "programs:\n  server: {command: [python3, serve.py], nodes: 1, ready: {port: '{port}'}}\n  trainer: {mode: ddp, trainer: train.py, nodes: 2, needs: [server], main: true}\n";
    const visit = await Visit.again("#profile=msu&mode=ddp");
    await visit.settled();
    await visit.page.click("#more > summary");
    await visit.page.click("#several summary");
    await visit.page.$eval(
      "#programs",
      (node, value) => {
        node.value = value;
        node.dispatchEvent(new Event("input", { bubbles: true }));
      },
      text,
    );
    await visit.settled();
    check((await visit.script()).includes("start_server() {"), "no server in the script");
    check((await visit.text("#job-file")).endsWith(text), "no programs in the job file");
    check((await visit.text("#plan")).includes("server: 2"), `where is the server: ${await visit.text("#plan")}`);
    check(await visit.page.$eval("#nodes", (node) => !node.offsetParent), "nodes of one program are asked for");
    await visit.page.waitForFunction(() => location.hash.includes("programs="));
    await visit.page.reload();
    await visit.settled();
    check((await visit.script()).includes("start_server() {"), "a link holds no programs");
    await visit.picture("programs");
    await visit.axe("programs");
    return visit;
  },
  "dark, and on paper": async () => {
    const visit = await Visit.again("#profile=kestrel&mode=ddp&account=abc&time=01:00:00&gpus-per-node=16");
    await visit.page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "dark" }]);
    await visit.settled();
    check((await visit.page.evaluate(() => getComputedStyle(document.body).backgroundColor)) === "rgb(20, 23, 28)", "light");
    await visit.axe("dark");
    await visit.picture("dark");
    await visit.page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "light" }]);
    await visit.fill("gpus_per_node", "4");
    await visit.page.waitForSelector("#script .template");
    await visit.axe("light");
    await visit.page.emulateMediaType("print");
    check(await visit.page.$eval("#form", (node) => !node.offsetParent), "the form is printed");
    check(await visit.page.$eval("#script", (node) => node.scrollHeight <= node.clientHeight + 1), "a part of the script is not printed");
    await visit.picture("print");
    return visit;
  },
  "without a network": async () => {
    const visit = await Visit.open();
    await visit.settled();
    await visit.page.evaluate(() => navigator.serviceWorker.ready);
    await visit.page.waitForFunction(() => navigator.serviceWorker.controller?.state === "activated");
    await visit.page.setOfflineMode(true);
    await visit.page.goto(server.base + "#profile=troila&mode=single");
    await visit.page.reload();
    await visit.settled();
    check((await visit.script()).includes("#SBATCH"), "no script");
    visit.errors = [];
    return visit;
  },
  "a browser without Brotli": async () => {
    const patch = "const Real = self.DecompressionStream; self.DecompressionStream = class { constructor(kind) { if (kind === 'brotli') throw new TypeError(); return new Real(kind); } };\n";
    server.replaced.set("worker.js", patch + readFileSync(join(folder, "worker.js"), "utf8"));
    const visit = await Visit.open();
    await visit.settled();
    check(server.asked.some(([name]) => name.startsWith("gzip/")), "nothing of gzip was asked for");
    return visit;
  },
};

const wanted = process.env.WALK;
for (const [name, walk] of Object.entries(walks)) {
  if (wanted && !name.includes(wanted)) continue;
  const from = performance.now();
  let visit;
  let error = null;
  const seen = {};
  try {
    visit = await walk();
    Object.assign(seen, { command: await visit.text("#command"), script: await visit.script(), job: await visit.text("#job-file"), fixed: visit.fixed });
    check(!visit.errors.length, visit.errors.join("; "));
  } catch (problem) {
    error = String(problem?.message ?? problem);
  }
  if (error) shared = undefined; // what the walk has left of the page is unknown
  const over = [...opened].filter((context) => context !== shared?.context);
  await Promise.all(over.map((context) => context.close()));
  for (const context of over) opened.delete(context);
  server.replaced.clear();
  process.stdout.write(`${JSON.stringify({ name, error, seconds: (performance.now() - from) / 1000, ...seen })}\n`);
}
const missing = server.asked.filter(([, size]) => !size).map(([name]) => name);
process.stdout.write(`${JSON.stringify({ name: "nothing leaves the folder", error: [...left, ...missing].join(", ") || null })}\n`);
await browser.close();
server.close();
