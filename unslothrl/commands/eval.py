"""Evaluates an adapter beside its base: figures with their intervals, and every completion."""

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from unslothrl import cluster, rewards
from unslothrl.cluster.build import data_options
from unslothrl.commands.adapters import ADAPTER, BASE, Found, base_of, base_under, find
from unslothrl.config.options import Config
from unslothrl.config.toml_files import COMMAND, entries, read_toml
from unslothrl.config.values import RUN
from unslothrl.data import sources, tasks
from unslothrl.embedded import EMBEDDED
from unslothrl.errors import UserError
from unslothrl.files import expanded, is_file, is_folder, write_whole
from unslothrl.records import Group
from unslothrl.rewards import model as reward_model
from unslothrl.runs.resolve import resolve
from unslothrl.runs.rl import check_rewards
from unslothrl.system import variables
from unslothrl.system.machine import Machine
from unslothrl.text import for_terminal, plain
from unslothrl.tracking.rows import evaluation_rows
from unslothrl.tracking.run_folder import CONFIG, EVALS, json_line
from unslothrl.tracking.terminal import Terminal
from unslothrl.weights import base_model
from unslothrl.weights.adapter import CONFIG_FILE, WEIGHTS_FILE, Adapter

PROGRAM = "environment_python"
OF_CODE = ("reward", "learner", "environment", "tools", PROGRAM)  # options that may name code


def evaluate(
    adapter: str,
    datasets: Sequence[str],
    flags: Mapping[str, Any],
    *,
    with_base: bool = True,
    output: str | None = None,
    as_json: bool = False,
) -> None:
    """Prints the figures of an adapter on evaluation sets, by default those of its run, drawn as in
    its run; writes every completion to `output`, by default into its run's folder. UserError."""
    found = find(adapter)
    config, notes = config_of(found, datasets, flags)
    path = written_to(found, output, sources.eval_sources(datasets) if datasets else ())
    options = data_options(config)
    config = replace(config, adapter=None)  # nothing is trained
    machine = Machine.detect()
    variables.apply(machine.cpus, bool(machine.gpus), alone=config.cluster == "local")
    progress = Console(highlight=False, stderr=True) if as_json else None  # stdout is the JSON's
    with Terminal(progress) as view:
        view.stage(f"reading base {config.model}")
        cluster.import_first(config)
        base = base_under(found, config.model, view.stage)
        level = check_rewards(config)
        view.stage("reading the tokenizer")
        tokenizer = base_model.load_tokenizer(base)
        view.stage("reading the problems")
        evals, more = tasks.load_evals(options, tokenizer)
        from unslothrl.runs import evaluation

        policies: dict[str, Adapter | None] = {BASE: None} if with_base else {}
        sets = ", ".join(f"{name} ({len(of_set)} problems)" for name, of_set in evals.items())
        drawing = (
            f"base {config.model}, {config.engine}, {config.eval_candidates} completions per "
            f"problem at temperature {config.eval_temperature:g}, top_p {config.eval_top_p:g}"
        )
        view.header([f"{found.folder} on {sets}", drawing, *notes, *more])
        policies[ADAPTER] = read_adapter(found.folder)
        drawn = evaluation.draw(config, base, evals, policies, level, view)
    results = figures(config, drawn)
    if path is not None:
        rows = [row for of, sets in drawn.items() for row in evaluation_rows(sets, policy=of)]
        write = write_whole if is_file(path) or not path.exists() else Path.write_bytes  # a pipe
        write(path, b"".join(map(json_line, rows)))
    if as_json:
        said = {"adapter": str(found.folder), "sets": results}
        print(json.dumps(said, default=dataclasses.asdict))
        return
    lines = [line for name, result in results.items() for line in table(name, result)]
    written = [] if path is None else ["", f"completions: {path}"]
    print(for_terminal("\n".join([*lines, *written]), kept="\n\t"))


def config_of(
    found: Found, datasets: Sequence[str], flags: Mapping[str, Any]
) -> tuple[Config, tuple[str, ...]]:
    """-> (what is drawn and how, notes). Its `adapter` is the one whose system prompt problems
    without one get; None where another reward than the run's says what to ask for. UserError."""
    layers: dict[str, Any] = {}
    run = found.run
    options = {} if run is None else entries(run / CONFIG)
    if run is not None and options.get(COMMAND, RUN.command) == RUN.command:
        own = read_toml(run / CONFIG)
        check_code(own, run, flags)
        layers["recipe"] = str(run / CONFIG)
        if "reward" not in flags and (texts := own.get("reward")):  # only learners have a model
            layers["reward"] = [each for each in texts if not each.startswith(reward_model.PREFIX)]
            if not layers["reward"]:
                raise UserError(
                    "reward: this run was rewarded by a model alone: set --reward accuracy"
                )
    else:
        layers["model"] = base_of(found, flags.get("model"))
        if (use := found.use) is not None:
            layers |= {
                "system_prompt": use.system_prompt,
                "max_new_tokens": use.max_new_tokens,
                "eval_temperature": use.temperature,
                "eval_top_p": use.top_p,
            }
        if not datasets and options.get("dataset") != EMBEDDED:
            raise UserError(
                f"dataset is not set, and adapter {found.folder} is of no run of RL, which has "
                "problems with answers: set --dataset"
            )
        layers["dataset"] = EMBEDDED  # nothing is trained on
        layers["eval_dataset"] = (EMBEDDED,)
    if datasets:
        layers["eval_dataset"] = tuple(datasets)
    resolved = resolve({**layers, **flags, "adapter": str(found.folder), "eval_every": 1})
    notes = tuple(note for note in resolved.notes if note.split()[0] in flags)
    config, graded = with_reward(resolved.config, flags)
    if graded or "reward" in flags:
        config = replace(config, adapter=None)
    return config, (*notes, *graded)


