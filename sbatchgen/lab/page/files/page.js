// The page: a form that makes a command line, and the answers of the command. strings.yaml holds all texts for people.

const model = JSON.parse(document.getElementById("model").textContent);
const at = (id) => document.getElementById(id);
const say = (key, values = {}) => model.strings[key].replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
const fields = new Map(model.fields.map((field) => [field.flag, field]));

/** Return a new element. Strings in it, such as findings and scripts, become text, never HTML. */
function make(tag, attributes = {}, ...inside) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null) node.setAttribute(name, value);
  }
  node.append(...inside);
  return node;
}
const button = (text, onclick) => make("button", { type: "button", onclick }, text);

// --- Commands ---

const worker = new Worker("worker.js", { type: "module" });
const waiting = new Map();
let asked = 0;
worker.onmessage = ({ data }) => {
  if (data.ready) {
    document.documentElement.dataset.ready = "yes";
    navigator.serviceWorker?.register("sw.js").catch(() => {}); // keeps the files, which are loaded now, for visits offline
  }
  if (data.failed) for (const id of ["state", "lint-state"]) at(id).textContent = say("failed", { why: data.failed });
  waiting.get(data.number)?.(data);
  waiting.delete(data.number);
};
worker.onerror = (event) => (at("state").textContent = say("failed", { why: event.message ?? "" }));
function ask(argv, files = {}) {
  const number = ++asked;
  return new Promise((resolve) => {
    waiting.set(number, resolve);
    worker.postMessage({ number, argv, files });
  });
}

/** Return a function that runs `work` after each change: one run at a time, and always for the newest state. */
function latest(work) {
  let changed = false;
  let running = false;
  return async function run() {
    changed = true;
    if (running) return;
    running = true;
    while (changed) {
      changed = false;
      await work(() => !changed);
    }
    running = false;
  };
}

/** Return the problems that a command printed as text: "error: what", "  at:  where", "  fix: what to do". */
function problems(text) {
  const found = [];
  for (const line of text.split("\n")) {
    const [, severity, what] = line.match(/^(error|warning|info): (.*)/) ?? [];
    if (severity) found.push({ severity, what, at: "", fix: "", rule: "" });
    const [, key, value] = line.match(/^ {2}(at|fix): +(.*)/) ?? [];
    if (key && found.length) found.at(-1)[key] = value;
  }
  return found;
}

// --- The form ---

const profile = () => model.profiles.find((each) => each.name === at("profile").value) ?? model.profiles[0];
const mode = () => model.modes.find((each) => each.name === document.querySelector("[name=mode]:checked").value);
const inputs = () => [...document.querySelectorAll("#form [data-flag]")];
const input = (flag) => document.querySelector(`#form [data-flag="${CSS.escape(flag)}"]`);
const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);

