"use strict";
// Reads values out of the charts, and shows the rollouts that lie beside the page as scripts.
// Everything that a model or a data set wrote goes into the page as text, by textContent alone.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const find = (id) => document.getElementById(id);
  const HIDDEN =
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;

  // Text with every character to be seen; the same as document.py's.
  const visible = (text) =>
    text.replace(HIDDEN, (c) => {
      const code = c.charCodeAt(0);
      return code < 32
        ? String.fromCharCode(0x2400 + code)
        : `⟨${code.toString(16).padStart(4, "0")}⟩`;
    });

  function element(tag, properties, ...children) {
    const made = document.createElement(tag);
    Object.assign(made, properties);
    made.append(...children.filter((child) => child !== null));
    return made;
  }

  // A number in at most seven characters; the same as metrics.py's `short`.
  function short(value) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "-";
    const size = Math.abs(value);
    if (size >= 1e7) return value.toExponential(1);
    if (size >= 1000) return Math.round(value).toLocaleString("en-US");
    if (size >= 100) return value.toFixed(0);
    if (size >= 10) return value.toFixed(1);
    if (size >= 0.1 || value === 0) return value.toFixed(3);
    return size >= 1e-3 ? value.toFixed(4) : value.toExponential(1);
  }

  const number = (name) => Number(name.replace(/^\w+_/, ""));
  const address = (path) => path.split("/").map(encodeURIComponent).join("/");
  const counted = (n, word) => `${n.toLocaleString("en-US")} ${word}${n === 1 ? "" : "s"}`;

  // Charts -----------------------------------------------------------------------------------

  function chart(figure) {
    const { steps, values, bands, bars } = JSON.parse(figure.dataset.values);
    const plot = figure.querySelector(".plot");
    const labels = [...figure.querySelectorAll(".legend b")];
    const last = labels.map((label) => label.textContent);
    const counts = values.map((each) => each.every((v) => v === null || Number.isInteger(v)));
    const at = element("p", { className: "at" });
    const cross = document.createElementNS("http://www.w3.org/2000/svg", "path");
    cross.setAttribute("class", "cross");
    figure.querySelector(".legend").after(at);
    plot.querySelector("svg").append(cross);
    plot.tabIndex = 0;
    let chosen = -1;

    const place = (i) => {
      if (bars) return (i + 0.5) / steps.length;
      const span = steps[steps.length - 1] - steps[0];
      return span ? (steps[i] - steps[0]) / span : 0.5;
    };
    const nearest = (x) => {
      let best = 0;
      for (let i = 1; i < steps.length; i++) {
        if (Math.abs(place(i) - x) < Math.abs(place(best) - x)) best = i;
      }
      return best;
    };
    const choose = (i) => {
      if (i === chosen) return;
      chosen = i;
      const x = (100 * place(i)).toFixed(2);
      cross.setAttribute("d", `M${x} 0V100`);
      labels.forEach((label, curve) => {
        const band = bands && bands[curve] && bands[curve][i];
        const ends = band ? ` (${short(band[0])} to ${short(band[1])})` : "";
        const value = values[curve][i];
        const isCount = counts[curve] && value !== null;
        label.textContent = (isCount ? value.toLocaleString("en-US") : short(value)) + ends;
      });
      at.replaceChildren(`step ${steps[i]} `, ...links(steps[i]));
    };
    const leave = () => {
      chosen = -1;
      cross.removeAttribute("d");
      labels.forEach((label, curve) => (label.textContent = last[curve]));
    };
    const pointed = (event) => {
      const box = plot.getBoundingClientRect();
      choose(nearest((event.clientX - box.left) / box.width));
    };
    plot.addEventListener("pointermove", pointed);
    plot.addEventListener("pointerdown", pointed);
    plot.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && leave());
    plot.addEventListener("click", (event) => {
      const [first] = event.pointerType === "touch" ? [] : links(steps[chosen]);
      if (first) go(first.hash);
    });
    plot.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (by) {
        const from = chosen < 0 ? (by > 0 ? -1 : steps.length) : chosen;
        choose(Math.min(steps.length - 1, Math.max(0, from + by)));
        event.preventDefault();
      } else if (event.key === "Enter" && chosen >= 0) {
        const [first] = links(steps[chosen]);
        if (first) go(first.hash);
      }
    });
  }

  const go = (hash) => (location.hash === hash ? goTo(hash) : (location.hash = hash));

  // To the rollouts of a step, and to its evaluation where there is one.
  function links(step) {
    const found = [];
    if (data.steps && data.steps.length && step > 0) {
      const name = closest(data.steps, step);
      found.push(element("a", { href: `#step=${number(name)}` }, `rollouts of step ${number(name)}`));
    }
    const evaluation = (data.evals || []).find((name) => number(name) === step);
    if (evaluation) {
      const href = `#eval=${encodeURIComponent(evaluation.slice(5))}`;
      found.push(" ", element("a", { href }, "evaluation"));
    }
    return found.filter((each) => found.length > 1 || each !== " ");
  }

  const closest = (names, step) =>
    names.reduce((best, name) =>
      Math.abs(number(name) - step) < Math.abs(number(best) - step) ? name : best,
    );

  document.querySelectorAll("figure[data-values]").forEach(chart);
  const section = find("rollouts");
  if (!section) return;

  // Scripts of steps --------------------------------------------------------------------------

  const policy =
    window.trustedTypes &&
    window.trustedTypes.createPolicy("unslothrl-steps", {
      createScriptURL: (url) => {
        if (!/^report\/[\w.%~!'()*-]+\.js$/.test(url)) throw new TypeError("not a step's script");
        return url;
      },
    });
  const kept = new Map(); // name -> what its script gave, the last ones that were used
  const MOST_KEPT = 20;
  const LOADED_AT_ONCE = 8;
  const waiting = new Map();

  window.unslothrlShow = (name, value) => {
    const resolve = waiting.get(name);
    waiting.delete(name);
    if (resolve) resolve(value);
  };

  function load(name) {
    if (kept.has(name)) return Promise.resolve(kept.get(name));
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      const url = `${data.folder}/${encodeURIComponent(name)}.js`;
      const failed = () => {
        waiting.delete(name);
        script.remove();
        reject(new Error(`${url} is not beside this page: copy the run's whole folder`));
      };
      waiting.set(name, (value) => {
        kept.set(name, value);
        if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
        script.remove();
        resolve(value);
      });
      script.onerror = failed;
      script.onload = () => waiting.has(name) && failed();
      script.src = policy ? policy.createScriptURL(url) : url;
      document.head.append(script);
    });
  }

  // What is shown ------------------------------------------------------------------------------

  const AT_ONCE = 8; // prompts
  const MOST_HITS = 100;
  const kinds = { step: data.steps, eval: data.evals };
  const state = { kind: "step", index: 0, shown: null, limit: AT_ONCE, asked: 0 };
  const first = new Map(); // kind and prompt -> its mean reward when it was drawn first
  for (const [kind, names] of Object.entries(kinds)) {
    for (const name of names) {
      for (const [prompt, reward] of data.prompts[name] || []) {
        const key = `${kind} ${prompt}`;
        if (!first.has(key)) first.set(key, { name, reward });
      }
    }
  }
  const traced = new Set(data.traced);

  const total = (candidate) => candidate.rewards.reduce((sum, value) => sum + (value || 0), 0);
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / (values.length || 1);
  const whole = (text) => text.length === 1 ? text[0] : text[0] + text[2];
  const lengthOf = (text) => text.length === 1 ? text[0].length : text[0].length + text[1] + text[2].length;

  // Of an episode what was written and read in its turns.
  const bodies = (found) =>
    found.turns ? found.turns.flatMap((turn) => [turn.text, turn.said]) : [found.text];
  const length = (found) => bodies(found).reduce((sum, text) => sum + lengthOf(text), 0);

  // What filters and orders look at: as in the page's own list of prompts.
  function facts(prompt) {
    const candidates = prompt.candidates;
    return {
      name: prompt.name,
      reward: mean(candidates.map(total)),
      right: candidates.filter((each) => each.score >= 1).length,
      count: candidates.length,
      longest: Math.max(...candidates.map(length)),
      truncated: candidates.filter((each) => each.end === "length").length,
    };
  }
  const indexed = ([name, reward, right, count, longest, truncated]) => ({
    name, reward, right, count, longest, truncated,
  });

  const FILTERS = {
    all: () => true,
    wrong: (known) => known.right === 0,
    right: (known) => known.right === known.count,
    mixed: (known) => known.right > 0 && known.right < known.count,
    truncated: (known) => known.truncated > 0,
  };
  const ORDERS = {
    drawn: () => 0,
    improved: (known) => -(known.improved || 0),
    longest: (known) => -known.longest,
    lowest: (known) => known.reward,
    highest: (known) => -known.reward,
  };

  // Prompts with their facts, filtered and in order; "most improved" leaves out those drawn once.
  function chosen(found, name) {
    const keep = FILTERS[find("filter").value];
    const order = find("order").value;
    for (const { known } of found) {
      const before = first.get(`${state.kind} ${known.name}`);
      const again = before && before.name !== (known.script || name);
      known.improved = again ? known.reward - before.reward : undefined;
    }
    return found
      .filter(({ known }) => keep(known))
      .filter(({ known }) => order !== "improved" || known.improved !== undefined)
      .map((each, i) => [ORDERS[order](each.known), i, each])
      .sort((a, b) => a[0] - b[0] || a[1] - b[1])
      .map(([, , each]) => each);
  }

  function has(prompt, wanted) {
    const texts = [prompt.name, prompt.answer, whole(prompt.prompt)];
    return [...texts, ...prompt.candidates.flatMap(bodies).map(whole)].some((text) =>
      text.toLowerCase().includes(wanted),
    );
  }

  const wanted = () => find("search").value.trim().toLowerCase();
  const label = (name) =>
    name.startsWith("step_") || /^eval_\d+$/.test(name) ? `step ${number(name)}` : name.slice(5);

  async function show() {
    const names = kinds[state.kind];
    const name = names[state.index];
    const turn = ++state.asked;
    find("slider").value = state.index;
    find("prompts").dataset.name = "";
    find("where").textContent = `${label(name)}, ${state.index + 1} of ${names.length}`;
    try {
      const value = await load(name);
      if (turn !== state.asked) return; // another was chosen meanwhile
      state.shown = { name, value };
      state.limit = AT_ONCE;
      draw();
    } catch (error) {
      if (turn !== state.asked) return;
      state.shown = null;
      find("prompts").replaceChildren();
      find("more").hidden = true;
      find("said").textContent = error.message;
    }
  }

  function draw() {
    if (!state.shown) return;
    const { name, value } = state.shown;
    const text = wanted();
    const found = value.prompts.map((prompt) => ({ prompt, known: facts(prompt) }));
    const all = chosen(found, name).filter(({ prompt }) => !text || has(prompt, text));
    const part = all.slice(0, state.limit);
    find("prompts").replaceChildren(...part.map(({ prompt, known }) => card(prompt, known, text)));
    find("prompts").dataset.name = name;
    find("more").hidden = part.length === all.length;
    say(name, value, all.length);
  }

  function say(name, value, count) {
    const said = [`${count} of ${counted(value.prompts.length, "prompt")}`];
    if (value.shown < value.completions) {
      said.push(
        `${value.shown} of ${counted(value.completions, "completion")} are in this page, all are in `,
      );
    } else said.push("file ");
    const line = [said.join("; "), element("a", { href: address(value.file) }, value.file)];
    if (find("order").value === "improved" && !count) {
      line.push("; no prompt of this step was drawn before");
    }
    const colour = find("colour").value;
    if (colour && !traced.has(name)) {
      const near = data.traced.filter((each) => each.startsWith(state.kind));
      line.push("; single tokens were not recorded here, so colours are of whole completions");
      if (near.length) {
        const other = closest(near, number(name));
        line.push(", recorded next: ", element("a", { href: `#step=${number(other)}` }, label(other)));
      }
    }
    find("said").replaceChildren(...line);
  }

  function card(prompt, known, text) {
    const change =
      known.improved === undefined
        ? ""
        : `, ${known.improved >= 0 ? "+" : ""}${known.improved.toFixed(3)} since it was drawn first`;
    const about = `mean reward ${short(known.reward)}${change}, ${known.right} of ${known.count} right`;
    const isOwn = !prompt.candidates.some((each) => each.turns); // an environment may ask another
    const answered = isOwn ? "gold answer " : "answer of the row ";
    const largest = Math.max(1e-9, ...prompt.candidates.map((each) => Math.abs(each.advantage || 0)));
    return element(
      "div",
      { className: "prompt" },
      element("h3", {}, visible(prompt.name), " ", element("small", {}, about)),
      element(
        "details",
        { open: text !== "" },
        element("summary", {}, element("span", {}, "prompt")),
        pre(prompt.prompt, text),
      ),
      prompt.answer
        ? element("p", { className: "meta" }, answered, marked(prompt.answer, text))
        : null,
      element(
        "div",
        { className: "candidates" },
        ...prompt.candidates.map((each) => candidate(each, prompt.rewards, largest, text)),
      ),
    );
  }

  function candidate(found, rewards, largest, text) {
    const said = rewards.length > 1 ? rewards.map((name, i) => `${visible(name)} ${short(found.rewards[i])}`) : [];
    if (found.score !== total(found)) said.push(`score ${short(found.score)}`);
    if (found.advantage !== undefined) said.push(`advantage ${short(found.advantage)}`);
    if (found.selected !== undefined) said.push(found.selected ? "selected" : "not selected");
    if (found.end === "length") said.push("truncated");
    if (found.length !== undefined) said.push(counted(found.length, "token"));
    return element(
      "div",
      { className: found.selected ? "candidate chosen" : "candidate" },
      element(
        "p",
        { className: "meta" },
        element("b", {}, `${found.number}: reward ${short(total(found))}`),
        said.length ? `, ${said.join(", ")}` : "",
      ),
      found.lost === undefined
        ? null
        : element("p", { className: "lost" }, `lost: ${visible(found.lost)}`),
      coloured(found, largest) || body(found, text),
    );
  }

  const body = (found, text) => (found.turns ? turns(found, text) : pre(found.text, text));

  // An episode: what the model wrote, the calls in it, and what it was answered.
  function turns(found, text) {
    const made = element("div", { className: "turns" });
    found.turns.forEach((turn, i) => {
      const isLast = i === found.turns.length - 1;
      if (isLast && found.turns_left_out) {
        made.append(element("p", { className: "meta" }, `${counted(found.turns_left_out, "turn")} left out`));
      }
      const place = i + 1 + (isLast ? found.turns_left_out || 0 : 0);
      const facts = [`turn ${place}`];
      if (turn.reward) facts.push(`reward ${short(turn.reward)}`);
      if (turn.failed) facts.push(counted(turn.failed, "failed call"));
      made.append(element("h4", {}, facts.join(", ")), pre(turn.text, text));
      for (const [name, given, error] of turn.calls || []) {
        const code = element("code", {}, marked(cut(name), text), " ", marked(cut(given), text));
        made.append(element("p", { className: "call" }, code, " ", element("b", {}, visible(cut(error)))));
      }
      if (turn.calls_left_out) {
        made.append(element("p", { className: "meta" }, `${counted(turn.calls_left_out, "call")} more`));
      }
      if (lengthOf(turn.said)) {
        const said = pre(turn.said, text);
        said.className = "said";
        made.append(element("h4", { className: "said" }, "observation"), said);
      }
    });
    return made;
  }

  const cut = (parts) => (parts.length === 1 ? parts[0] : `${parts[0]}…${parts[2]}`);

  // A text of the page's own kind: [text], or [beginning, characters left out, end].
  function pre(parts, text) {
    const made = element("pre", { dir: "auto" }, marked(parts[0], text));
    if (parts.length > 1) {
      const left = counted(parts[1], "character");
      made.append(element("i", {}, `\n${left} left out, they are in the file\n`), marked(parts[2], text));
    }
    return made;
  }

  // A text in which what was searched for is marked.
  function marked(text, sought) {
    const made = document.createDocumentFragment();
    const lower = sought ? text.toLowerCase() : "";
    let from = 0;
    if (lower.length === text.length && sought) {
      for (let at; (at = lower.indexOf(sought, from)) >= 0; from = at + sought.length) {
        made.append(visible(text.slice(from, at)));
        made.append(element("mark", {}, visible(text.slice(at, at + sought.length))));
      }
    }
    made.append(visible(text.slice(from)));
    return made;
  }

  // Colours ------------------------------------------------------------------------------------

  const WARM = "217,115,13";
  const GOOD = "43,138,87";
  const BAD = "200,50,60";
  const tint = (colour, share) => `rgba(${colour},${(0.75 * Math.min(1, Math.max(0, share))).toFixed(2)})`;

  // The completion with its tokens, or all of it, coloured as was asked; null: nothing to colour by.
  function coloured(found, largest) {
    const by = find("colour").value;
    const tokens = found.tokens;
    if (!by) return null;
    const signed = (value, most) => tint(value < 0 ? BAD : GOOD, Math.abs(value) / most);
    if (by === "advantage" && !(tokens && tokens.advantages)) {
      if (!found.advantage) return null;
      const made = body(found, "");
      const colour = signed(found.advantage, largest);
      for (const each of made.tagName === "PRE" ? [made] : made.querySelectorAll("pre:not(.said)")) {
        each.style.backgroundImage = `linear-gradient(${colour},${colour})`;
      }
      return made;
    }
    if (!tokens || (by === "gap" && !tokens.gaps)) return null;
    const most = tokens.advantages ? Math.max(1, ...tokens.advantages.map((v) => Math.abs(v || 0))) : 1;
    const made = element("pre", { dir: "auto" });
    tokens.pieces.forEach((piece, i) => {
      const gap = tokens.gaps && tokens.gaps[i];
      const span = element("span", { className: "t" }, visible(piece));
      if (tokens.logprobs[i] === null) {
        span.title = "not sampled";
        span.className = "t said";
      } else {
        if (by === "gap") span.style.backgroundColor = tint(WARM, (Math.log10(Math.abs(gap) / 1e4 + 1e-9) + 3) / 3);
        else if (by === "logprob") span.style.backgroundColor = tint(WARM, -tokens.logprobs[i] / 500);
        else span.style.backgroundColor = signed(tokens.advantages[i], most);
        const said = [`log-probability ${(tokens.logprobs[i] / 100).toFixed(2)}`];
        if (tokens.gaps) said.push(`learner ${gap < 0 ? "−" : "+"}${(Math.abs(gap) / 1e4).toFixed(4)}`);
        if (tokens.advantages) said.push(`advantage ${(tokens.advantages[i] / 1000).toFixed(3)}`);
        span.title = said.join(", ");
      }
      made.append(span);
    });
    if (tokens.left_out) made.append(element("i", {}, `\n${counted(tokens.left_out, "token")} more`));
    return made;
  }

  // Over all steps -----------------------------------------------------------------------------

  async function everywhere() {
    const turn = ++state.asked;
    const text = wanted();
    const names = kinds[state.kind];
    const hits = [];
    if (text) {
      for (let i = 0; i < names.length; i += LOADED_AT_ONCE) {
        find("said").textContent = `searching, ${i} of ${names.length}`;
        const part = names.slice(i, i + LOADED_AT_ONCE);
        const values = await Promise.all(part.map((name) => load(name).catch(() => null)));
        if (turn !== state.asked) return;
        for (const [at, value] of values.entries()) {
          for (const prompt of value ? value.prompts : []) {
            if (has(prompt, text)) hits.push({ known: { ...facts(prompt), script: part[at] } });
          }
        }
      }
    } else {
      for (const name of names) {
        for (const each of data.prompts[name] || []) {
          hits.push({ known: { ...indexed(each), script: name } });
        }
      }
    }
    const found = chosen(hits, "");
    find("said").textContent =
      `${counted(found.length, "prompt")} in all steps` +
      (found.length > MOST_HITS ? `, the first ${MOST_HITS}` : "");
    find("hits").replaceChildren(...found.slice(0, MOST_HITS).map(({ known }) => hit(known)));
    find("prompts").replaceChildren();
    find("more").hidden = true;
  }

  function hit(known) {
    const at = `#${state.kind}=${encodeURIComponent(known.script.replace(/^\w+?_/, ""))}`;
    const change =
      known.improved === undefined ? "" : `, ${known.improved >= 0 ? "+" : ""}${known.improved.toFixed(3)}`;
    return element(
      "li",
      {},
      element("a", { href: at }, `${label(known.script)}, ${visible(known.name)}`),
      ` mean reward ${short(known.reward)}${change}, ${known.right} of ${known.count} right`,
    );
  }

  // Controls -----------------------------------------------------------------------------------

  function select(kind, index) {
    state.kind = kind;
    state.index = Math.min(Math.max(index, 0), kinds[kind].length - 1);
    find("kind").value = kind;
    find("slider").max = kinds[kind].length - 1;
    find("everywhere").checked = false;
    find("hits").replaceChildren();
    return show();
  }

  function again() {
    state.limit = AT_ONCE;
    if (find("everywhere").checked) return everywhere();
    find("hits").replaceChildren();
    return draw();
  }

  function decoded(text) {
    try {
      return decodeURIComponent(text);
    } catch {
      return text; // typed, with a % of its own
    }
  }

  // "#step=12" and "#eval=000010": from a chart, or typed.
  function goTo(hash) {
    const [, kind, which] = /^#(step|eval)=(.+)$/.exec(hash) || [];
    if (!kind || !kinds[kind].length) return false;
    const exact = kinds[kind].indexOf(`${kind}_${decoded(which)}`);
    const near = kinds[kind].indexOf(closest(kinds[kind], Number(which)));
    select(kind, exact >= 0 ? exact : near);
    section.scrollIntoView();
    return true;
  }

  const NAMES = { step: "training steps", eval: "evaluations" };
  for (const kind of ["step", "eval"]) {
    if (kinds[kind].length) find("kind").append(element("option", { value: kind }, NAMES[kind]));
  }
  find("kind").addEventListener("change", (event) => select(event.target.value, 0));
  find("slider").addEventListener("input", (event) => select(state.kind, Number(event.target.value)));
  find("previous").addEventListener("click", () => select(state.kind, state.index - 1));
  find("next").addEventListener("click", () => select(state.kind, state.index + 1));
  for (const id of ["filter", "order", "colour", "everywhere"]) {
    find(id).addEventListener("change", again);
  }
  let typing = 0;
  find("search").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(again, 150);
  });
  find("everywhere").addEventListener("change", (event) => {
    if (!event.target.checked && !state.shown) show();
  });
  find("more").addEventListener("click", () => {
    state.limit += AT_ONCE;
    draw();
  });
  find("prompts").addEventListener("click", (event) => {
    const title = event.target.title;
    find("token").hidden = !title;
    find("token").textContent = title ? `“${event.target.textContent}”: ${title}` : "";
  });
  window.addEventListener("hashchange", () => goTo(location.hash));
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link && link.hash === location.hash) goTo(link.hash); // no event of the hash's comes
  });
  section.hidden = false;
  if (!goTo(location.hash)) {
    const kind = kinds.step.length ? "step" : "eval";
    select(kind, kinds[kind].length - 1);
  }
})();
