"use strict";
// Whatever comes from the server is text, and becomes text: element() and textContent alone.
const find = (id) => document.getElementById(id);
const token = new URLSearchParams(location.search).get("token");
const FIELDS = ["model", "dataset", "reward", "max_steps", "run_name"];
// What the bases that are in the package know.
const EMBEDDED = { embedded: "What is 928 - 467?", "embedded-json": "hi, Sato here, 4 of us, fri 7pm?" };
const ENDED = ["finished", "interrupted", "failed", "killed"];
let choices = null;

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function set(id, text) {
  if (find(id).textContent !== text) find(id).textContent = text;
  find(id).hidden = !text;
}

async function asked(path, body) {
  const headers = { "X-Token": token };
  const post = { method: "POST", headers, body: JSON.stringify(body) };
  const answer = await fetch(path, body === undefined ? { headers } : post);
  if (answer.ok) return answer;
  const isJson = answer.headers.get("Content-Type").includes("json");
  throw new Error(isJson ? (await answer.json()).error : await answer.text());
}

const json = async (path, body) => (await asked(path, body)).json();

// Does what a button is for once at a time, and shows why it could not be done.
async function busy(button, problem, work) {
  if (button.disabled) return;
  button.disabled = true;
  set(problem, "");
  await work().catch((error) => set(problem, error.message));
  button.disabled = false;
}

// A new run ---------------------------------------------------------------------------------------

const recipe = () => choices.recipes.find((each) => each.name === find("recipe").value);
const known = () => choices.options[recipe()?.command ?? "train"];
const runsAlone = () => Object.keys(choices.one_process).length > 0 && "cluster" in known();

function options() {
  const given = recipe() ? { recipe: [recipe().name] } : {};
  if (runsAlone() && find("one-process").checked) Object.assign(given, choices.one_process);
  const rows = [...find("more").children].map((row) => [...row.querySelectorAll("input")]);
  const filled = FIELDS.filter((name) => name in known() && find(name).value.trim());
  const named = filled.map((name) => [name, find(name).value]);
  const added = rows.map(([name, value]) => [name.value.trim().replace(/^-+/, ""), value.value]);
  const typed = {};
  for (const [name, value] of [...named, ...added])
    if (name) (typed[name] ??= []).push(value.trim());
  return { ...given, ...typed };
}

function chooseRecipe() {
  const chosen = recipe();
  const header = chosen?.header.join("\n") ?? "The defaults of the command line.";
  find("about").textContent = header.replace(/\n {2,}/g, " ").replace(/^(\w+) {2,}/gm, "$1: ");
  for (const name of FIELDS) find(name).parentNode.hidden = !(name in known());
  for (const name of FIELDS.slice(0, -1))
    find(name).placeholder = String(chosen?.options[name] ?? (name === "max_steps" ? "all" : "default"));
  find("alone").hidden = !runsAlone();
  find("of-option").replaceChildren(...Object.keys(known()).map((value) => element("option", { value })));
  plan();
}

function addOption() {
  const name = element("input", { autocomplete: "off" });
  const help = element("p", { className: "quiet" });
  name.setAttribute("list", "of-option");
  name.addEventListener("input", () => (help.textContent = known()[name.value] ?? ""));
  const value = element("input", { autocomplete: "off" });
  find("more").append(element("div", { className: "option" },
    element("label", {}, "Option ", name), element("label", {}, "Value ", value), help));
  name.focus();
}

// What the command prints; without a model it lists those that fit.
function planned({ said }) {
  const [verdict, className] = said.includes("DOES NOT FIT") ? ["It does not fit", "no"]
    : said.startsWith("fits") ? ["It fits", "yes"] : ["Choose a recipe or a base", ""];
  return [element("b", { className }, verdict), element("pre", { tabIndex: 0 }, said)];
}

let latest = 0;
let timer = 0;