/** Return the words of a text as a shell splits it: with quotes and backslashes, without variables. */
function words(text) {
  const found = text.matchAll(/(?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"?|'[^']*'?)+/gs);
  const plain = (_, single, double, escaped) => single ?? double?.replace(/\\(["\\$`])/g, "$1") ?? escaped;
  return [...found].map(([word]) => word.replace(/'([^']*)'?|"((?:[^"\\]|\\.)*)"?|\\(.)/gs, plain));
}

/** Return the flags that are set, each with its words on the command line. */
function given() {
  const found = [];
  for (const node of inputs()) {
    const { flag, several } = node.dataset;
    const text = node.value.trim();
    if (!text || node.closest(".field").hidden) continue;
    if (fields.get(flag).is_flag) found.push([flag, text === "yes" ? [flag] : [fields.get(flag).no]]);
    else for (const value of several === undefined ? [text] : words(text)) found.push([flag, [flag, value]]);
  }
  return [...found, ...unfilled().map((flag) => [flag, [flag, flag.slice(2).replaceAll("-", "_").toUpperCase()]])];
}

/** Return the flags that the cluster requires and that have no value yet. The script has their names in capitals. */
const unfilled = () => profile().required.filter((flag) => input(flag) && !input(flag).value.trim());

const several = () => at("programs").value.trim() !== ""; // several programs need a job file
const OF_ONE = ["nodes", "gpus_per_node", "gres", "launcher", "trainer"]; // fields of a job with one program

/** Return the command line: its job, the arguments after --, and the files that it reads. */
function commandLine() {
  if (several()) return { job: ["./job.yaml"], args: [], files: { "job.yaml": jobFile() } };
  const args = words(at("args").value);
  const flags = given().flatMap(([, said]) => said);
  return { job: [mode().name, "--profile", profile().name, ...flags], args: args.length ? ["--", ...args] : [], files: {} };
}

function jobFile() {
  const plain = (text) => (/^(?!(?:null|true|false|yes|no|on|off|y|n)$)[\w./%$][\w./%:+-]*$/i.test(text) ? text : JSON.stringify(text));
  const top = [`profile: ${plain(profile().name)}`, ...(several() ? [] : [`mode: ${mode().name}`])];
  const lists = new Map();
  const options = [];
  for (const [flag, said] of given()) {
    const { key, is_flag, several } = fields.get(flag);
    const value = is_flag ? String(said[0] === flag) : plain(said[1]);
    if (key.startsWith("options.")) options.push(`  ${key.slice(8)}: ${value}`);
    else if (several) lists.set(key, [...(lists.get(key) ?? []), said[1]]);
    else top.push(`${key}: ${value}`);
  }
  for (const [key, texts] of lists) {
    const pairs = texts.map((text) => text.match(/^([^=]*)(?:=(.*))?$/s));
    const mapped = pairs.map(([, name, value]) => `${plain(name)}: ${value === undefined ? "" : JSON.stringify(value)}`);
    if (key === "") top.push(...pairs.map(([, name, value]) => `${name}: ${plain(value ?? "")}`));
    else top.push(`${key}: ${["env", "step"].includes(key) ? `{${mapped.join(", ")}}` : JSON.stringify(texts)}`);
  }
  const args = several() ? [] : words(at("args").value);
  if (args.length) top.push(`args: ${JSON.stringify(args)}`);
  const end = several() ? [at("programs").value.trimEnd()] : [];
  return [...top, ...(options.length ? ["options:", ...options] : []), ...end, ""].join("\n");
}

function showProfile() {
  const { description, checked, partitions, required, trainer } = profile();
  at("about").textContent = description;
  at("made").textContent = say("made", { version: model.version, checked });
  const chosen = at("partition").value;
  const any = model.strings[partitions.some((each) => each.first) ? "partition_default" : "partition_any"];
  at("partition").replaceChildren(make("option", { value: "" }, any));
  for (const { name, about } of partitions) {
    at("partition").append(make("option", { value: name }, about ? `${name}: ${about}` : name));
  }
  at("partition").value = partitions.some(({ name }) => name === chosen) ? chosen : "";
  at("trainer").value ||= trainer; // the form begins with the centre's own trainer
  for (const node of inputs()) {
    const isRequired = required.includes(node.dataset.flag);
    node.toggleAttribute("required", isRequired);
    const label = node.closest(".field").querySelector("label");
    label.querySelector("em")?.remove();
    if (isRequired) label.append(make("em", {}, ` (${say("required")})`));
  }
}

/** Show the fields that the mode, the partition and the runtime use. */
function showFields() {
  const { hides } = mode();
  const runtime = at("runtime").value || profile().runtime;
  const named = at("partition").value;
  at("partition-help").textContent = profile().partitions.find(({ name, first }) => (named ? name === named : first))?.about ?? "";
  const shards = profile().partitions.some(({ name, shards: has }) => has && (!named || name === named));
  for (const field of model.fields) {
    const box = document.querySelector(`#form [data-field="${field.name}"]`);
    if (!box) continue;
    const ofRuntime = field.runtimes && !field.runtimes.includes(runtime);
    const ofOne = several() && OF_ONE.includes(field.name);
    box.hidden = ofOne || hides.includes(field.name) || ofRuntime || (field.name === "gres" && !shards);
  }
  for (const node of [at("modes"), at("args").closest(".field")]) node.hidden = several();
  for (const group of at("more").querySelectorAll("fieldset")) group.hidden = !group.querySelector(".field:not([hidden])");
}

// --- Findings and their fixes ---

/** Return the changes of the form that the text of a fix means: a list of [text, [[flag, value], ...]]. */
function changes({ fix, at: place }) {
  const found = [];
  const field = fields.get(place);
  const add = (flags, key = "set") => found.push([say(key, { value: flags.map(([flag, value]) => `${flag} ${value ?? ""}`.trim()).join(" ") }), flags]);
  const modeName = fix.match(/\buse mode (\w+)/)?.[1];
  if (modeName) {
    add([["mode", modeName]]);
    return found;
  }
  for (const part of fix.split(/;|,? or (?=remove|set|use|add|leave|--)/)) {
    const flags = [...part.matchAll(/(--[a-z-]+)(?:[ =]([\w.:%/+-]+))?((?:(?:, | or )[a-z][a-z0-9-]*)*)/g)];
    const known = flags.filter(([, flag]) => fields.has(flag));
    if (!known.length) continue;
    if (/\b(remove|leave out)\b/.test(part)) {
      add(known.map(([, flag]) => [flag, ""]), "remove");
      continue;
    }
    const values = known.map(([, flag, value]) => [flag, /^(?:[A-Z:]+|\.\.\.|is|for|in|and|with|has)$/.test(value ?? "N") ? null : value.replace(/\.+$/, "")]);
    add(values);
    const { choices } = fields.get(known[0][1]);
    for (const word of known[0][3].split(/,? or |, | /)) if (choices?.includes(word)) add([[known[0][1], word]]);
  }
  const names = fix.match(/^(?:use|did you mean|write) ('?[\w.-]+'?(?:(?:,| or) '?[\w.-]+'?)*)\??$/)?.[1];
  if (field && names && !found.length) for (const name of names.split(/, | or /)) add([[place, name.replaceAll("'", "")]]);
  return found;
}

function apply(flags) {
  for (const [flag, value] of flags) {
    const node = input(flag);
    if (flag === "mode") document.querySelector(`[name=mode][value="${CSS.escape(value)}"]`)?.click();
    else if (node) {
      if (node.closest("details")) at("more").open = true;
      node.closest(".field").hidden = false;
      if (value !== null) node.value = fields.get(flag).is_flag ? (value === "" ? "" : "yes") : value;
      node.focus();
    }
  }
  changed();
}

function showFinding({ severity, what, at: place, fix, rule }, buttons) {
  const head = make("p", {}, make("b", {}, say(severity)), `: ${what}`);
  if (place) head.append(make("small", {}, ` (${short(place)})`));
  const box = make("div", { class: `finding ${severity}` }, head, fix ? make("p", {}, fix) : "");
  const row = make("div", { class: "buttons" }, ...buttons);
  if (rule) row.append(button(`${say("page")}: ${rule}`, () => showPage(rule)));
  if (row.children.length) box.append(row);
  return box;
}

/** Show the number of findings by severity. */
function counted(list) {
  const count = (name) => list.filter(({ severity }) => severity === name).length;
  const counts = [["error", "errors"], ["warning", "warnings"], ["info", "notes"]].filter(([name]) => count(name));
  return counts.map(([name, key]) => say(key, { count: count(name) })).join(", ") || say("no_findings");
}

function showFindings(list) {
  at("state").textContent = counted(list);
  at("findings").replaceChildren(
    ...list.map((each) => showFinding(each, changes(each).map(([text, flags]) => button(text, () => apply(flags))))),
  );
  for (const node of inputs()) {
    const wrong = list.find(({ severity, at: place, what }) => severity === "error" && `${place} ${what}`.includes(node.dataset.flag));
    const box = node.closest(".field");
    box.querySelector(".error")?.remove();
    if (wrong) {
      node.setAttribute("aria-invalid", "true");
      box.append(make("p", { class: "help error" }, wrong.fix || wrong.what)); // also beside the field
    } else node.removeAttribute("aria-invalid");
  }
}

/** Return the pieces of a text of Markdown: the words of links, and code. */
const inline = (text) =>
  text
    .replace(/\[([^\]]*)\]\(([^)]*)\)/g, "$1")
    .split(/`([^`]*)`/)
    .map((piece, number) => (number % 2 ? make("code", {}, piece) : piece));

/** Show the page of a rule: its Markdown as headings, paragraphs and code. */
async function showPage(rule) {
  const { out } = await ask(["lint", "--explain", rule]);
  at("page-text").replaceChildren();
  for (const part of out.split(/^(```[^]*?^```)$/m)) {
    if (part.startsWith("```")) {
      const [head, ...code] = part.slice(3, -3).split("\n");
      at("page-text").append(make("p", {}, make("b", {}, head.split(" ")[1] ?? "")), make("pre", { tabindex: 0 }, code.join("\n")));
    } else {
      for (const text of part.split(/\n{2,}/).filter((each) => each.trim())) {
        const heading = text.match(/^\s*#+ (.*)/);
        at("page-text").append(make(heading ? "h2" : "p", {}, ...inline(heading ? heading[1] : text)));
      }
    }
  }
  at("page").showModal();
}