def check_code(own: Mapping[str, Any], run: Path, flags: Mapping[str, Any]) -> None:
    """UserError where a run's own options name code in its folder, or by a path that depends on
    where one is, as no run writes it: whoever gets an adapter from elsewhere would run what came
    with it."""
    for name in [each for each in OF_CODE if each in own and each not in flags]:
        for text in own[name] if isinstance(own[name], tuple) else [own[name]]:
            for path in code_of(name, text or ""):
                # by its name, or by what the name leads to
                pairs = ((each(path), each(run)) for each in (os.path.abspath, os.path.realpath))
                is_within = any(Path(file).is_relative_to(folder) for file, folder in pairs)
                if is_within or not path.is_absolute():
                    raise UserError(
                        f"{name} {plain(str(path))}: code in the adapter's own folder, or by a "
                        f"relative path, is not run: read it, move it, and set --{name}"
                    )


def code_of(name: str, text: str) -> list[Path]:
    """Every file that a text such as file.py:function=0.5 may mean, or that of a program that is
    named by its path; a bare name is looked for on the system."""
    if name == PROGRAM:
        return [expanded(text)] if os.sep in text else []
    return [expanded(text[: found.end()]) for found in re.finditer(r"\.py(?=:|$)", text)]


def with_reward(config: Config, flags: Mapping[str, Any]) -> tuple[Config, tuple[str, ...]]:
    """-> (the config with a reward that can grade the named sets, a note where that is another)."""
    chosen, names = rewards.choose(config.reward), sources.eval_sources(config.eval_dataset)
    is_asked = bool(chosen) and "reward" not in flags
    reward = sources.reward_of(names, chosen[0].name) if is_asked else None
    if reward is None:
        return config, ()
    known = ", ".join(name for name in names if sources.name_of(name) is not None)
    note = f"reward {chosen[0].name} -> {reward}, which grades {known}: --reward sets another"
    return replace(config, reward=(reward,)), (note,)


def read_adapter(folder: Path) -> Adapter:
    version = int(number[0]) if (number := re.findall(r"^v(\d+)$", folder.name)) else 1
    weights = (folder / WEIGHTS_FILE).read_bytes()
    return Adapter.of(version, weights, (folder / CONFIG_FILE).read_text("utf-8"))


def figures(
    config: Config, drawn: Mapping[str, Mapping[str, list[Group]]]
) -> dict[str, dict[str, Any]]:
    """-> by set: candidates, problems, and each figure of each policy."""
    from unslothrl.runs.evaluation import compared, values_of
    from unslothrl.training.metrics import mean_length

    chosen = rewards.choose(config.reward)
    reward = chosen[0].reward if chosen else None
    results: dict[str, dict[str, Any]] = {}
    for name in next(iter(drawn.values())):
        groups = [of_policy[name] for of_policy in drawn.values()]
        values = [values_of(each, reward) for each in groups]
        results[name] = {
            "problems": len(groups[0]),
            "candidates": config.eval_candidates,
            "policies": list(drawn),
            "figures": {row: compared([each[row] for each in values]) for row in values[0]},
            "mean_length": [mean_length(each) for each in groups],
        }
    return results


def table(name: str, result: Mapping[str, Any]) -> list[str]:
    rows = [["", *result["policies"], "difference" if len(result["policies"]) > 1 else ""]]
    for figure, values in result["figures"].items():
        rows.append([figure, *map(str, values["estimates"]), str(values["difference"] or "")])
    rows.append(["mean length", *(f"{length:.0f} tokens" for length in result["mean_length"])])
    return [
        "",
        f"{name}: {result['problems']} problems, {result['candidates']} completions each; 95% "
        "intervals over problems",
        *(" ".join([f"{label:<15}", *(f"{cell:<23}" for cell in row)]) for label, *row in rows),
    ]


def written_to(found: Found, output: str | None, sets: Iterable[str]) -> Path | None:
    """The file that the completions are written to, named after `sets` if they are not its run's,
    in a folder that is made. UserError for an output that is there; OSError: before anything is
    generated."""
    if output is None and found.run is None:
        return None
    name = re.sub(r"[^\w.@-]", "_", "-".join([found.folder.name, *sets]))[:100]
    own = (found.run or Path()) / EVALS / f"{name}.jsonl"
    path = own if output is None else expanded(output)
    if output is not None and (is_folder(path) or (is_file(path) and path.stat().st_size)):
        raise UserError(f"output {plain(output)} exists already: remove it, or set another")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