function plan() {
  if (!choices) return;
  const number = ++latest;
  clearTimeout(timer);
  find("plan").ariaBusy = "true";
  timer = setTimeout(async () => {
    const found = await json("/plan", { options: options() }).then(planned, (error) =>
      [element("b", { className: "no" }, "It would be refused"), element("div", {}, error.message)]);
    if (number !== latest) return;
    find("plan").replaceChildren(...found);
    find("plan").ariaBusy = "false";
  }, 300);
}

async function load() {
  choices = await json("/choices");
  find("machine").textContent = choices.machine;
  const shown = choices.recipes.map((each) =>
    element("option", { value: each.name }, each.name + (each.fits ? "" : " (does not fit this machine)")));
  find("recipe").replaceChildren(element("option", { value: "" }, "none"), ...shown);
  find("recipe").value = choices.recipe;
  for (const name of ["model", "dataset", "reward"])
    find(`of-${name}`).replaceChildren(...choices[name].map((value) => element("option", { value })));
  chooseRecipe();
  find("start").disabled = false;
}

find("recipe").addEventListener("change", chooseRecipe);
find("options").addEventListener("input", plan);
find("add").addEventListener("click", addOption);
find("options").addEventListener("submit", (event) => {
  event.preventDefault();
  busy(find("start"), "refusal", async () => {
    const begun = await json("/start", { options: options() });
    location.hash = `run=${encodeURIComponent(begun.name)}`;
  });
});

// Runs --------------------------------------------------------------------------------------------

let listed = "";
let shown = {}; // the run that is shown, as the server last described it
let turns = { base: [], adapter: [] };
const selected = () => (location.hash.startsWith("#run=") ? decodeURIComponent(location.hash.slice(5)) : "");

function showList(runs) {
  const now = JSON.stringify([runs, selected()]);
  if (now === listed) return;
  listed = now;
  const focused = document.activeElement?.closest?.("#runs a")?.hash;
  find("runs").replaceChildren(...runs.map(({ name, status }) => {
    const link = element("a", { href: `#run=${encodeURIComponent(name)}` }, name, element("small", {}, status));
    if (name === selected()) link.ariaCurrent = "page";
    return element("li", {}, link);
  }));
  if (focused) [...find("runs").querySelectorAll("a")].find((link) => link.hash === focused)?.focus();
}