// --- The script and what decided it ---

const short = (place) => place.replace(/\/\S*\/(?=[^/\s]+$|[^/\s]+:\d+)/g, "");
let origins = [];

function showScript(script) {
  origins = [];
  const lines = script === null ? [] : script.replace(/\n$/, "").split("\n");
  at("script").replaceChildren(
    ...(script === null ? [make("p", { role: "option" }, say("no_script"))] : []),
    ...lines.map((line, place) =>
      make("div", { class: "line", role: "option", id: `line-${place + 1}`, "data-number": place + 1, "aria-selected": "false", ...(line.trim() ? {} : { "aria-label": "empty line" }) }, line),
    ),
  );
  at("script").dataset.text = script ?? "";
  at("next").textContent = [`sbatch ${nameOfJob()}.slurm`, "squeue --me", `tail -f ${nameOfJob()}-*.out`].join("\n");
  for (const id of ["copy", "download"]) at(id).disabled = script === null;
}

/** Mark each line by its origin: of several origins in a line the highest counts. */
function showOrigins({ settings, lines }) {
  const RANK = ["default", "partition", "profile", "project", "job", "command line"];
  const CLASS = { "command line": "you", job: "you", partition: "profile", profile: "profile", project: "profile", default: "rule" };
  origins = (lines ?? []).map(({ text, file, line, value }) => {
    const option = text.match(/^#SBATCH (--[a-z-]+)/)?.[1];
    const inLine = settings.filter(({ name, value: held }) => (option ? name === option : value && held.length > 2 && text.includes(held)));
    const highest = inLine.map(({ by }) => by).sort((a, b) => RANK.indexOf(b) - RANK.indexOf(a))[0];
    const who = inLine.map((each) => `${each.name}: ${each.value} (${short(each.at)})`);
    const of = say("origin_template", { file: short(file), number: line });
    return { kind: option || value ? (CLASS[highest] ?? "rule") : "template", what: [...who, of].join("; ") };
  });
  origins.forEach(({ kind, what }, place) => {
    const node = at(`line-${place + 1}`);
    node?.classList.add(kind);
    node?.setAttribute("title", what);
  });
  for (const node of inputs()) {
    const name = node.dataset.flag.slice(2).replaceAll("-", "_");
    const set = settings.find((each) => each.name === node.dataset.flag || each.name === name);
    const value = set?.by === "command line" ? "" : (set?.value ?? "");
    if (node.tagName === "INPUT") node.placeholder = value;
    else if (node.id !== "partition") node.options[0].text = `${value} ${say("by_default")}`.trim();
  }
  const out = settings.filter(({ value, name }) => value === "passed over" && name.startsWith("partition "));
  const list = out.map(({ name, at: why }) => `${name.slice(10)} (${why})`).join("; ");
  at("passed-over").textContent = list ? say("passed_over", { list }) : "";
}

function choose(node) {
  if (!node) return;
  at("script").querySelector('[aria-selected="true"]')?.setAttribute("aria-selected", "false");
  node.setAttribute("aria-selected", "true");
  at("script").setAttribute("aria-activedescendant", node.id);
  node.scrollIntoView({ block: "nearest" });
  const line = node.dataset.number;
  at("origin").textContent = origins[line - 1] ? say("origin", { line, what: origins[line - 1].what }) : "";
}
at("script").addEventListener("click", (event) => choose(event.target.closest(".line")));
at("script").addEventListener("keydown", (event) => {
  const chosen = at("script").querySelector('[aria-selected="true"]');
  const next = { ArrowDown: chosen?.nextElementSibling ?? at("script").firstElementChild, ArrowUp: chosen?.previousElementSibling }[event.key];
  if (!next?.dataset.number) return;
  event.preventDefault();
  choose(next);
});

/** Return the table of processes: a row for each node, and one row for several equal nodes. */
function showPlan({ starts, script, request }) {
  at("plan").replaceChildren();
  if (!script || !starts) return;
  const { gpus: { of }, jobs, restarts } = request;
  const gpus = (count) => (count && of ? say("plan_all_gpus", { list: count, count: of }) : count || say("plan_none"));
  const held = (row) => (row.shards ? say("plan_shards", { count: row.shards }) : gpus(row.gpus));
  const span = (first, last) => (last > first ? `${first}-${last}` : first);
  const head = ["plan_node", "plan_tasks", "plan_processes", "plan_gpus", "plan_cpus"].map((key) => make("th", { scope: "col" }, say(key)));
  const ofNode = (row) => {
    const name = row.last > row.first ? say("plan_more", row) : row.first;
    return [name, row.tasks ?? "", span(row.first_rank, row.last_rank), held(row), row.cpus ?? ""];
  };
  const ofProgram = (row) => [`${row.replicas ? `${row.replicas} x ` : ""}${row.name}: ${span(row.first, row.last)}`, row.tasks, row.command, gpus(row.gpus), row.cpus || ""];
  const cells = starts.programs.length ? starts.programs.map(ofProgram) : starts.nodes.map(ofNode);
  const rows = cells.map((row) => make("tr", {}, ...row.map((text) => make("td", {}, `${text}`))));
  if (starts.programs.length) head[2].textContent = say("plan_command");
  at("plan").append(make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)));
  const more = [jobs > 1 && say("plan_jobs", { count: jobs }), restarts && say("plan_restarts", { count: restarts })];
  at("plan").append(...more.filter(Boolean).map((text) => make("p", {}, text)));
}

