"use strict";
// Reads values out of the charts, and shows the rollouts in the page's data.
// Everything that a model or a data set wrote goes into the page as text, by textContent alone.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const find = (id) => document.getElementById(id);

  function element(tag, properties, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children.filter((child) => child !== null));
    return made;
  }

  const NUMBER = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 4 });
  const short = (value) => (Number.isFinite(value) ? NUMBER.format(value) : "-");
  const signed = (value) => `${value >= 0 ? "+" : ""}${value.toFixed(3)}`;
  const counted = (n, word) => `${n.toLocaleString("en-US")} ${word}${n === 1 ? "" : "s"}`;
  const meta = (...parts) => element("p", { className: "meta" }, ...parts);
  const sum = (values) => values.reduce((total, value) => total + (value || 0), 0);

  // Charts -----------------------------------------------------------------------------------

  function chart(figure) {
    const { steps, curves, names } = JSON.parse(figure.dataset.values); // names: of problems
    const plot = figure.querySelector(".plot");
    const labels = [...figure.querySelectorAll(".legend b")];
    const last = labels.map((label) => label.textContent);
    const at = element("p", { className: "at" });
    const cross = document.createElementNS("http://www.w3.org/2000/svg", "path");
    cross.setAttribute("class", "cross");
    figure.querySelector(".legend").after(at);
    plot.querySelector("svg").append(cross);
    let chosen = -1;

    const span = steps[steps.length - 1] - steps[0];
    const middle = (i) => (i + 0.5) / steps.length; // of a problem's column
    const place = (i) => (names ? middle(i) : span ? (steps[i] - steps[0]) / span : 0.5);
    const choose = (i) => {
      chosen = i;
      cross.setAttribute("d", `M${(100 * place(i)).toFixed(2)} 0V100`);
      labels.forEach((label, curve) => {
        const [value, low, high] = [curves[curve][i] ?? []].flat();
        label.textContent = short(value) + (high === undefined ? "" : ` (${short(low)} to ${short(high)})`);
      });
      at.replaceChildren(...(names ? [names[i]] : [`step ${steps[i]} `, linkTo(steps[i])]));
    };
    const point = (event) => {
      const box = plot.getBoundingClientRect();
      const far = (i) => Math.abs(place(i) - (event.clientX - box.left) / box.width);
      choose(steps.reduce((best, _, i) => (far(i) < far(best) ? i : best), 0));
    };
    const follow = () => at.querySelector("a")?.click();
    plot.addEventListener("pointermove", point);
    plot.addEventListener("pointerdown", point);
    plot.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "mouse") return;
      chosen = -1;
      cross.removeAttribute("d");
      labels.forEach((label, curve) => (label.textContent = last[curve]));
    });
    plot.addEventListener("click", (event) => event.pointerType !== "touch" && follow());
    plot.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Enter") follow();
      if (!by) return;
      const from = chosen < 0 ? (by > 0 ? -1 : steps.length) : chosen;
      choose(Math.min(steps.length - 1, Math.max(0, from + by)));
      event.preventDefault();
    });
  }

  // To the rollouts of a step, or of the nearest that the page has.
  function linkTo(step) {
    const far = ({ name }) => Math.abs(name - step);
    const nearest = data.steps.reduce((best, each) => (far(each) < far(best) ? each : best), data.steps[0]);
    return nearest ? element("a", { href: nearest.hash }, `rollouts of ${nearest.label}`) : "";
  }

  document.querySelectorAll("figure[data-values]").forEach(chart);

  // The page of a run that is running loads itself again, and shows what it showed before.
  const section = find("rollouts");
  const CONTROLS = section ? ["filter", "order", "colour", "search"].map(find) : [];
  const before = history.state;
  const folds = () => [...document.querySelectorAll("details")];

  function reload() {
    if (document.activeElement === find("search") || String(getSelection())) return;
    const isRead = section?.getBoundingClientRect().top < innerHeight;
    history.replaceState({
      values: CONTROLS.map((each) => each.value), open: folds().map((each) => each.open),
      hash: isRead && find("prompts").dataset.hash, scroll: scrollY,
    }, "");
    location.reload();
  }

  function restore() {
    history.scrollRestoration = "manual";
    folds().forEach((each, i) => (each.open = before.open[i] ?? false));
    scrollTo(0, before.scroll);
    history.replaceState(null, "");
  }

  if ("live" in document.body.dataset) setInterval(reload, 15000);
  if (before && !section) restore();
  if (!section) return;

  // Prompts ------------------------------------------------------------------------------------

  const everything = [...data.steps, ...data.evals]; // that the slider selects from
  let index = 0;

  const total = (candidate) => sum(Object.values(candidate.rewards));
  const lengthOf = (text) => text[0].length + (text.length > 1 ? text[1] + text[2].length : 0);
  const bodies = (found) => // of an episode what was written and read in its turns
    found.turns?.flatMap((turn) => [turn.reply, turn.observation]) || [found.completion];

  // What filters and orders look at, of every prompt: also how it has improved since it was first.
  const first = new Map();
  for (const step of everything) {
    step.kind = data.steps.includes(step) ? "step" : "evaluation";
    step.hash = `#${step.kind}=${encodeURIComponent(step.name)}`;
    step.label = `${step.kind} ${step.name.replace(/^0+(?=\d)/, "")}`;
    for (const prompt of step.prompts) {
      const { candidates, name } = prompt; // of an evaluation it begins with its set
      prompt.step = step;
      prompt.reward = sum(candidates.map(total)) / (candidates.length || 1);
      prompt.right = candidates.filter((each) => each.score >= 1).length;
      prompt.most = Math.max(...candidates.map((each) => Math.abs(each.advantage || 0)));
      prompt.longest = Math.max(...candidates.map((each) => sum(bodies(each).map(lengthOf))));
      prompt.truncated = candidates.some((each) => each.finish_reason === "length");
      if (!first.has(name)) first.set(name, prompt);
      else if (first.get(name).step !== step) prompt.improved = prompt.reward - first.get(name).reward;
    }
  }

  const FILTERS = {
    all: { label: "all prompts", keeps: () => true },
    wrong: { label: "all wrong", keeps: (prompt) => prompt.right === 0 },
    right: { label: "all right", keeps: (prompt) => prompt.right === prompt.candidates.length },
    mixed: { label: "some right", keeps: ({ right, candidates }) => right > 0 && right < candidates.length },
    truncated: { label: "truncated", keeps: (prompt) => prompt.truncated },
  };
  const ORDERS = {
    drawn: { label: "as sampled", by: () => 0 },
    improved: { label: "most improved", by: (prompt) => -prompt.improved },
    longest: { label: "longest", by: (prompt) => -prompt.longest },
    lowest: { label: "lowest reward", by: (prompt) => prompt.reward },
    highest: { label: "highest reward", by: (prompt) => -prompt.reward },
  };
  const wanted = () => find("search").value.trim().toLowerCase();
  const about = (prompt) =>
    `mean reward ${short(prompt.reward)}` +
    (prompt.improved === undefined ? "" : `, ${signed(prompt.improved)} since its first step here`) +
    `, ${prompt.right} of ${prompt.candidates.length} right`;

  // Prompts as they were asked for; "most improved" leaves out those that came once.
  function chosen(prompts) {
    const text = wanted();
    const order = find("order").value;
    const has = (prompt) =>
      [[prompt.name], prompt.answer, prompt.prompt, ...prompt.candidates.flatMap(bodies)].some(
        (parts) => parts.some((part) => part.toLowerCase?.().includes(text)),
      );
    return prompts
      .filter(FILTERS[find("filter").value].keeps)
      .filter((prompt) => order !== "improved" || prompt.improved !== undefined)
      .filter((prompt) => !text || has(prompt))
      .sort((a, b) => ORDERS[order].by(a) - ORDERS[order].by(b));
  }

  function draw() {
    const step = everything[index];
    const all = chosen(step.prompts);
    find("where").textContent = `${step.label}, ${index + 1} of ${everything.length}`;
    find("prompts").replaceChildren(...all.map(card));
    find("prompts").dataset.hash = step.hash;
    key();
    const more = step.shown < step.completions
      ? `; ${step.shown} of ${counted(step.completions, "completion")} are in this page, all are in `
      : "; file ";
    const href = step.file.split("/").map(encodeURIComponent).join("/");
    const untraced = "; single tokens were not recorded here, so colours are of whole completions";
    find("said").replaceChildren(
      `${all.length} of ${counted(step.prompts.length, "prompt")}${more}`,
      element("a", { href }, step.file),
      find("colour").value && !step.traced ? untraced : "",
    );
  }

  function card(prompt) {
    const isOwn = !prompt.candidates.some((each) => each.turns); // an environment may ask another
    const shown = prompt.candidates.map((each) => candidate(each, prompt));
    const answered = prompt.answer[0] ? `, ${isOwn ? "reference" : "answer of the row"} ` : "";
    return element("div", { className: "prompt" },
      element("h3", { dir: "auto" }, joined(prompt.question)),
      meta(`${prompt.name}: ${about(prompt)}${answered}`, element("b", {}, joined(prompt.answer))),
      element("details", { open: wanted() !== "" }, element("summary", {}, "whole prompt"), pre(prompt.prompt)),
      element("div", { className: "candidates", tabIndex: 0, role: "group", ariaLabel: "candidates" }, ...shown),
    );
  }

  function candidate(found, prompt) {
    const rewards = Object.entries(found.rewards);
    const said = rewards.length > 1 ? rewards.map(([name, value]) => `${name} ${short(value)}`) : [];
    if (found.score !== total(found)) said.push(`score ${short(found.score)}`);
    if (found.advantage !== undefined) said.push(`advantage ${short(found.advantage)}`);
    if (found.selected !== undefined) said.push(found.selected ? "selected" : "not selected");
    if (found.finish_reason === "length") said.push("truncated");
    if (found.tokens !== undefined) said.push(counted(found.tokens, "token"));
    const [className, tick] = found.score >= 1 ? ["up", "✓"] : ["down", "✗"];
    const answer = element("b", { className }, `${tick} ${found.answer ? `${joined(found.answer)} ` : ""}`);
    const chip = element("b", { className: "chip" }, `reward ${short(total(found))}`);
    return element("div", { className: found.selected ? "candidate chosen" : "candidate" },
      meta(`${found.candidate + 1} `, answer, chip, ...said.map((each) => `, ${each}`)),
      found.advantage === undefined ? null : bar(found.advantage / (prompt.most || 1)),
      found.lost ? element("p", { className: "lost" }, `lost: ${joined(found.lost)}`) : null,
      coloured(found, prompt) || body(found),
    );
  }

  // An advantage: from the middle to the right where it is positive, else to the left.
  function bar(share) {
    const made = element("i", { className: share < 0 ? "negative" : "" });
    made.style.width = `${50 * Math.abs(share)}%`;
    made.style.marginLeft = `${50 + 50 * Math.min(0, share)}%`;
    return element("div", { className: "bar", ariaHidden: true }, made);
  }

  const body = (found) => (found.turns ? turns(found) : pre(found.completion));

  // An episode: what the model wrote, the calls in it, and what it was answered.
  function turns(found) {
    const made = element("div", { className: "turns" });
    const more = (n, noun, what) => n > 0 && made.append(meta(`${counted(n, noun)} ${what}`));
    found.turns.forEach((turn, i) => {
      const left = i === found.turns.length - 1 ? found.turns_left_out : 0;
      more(left, "turn", "left out");
      const facts = [`turn ${i + 1 + left}`];
      if (turn.reward) facts.push(`reward ${short(turn.reward)}`);
      if (turn.failed_calls) facts.push(counted(turn.failed_calls, "failed call"));
      made.append(element("h4", {}, facts.join(", ")), pre(turn.reply));
      for (const call of turn.tool_calls) {
        const code = element("code", {}, `${joined(call.name)} ${joined(call.arguments)}`);
        made.append(element("p", { className: "call" }, code, " ", element("b", {}, joined(call.error))));
      }
      more(turn.calls - turn.tool_calls.length, "call", "more");
      if (lengthOf(turn.observation)) {
        const said = Object.assign(pre(turn.observation), { className: "said" });
        made.append(element("h4", { className: "said" }, "observation"), said);
      }
    });
    return made;
  }

  // Texts are [text], or [beginning, characters left out, end].
  const joined = (parts) => (parts.length === 1 ? parts[0] : `${parts[0]}…${parts[2]}`);
  const LONG = 500; // characters of a text that may scroll

  function pre([begin, left, end = ""]) {
    const note = left ? element("i", {}, `\n${counted(left, "character")} left out, they are in the file\n`) : "";
    const made = element("pre", { dir: "auto" }, begin, note, end);
    if (begin.length > LONG) made.tabIndex = 0;
    return made;
  }

  // Colours ------------------------------------------------------------------------------------

  // Where each shade begins; what is below the first is white. Advantages are of their prompt's largest.
  const KEYS = {
    "": { label: "nothing", edges: [], said: "" },
    gaps: { label: "sampler gap", unit: 1e4, edges: [0.02, 0.05, 0.1, 0.3, 1], said: "|learner - sampler|, nats" },
    logprobs: { label: "log-probability", unit: 100, edges: [0.5, 1, 2, 3, 5], said: "-log-probability, nats" },
    advantages: { label: "advantage", edges: [-1, -0.5, 0, 0.5, 1], said: "advantage, of the largest" },
  };
  const tint = (colour, share) => `rgba(${colour},${(0.75 * Math.min(1, share)).toFixed(2)})`;
  const shade = (by, value) => by === "advantages"
    ? tint(value < 0 ? "200,50,60" : "43,138,87", Math.abs(value))
    : tint("184,50,128", KEYS[by].edges.filter((edge) => Math.abs(value) >= edge).length / 5);

  function key() {
    const by = find("colour").value;
    find("key").replaceChildren(KEYS[by].said, ...KEYS[by].edges.map((edge) => {
      const made = element("span", {}, by === "advantages" ? short(edge) : `from ${edge}`);
      made.style.backgroundColor = shade(by, edge);
      return made;
    }));
  }

  // The completion with its tokens, or all of it, coloured as was asked; null: nothing to colour by.
  function coloured(found, prompt) {
    const by = find("colour").value;
    const tokens = found.traced;
    if (by === "advantages" && found.advantage && !tokens?.advantages) {
      const made = body(found);
      const colour = shade(by, found.advantage / prompt.most);
      for (const each of made.tagName === "PRE" ? [made] : made.querySelectorAll("pre:not(.said)")) {
        each.style.backgroundImage = `linear-gradient(${colour},${colour})`;
      }
      return made;
    }
    const values = by && tokens?.[by];
    if (!values) return null;
    const unit = KEYS[by].unit || Math.max(1, ...values.map((value) => Math.abs(value || 0)));
    const made = element("pre", { dir: "auto", tabIndex: 0, role: "group" });
    made.ariaLabel = "tokens: left and right arrow read their numbers";
    tokens.pieces.forEach((piece, i) => {
      const span = element("span", { className: "t", title: "not sampled" }, piece);
      if (tokens.logprobs[i] === null) span.className = "t said";
      else {
        const said = [`log-probability ${(tokens.logprobs[i] / 100).toFixed(2)}`];
        if (tokens.gaps) said.push(`learner ${(tokens.gaps[i] / 1e4).toFixed(4)}`);
        if (tokens.advantages) said.push(`advantage ${(tokens.advantages[i] / 1000).toFixed(3)}`);
        span.style.backgroundColor = shade(by, values[i] / unit);
        span.title = said.join(", ");
      }
      made.append(span);
    });
    if (tokens.left_out) made.append(element("i", {}, `\n${counted(tokens.left_out, "token")} more`));
    return made;
  }

  // Controls -----------------------------------------------------------------------------------

  function select(wanted) {
    index = Math.min(Math.max(wanted, 0), everything.length - 1);
    find("slider").value = index;
    draw();
  }

  // "#step=12" and "#evaluation=v000010": from a chart, or typed.
  const place = (address) => everything.findIndex(({ hash }) => hash === address);
  function goTo(address) {
    if (place(address) < 0) return false;
    select(place(address));
    section.scrollIntoView();
    return true;
  }

  for (const [id, choices] of Object.entries({ filter: FILTERS, order: ORDERS, colour: KEYS })) {
    find(id).append(...Object.entries(choices).map(([value, { label }]) => new Option(label, value)));
    find(id).addEventListener("change", draw);
  }
  find("slider").max = everything.length - 1;
  find("slider").addEventListener("input", (event) => select(Number(event.target.value)));
  find("previous").addEventListener("click", () => select(index - 1));
  find("next").addEventListener("click", () => select(index + 1));
  find("search").addEventListener("input", draw);
  const tell = (token) => {
    document.querySelector(".told")?.classList.remove("told");
    if (token?.title) token.classList.add("told");
    find("token").textContent = token?.title ? `“${token.textContent}”: ${token.title}` : "";
  };
  find("prompts").addEventListener("click", ({ target }) => tell(target));
  find("prompts").addEventListener("keydown", (event) => {
    const [begin, end] = { ArrowLeft: ["last", "previous"], ArrowRight: ["first", "next"] }[event.key] || [];
    if (!end || !event.target.querySelector(".t")) return;
    const now = event.target.querySelector(".told");
    tell(now ? now[`${end}ElementSibling`] : event.target[`${begin}ElementChild`]);
    event.preventDefault();
  });
  window.addEventListener("hashchange", () => goTo(location.hash));
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link && link.hash === location.hash) goTo(link.hash); // no event of the hash's comes
  });
  const newest = (data.steps.length || everything.length) - 1;
  if (before) {
    CONTROLS.forEach((each, i) => (each.value = before.values[i] ?? each.value));
    select(place(before.hash) < 0 ? newest : place(before.hash));
    restore();
  } else if (!goTo(location.hash)) select(newest);
})();