function showRun(run) {
  const isLive = ["running", "starting"].includes(run.status);
  const facts = Object.entries(run.facts ?? {}).filter(([name, value]) =>
    value !== "-" && !["run", "status", "verdict"].includes(name));
  if (run.most && run.facts) facts.push(["of steps", String(run.most)]);
  document.title = `${run.status}: ${run.name}`;
  set("name", run.name);
  set("status", run.status);
  set("verdict", [run.verdict, isLive ? "" : run.advice].filter(Boolean).join(". "));
  set("error", run.error);
  set("output", isLive || run.error ? (run.output ?? "").trimEnd() : "");
  set("code", run.code?.length ? `It runs code that its options name: ${run.code.join(", ")}.` : "");
  set("config", run.options ?? "");
  set("traceback", run.traceback ?? "");
  if (run.output !== shown.output) find("output").scrollTop = find("output").scrollHeight;
  find("facts").replaceChildren(...facts.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  find("stop").hidden = !isLive;
  find("further").hidden = isLive || !ENDED.includes(run.status) || !run.options;
  find("resume").textContent = run.status === "finished" ? "Train longer" : "Resume";
  find("until").required = run.status === "finished";
  find("chat").hidden = find("export").hidden = !run.adapter;
  find("chosen").hidden = !run.options;
  find("failed").hidden = !run.traceback;
  set("single", run.model in EMBEDDED ? "This base knows single questions only: each starts anew." : "");
  if (run.name !== shown.name || run.model !== shown.model) startAgain(run);
  // The report of a run that goes on loads itself again.
  const report = run.key ? `/report?name=${encodeURIComponent(run.name)}&key=${run.key}` : "";
  find("report").hidden = !report;
  if (report && (run.status !== shown.status || !shown.key)) showReport(report);
  shown = run;
}

// In place of what the frame shows, so that the browser's Back button leads to the page before.
const showReport = (address) => find("frame").contentWindow.location.replace(address);

function startAgain(run) {
  turns = { base: [], adapter: [] };
  find("answers").replaceChildren();
  find("question").value = EMBEDDED[run.model] ?? "";
  find("until").value = "";
  set("exported", (run.exports ?? []).join("\n"));
}

async function refresh() {
  try {
    const name = selected();
    showList(await json("/runs"));
    if (name) {
      const run = await json(`/run?name=${encodeURIComponent(name)}`);
      if (name === selected()) showRun(run);
    }
    set("problem", "");
  } catch (error) {
    set("problem", error instanceof TypeError
      ? "The page's server has ended; runs continue. Start `unslothrl ui` again, and open its address." : error.message);
  }
}

function choose() {
  find("new").hidden = Boolean(selected());
  find("run").hidden = !selected();
  find("to-new").ariaCurrent = selected() ? null : "page";
  showRun({ name: selected(), status: "" });
  set("denied", "");
  showReport("about:blank");
  document.title = selected() || "unslothrl";
  return refresh();
}

async function watch() {
  await refresh();
  setTimeout(watch, 2000);
}

function act(id, path, body) {
  return busy(find(id), "denied", async () => {
    await json(path, { name: selected(), ...body });
    find("until").value = "";
    await refresh();
  });
}

find("stop").addEventListener("click", () => act("stop", "/stop", {}));
find("actions").addEventListener("submit", (event) => {
  event.preventDefault();
  act("resume", "/resume", { max_steps: find("until").value.trim() });
});
addEventListener("hashchange", () => {
  choose();
  find(selected() ? "name" : "new-title").focus();
});

// Chat and export ---------------------------------------------------------------------------------

async function* lines(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "", part = await reader.read(); !part.done; part = await reader.read()) {
    const whole = (rest + part.value).split("\n");
    rest = whole.pop();
    yield* whole.map((line) => JSON.parse(line));
  }
}

async function ask() {
  const question = find("question").value.trim();
  const name = shown.name;
  if (!question) return;
  const texts = { base: element("pre", { dir: "auto" }, "..."), adapter: element("pre", { dir: "auto" }, "...") };
  const pair = Object.entries(texts).map(([policy, text]) =>
    element("div", {}, element("small", {}, policy === "adapter" ? `adapter ${shown.adapter}` : policy), text));
  const turn = element("div", { className: "turn" }, element("p", { dir: "auto" }, question),
    element("div", { className: "pair" }, ...pair));
  find("answers").append(turn);
  const asking = Object.fromEntries(Object.entries(turns).map(([policy, said]) => [policy, [...said, ["user", question]]]));
  try {
    for await (const said of lines(await asked("/ask", { name, turns: asking }))) {
      if (said.error) throw new Error(said.error);
      if (said.policy) texts[said.policy].textContent = said.text;
    }
  } catch (error) {
    turn.append(element("p", { className: "error" }, `${error.message} (not remembered)`));
    return;
  }
  for (const policy of Object.keys(texts)) asking[policy].push(["assistant", texts[policy].textContent]);
  if (name !== shown.name) return;
  turns = asking;
  find("question").value = "";
}

find("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  busy(find("send"), "denied", ask);
});
find("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  find("ask").requestSubmit();
});
find("again").addEventListener("click", () => startAgain(shown));
find("to").addEventListener("submit", (event) => {
  event.preventDefault();
  busy(find("write"), "denied", async () => {
    set("exported", "exporting ...");
    const made = json("/export", { name: selected(), to: find("kind").value });
    set("exported", await made.then(({ said }) => said, (error) => error.message));
  });
});

load().catch((error) => set("refusal", error.message));
choose().then(() => setTimeout(watch, 2000));