function showCost({ cost, request }) {
  at("cost").textContent = "";
  const number = (hours) => (Math.round(hours * 10) / 10).toLocaleString(document.documentElement.lang);
  if (cost?.gpu_hours == null) return;
  at("cost").textContent = say("cost", { gpu: number(cost.gpu_hours), cpu: cost.cpu_hours === null ? "?" : number(cost.cpu_hours) });
  if (request.restarts) at("cost").textContent += `; ${say("cost_restarts", { count: request.restarts })}`;
  if (cost.billing_hours) at("cost").textContent += `, ${say("cost_billing", { billing: number(cost.billing_hours) })}`;
}

function showCommand() {
  const { job, args } = commandLine();
  at("command").textContent = ["sbatchgen", "render", ...job, ...args].map(quoted).join(" ");
  at("job-file").textContent = jobFile();
}

/** Return the document that a command prints for programs; null without one, and for an error without findings. */
function documentOf(out) {
  const made = out ? JSON.parse(out) : null;
  return made?.error && !made.findings ? null : made;
}

const IDLE_MS = 250;
let explaining = 0;
const refresh = latest(async (isCurrent) => {
  const { job, args, files } = commandLine();
  if (document.documentElement.dataset.ready) at("state").textContent = say("working");
  const lacksTrainer = profile().trainer && !several() && !at("trainer").value.trim();
  if (document.documentElement.dataset.shown === undefined && !lacksTrainer) {
    const early = await ask(["render", ...job, ...args], files); // the first script comes sooner, because a review loads more of the program
    if (early.status === 0) showScript(early.out);
  }
  const { out, err } = await ask(["review", ...job, "--format", "json", ...args], files);
  if (!isCurrent()) return;
  const review = documentOf(out) ?? { findings: problems(err), script: null };
  if (lacksTrainer) {
    review.findings.unshift({ severity: "error", what: say("needs_trainer"), at: "--trainer", fix: say("needs_trainer_fix"), rule: "" });
    review.script = null;
  }
  for (const flag of unfilled()) {
    review.findings.unshift({ severity: "error", what: say("to_fill", { flag }), at: flag, fix: say("to_fill_fix", { flag }), rule: "" });
  }
  showScript(review.script);
  showFindings(review.findings);
  showPlan(review);
  showCost(review.script === null ? {} : review);
  document.documentElement.dataset.shown = ["sbatchgen", "render", ...job, ...args].map(quoted).join(" ");
  clearTimeout(explaining);
  explaining = setTimeout(() => explain(job, args, files), IDLE_MS);
});

/** Mark the lines of the script when nothing has been typed for a moment. */
async function explain(job, args, files) {
  const command = at("command").textContent;
  const { out } = await ask(["explain", ...job, "--lines", "--format", "json", ...args], files);
  const origins = documentOf(out);
  if (origins && at("command").textContent === command) showOrigins(origins);
}

function changed() {
  showFields();
  showCommand();
  remember();
  refresh();
}
at("form").addEventListener("input", changed);
at("form").addEventListener("submit", (event) => event.preventDefault());
at("profile").addEventListener("input", () => {
  showProfile();
  at("lint-profile").value = profile().name;
});

// --- The user's own script ---

const profileOfScript = () => (at("lint-profile").value ? ["--profile", at("lint-profile").value] : []);

/** Return the text after the edits of findings, made from the last place to the first. */
function edited(text, edits) {
  const lines = text.split("\n");
  for (const { line, column, end_column, text: put } of edits.toSorted((a, b) => b.line - a.line || b.column - a.column)) {
    const old = lines[line - 1];
    lines[line - 1] = old.slice(0, column - 1) + put + (end_column ? old.slice(end_column - 1) : "");
  }
  return lines.join("\n");
}

const lint = latest(async (isCurrent) => {
  const text = at("source").value;
  at("adopted").replaceChildren();
  if (!text.trim()) {
    at("lint").replaceChildren();
    at("lint-state").textContent = say("lint_empty");
    return;
  }
  at("lint-state").textContent = say(document.documentElement.dataset.ready ? "working" : "starting");
  const { out, err } = await ask(["lint", "job.slurm", "--format", "json", ...profileOfScript()], { "job.slurm": text });
  if (!isCurrent()) return;
  const found = documentOf(out) ?? [];
  const list = [...problems(err).map((each) => ({ ...each, line: 1, edits: [] })), ...found.map((each) => ({ ...each, what: each.message, at: "" }))];
  at("lint-state").textContent = counted(list);
  const put = (edits) => {
    at("source").value = edited(at("source").value, edits);
    at("source").dispatchEvent(new Event("input"));
    at("lint-state").focus?.();
  };
  const box = make("div", { class: "code", tabindex: 0, role: "region", "aria-label": say("findings") });
  text.replace(/\n$/, "").split("\n").forEach((line, place) => {
    box.append(make("div", { class: "line", "data-number": place + 1 }, line));
    for (const each of list.filter((finding) => finding.line === place + 1)) {
      box.append(showFinding(each, each.edits.length ? [button(say("fix"), () => put(each.edits))] : []));
    }
  });
  at("lint").replaceChildren(box);
  at("fix-all").hidden = !list.some(({ edits }) => edits.length);
  document.documentElement.dataset.linted = `${list.length}`;
});
at("fix-all").addEventListener("click", async () => {
  const text = at("source").value;
  const { out } = await ask(["lint", "job.slurm", "--diff", ...profileOfScript()], { "job.slurm": text });
  at("source").value = patched(text, out);
  at("source").dispatchEvent(new Event("input"));
});

/** Return a text after a unified diff of it; text after the diff is left out. */
function patched(text, diff) {
  const lines = text.split("\n");
  const done = [];
  const parts = diff.split("\n");
  let read = 0;
  for (let at = 0; at < parts.length; at++) {
    const [, first, size = 1, more = 1] = parts[at].match(/^@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@/) ?? [];
    if (first === undefined) continue;
    done.push(...lines.slice(read, size === "0" ? Number(first) : first - 1));
    read = (size === "0" ? Number(first) : first - 1) + Number(size);
    for (let old = Number(size), added = Number(more); old > 0 || added > 0; ) {
      const line = parts[++at];
      if (line === undefined) return text;
      if (!line.startsWith("-") && !line.startsWith("\\")) {
        done.push(line.slice(1));
        added--;
      }
      if (!line.startsWith("+") && !line.startsWith("\\")) old--;
    }
  }
  return [...done, ...lines.slice(read)].join("\n");
}

async function adopt() {
  const argv = ["adopt", "job.slurm", ...(at("partly").checked ? ["--partly"] : [])];
  const text = { "job.slurm": at("source").value };
  const { out, err } = await ask([...argv, "--format", "json"], text);
  const report = documentOf(out);
  const box = at("adopted");
  box.replaceChildren(make("h2", {}, say("adopted")));
  const refused = problems(err);
  box.append(...refused.map((each) => showFinding(each, [])));
  for (const { lines, outcome, what } of report?.rows ?? []) box.append(make("p", {}, `${lines.join(", ")} ${outcome}: ${what}`));
  for (const note of report?.notes ?? []) box.append(make("p", { class: "help" }, note));
  for (const [name, content] of Object.entries(refused.length ? {} : (report?.files ?? {}))) {
    box.append(make("h2", {}, name), make("pre", { tabindex: 0 }, content));
    box.append(button(say("to_clipboard"), (event) => copy(content, event.target)), " ", button(say("download"), () => download(content, name)));
  }
  const job = Object.keys(report?.files ?? {})[0];
  if (!refused.length && job) {
    const command = ["sbatchgen", "review", job, ...profileOfScript()].join(" ");
    box.append(make("p", {}, say("adopted_next")), make("pre", { tabindex: 0 }, command));
  }
}
at("adopt").addEventListener("click", adopt);
for (const id of ["source", "lint-profile"]) {
  at(id).addEventListener("input", () => {
    remember();
    lint();
  });
}
async function read(file) {
  if (!file) return;
  at("source").value = await file.text();
  at("source").dispatchEvent(new Event("input"));
}
at("file").addEventListener("change", (event) => read(event.target.files[0]));
for (const kind of ["dragover", "drop"]) {
  document.addEventListener(kind, (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    if (kind === "drop") {
      open("check");
      read(event.dataTransfer.files[0]);
    }
  });
}

// --- Copies, downloads, and the link that holds the whole state ---

async function copy(text, node) {
  await navigator.clipboard.writeText(text);
  const before = node.textContent;
  node.textContent = say("copied");
  setTimeout(() => (node.textContent = before), 1500);
}
function download(text, name) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
const script = () => at("script").dataset.text ?? "";
const nameOfJob = () => script().match(/^#SBATCH --job-name=([\w.-]+)$/m)?.[1] ?? "job";
const link = () => location.href;
const clicks = {
  copy: (event) => copy(script(), event.target),
  download: () => download(script(), `${nameOfJob()}.slurm`),
  "download-job": () => download(at("job-file").textContent, `${nameOfJob()}.yaml`),
  "copy-source": (event) => copy(at("source").value, event.target),
  "download-source": () => download(at("source").value, "job.slurm"),
  link: async (event) => copy(await remember().then(link), event.target),
  "link-source": async (event) => copy(await remember().then(link), event.target),
};
for (const [id, work] of Object.entries(clicks)) at(id).addEventListener("click", work);
for (const node of document.querySelectorAll("[data-copy]")) {
  node.addEventListener("click", () => copy(at(node.dataset.copy).textContent, node));
}

const through = async (bytes, stream) => new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());
async function packed(text) {
  const bytes = await through(new TextEncoder().encode(text), new CompressionStream("deflate-raw"));
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join("")).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (char) => char.charCodeAt(0));
  return new TextDecoder().decode(await through(bytes, new DecompressionStream("deflate-raw")));
}

async function remember() {
  const state = new URLSearchParams();
  if (!at("check").hidden) {
    state.set("tab", "check");
    state.set("for", at("lint-profile").value);
    if (at("source").value) state.set("script", await packed(at("source").value));
  } else {
    state.set("profile", profile().name);
    state.set("mode", mode().name);
    for (const node of inputs()) if (node.value.trim() && !node.closest(".field").hidden) state.set(node.dataset.flag.slice(2), node.value);
    if (at("args").value) state.set("args", at("args").value);
    if (several()) state.set("programs", await packed(at("programs").value));
  }
  history.replaceState(null, "", `#${state}`);
}

// Anybody may have made a link. A terminal obeys these characters in a pasted command, or shows another text than it runs.
const harmful = /(?![\t\n\r])\p{Cc}|[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/u;

async function restore() {
  const state = new URLSearchParams(location.hash.slice(1));
  for (const [key, value] of [...state]) if (harmful.test(value)) state.delete(key);
  const named = (id, key) => [...at(id).options].some(({ value }) => value === state.get(key)) && (at(id).value = state.get(key));
  if (state.has("profile")) named("profile", "profile");
  showProfile();
  const radio = [...document.querySelectorAll("[name=mode]")].find(({ value }) => value === state.get("mode"));
  if (radio) radio.checked = true;
  if (state.has("mode")) for (const node of inputs()) node.value = state.get(node.dataset.flag.slice(2)) ?? "";
  if (state.has("mode")) at("args").value = state.get("args") ?? "";
  const more = [...at("more").querySelectorAll("[data-flag]")];
  at("more").open = more.some((node) => node.value);
  at("lint-profile").value = profile().name;
  if (state.has("for")) named("lint-profile", "for");
  for (const [key, id] of [["script", "source"], ["programs", "programs"]]) {
    const text = state.has(key) ? await unpacked(state.get(key)).catch(() => "") : null;
    if (text !== null) at(id).value = harmful.test(text) ? "" : text;
  }
  at("several").open = several();
  at("more").open ||= several();
  showFields();
  showCommand();
  open(state.get("tab") === "check" ? "check" : "build");
}

// --- Tabs ---

function open(name) {
  for (const each of ["build", "check"]) {
    at(each).hidden = each !== name;
    at(`tab-${each}`).setAttribute("aria-selected", String(each === name));
    at(`tab-${each}`).tabIndex = each === name ? 0 : -1;
  }
  remember();
  if (name === "check") lint();
  else refresh();
}
for (const each of ["build", "check"]) {
  at(`tab-${each}`).addEventListener("click", () => open(each));
  at(`tab-${each}`).addEventListener("keydown", ({ key }) => {
    if (key !== "ArrowLeft" && key !== "ArrowRight") return;
    const other = each === "build" ? "check" : "build";
    open(other);
    at(`tab-${other}`).focus();
  });
}
addEventListener("hashchange", restore);
await restore();
