"""The commands with their own flags. What a command does is imported when it is called."""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from unslothrl.commands.flags import command
from unslothrl.config import toml_files
from unslothrl.config.offline_options import TABLES
from unslothrl.config.option import TASK
from unslothrl.config.values import RUN, read_value
from unslothrl.embedded import BASES
from unslothrl.errors import UserError

EVALUATED = (
    "model", "recipe", "reward", "reward_timeout", "system_prompt", "prompt_column",
    "answer_column", "max_prompt_tokens", "max_new_tokens", "eval_problems", "eval_temperature",
    "eval_top_p", "seed", "engine", "cluster", "number_of_actors", "ray_address", "kv_cache_mb",
    "max_num_seqs", "allow_unsandboxed_code",
)  # fmt: skip
SCORED = ("reward_timeout", "prompt_column", "answer_column", "allow_unsandboxed_code")
OF_DATA = ("adapter", "recipe", "seed", "assistant_only_loss")  # beside the data's own
USUAL = {"model": "default: the adapter's own", "max_new_tokens": "default: as in its run"}

ALL_COMMANDS: dict[str, click.Command] = {}  # by name, "plan sft" is one too


def add(name: str, function: Callable[..., Any], about: str | None, **more: Any) -> None:
    """`more`: see `flags.command`."""
    ALL_COMMANDS[name] = command(name, function, help=about, **more)


def takes(
    *own: click.Parameter, options: Sequence[str] = (), defaults: Mapping[str, str] = USUAL
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function a command with these parameters, and these options of a run."""

    def added(function: Callable[..., Any]) -> Callable[..., Any]:
        name, about = function.__name__.rstrip("_").replace("_", "-"), function.__doc__
        add(name, function, about, own=own, options=options, defaults=defaults)
        return function

    return added


def option(spelled: str, about: str, metavar: str | None = None, **more: Any) -> click.Option:
    """`spelled`: names with spaces between them."""
    return click.Option(spelled.split(), help=about, metavar=metavar, **more)


def argument(name: str, about: str, metavar: str, **more: Any) -> click.Argument:
    return click.Argument([name], help=about, metavar=metavar, **more)


JSON = option("--json", "Print one JSON object instead of text.", is_flag=True)
CARD = option("--card --gpu", "Assume these GPUs, by name or GB: 4090,12.", "GPUS")
SOURCE = argument("source", "Data set: hub id, file or folder, NAME@SPLIT[:1000].", "SOURCE")
OF_RUN = "Folder of a run or of an adapter; default: the newest run."
ADAPTER = (
    argument("run", OF_RUN, "[RUN]", required=False),
    option("--adapter", "The same as RUN.", "RUN"),
)
TEMPERATURE = option(
    "--temperature", "0: the likeliest token; default: as in its run.", "NUMBER",
    type=click.FloatRange(0, 2),
)  # fmt: skip


def train(**flags: Any) -> int:
    """Train a LoRA by reinforcement learning.

    What you set is kept. A default that does not fit the machine is changed, which is printed;
    without a GPU or a network a tiny base learns arithmetic, unless you name others.
    """
    from unslothrl.runs.resolve import resolve

    resolved = resolve(flags, fetches=True)
    from unslothrl.runs.rl import run

    return run(resolved)


STAGES = {
    "sft": "Train a LoRA on written answers (TRL's SFTTrainer).",
    "dpo": "Train a LoRA on pairs of a better and a worse answer (TRL's DPOTrainer).",
    "rm": "Train a reward model on such pairs (TRL's RewardTrainer).",
}


def stage(command: str, **flags: Any) -> int:
    from unslothrl.offline.resolve import resolve

    resolved = resolve(command, flags, fetches=True)
    from unslothrl.offline.run import run

    return run(resolved)


def plan(command: str, card: str | None, json: bool, **flags: Any) -> None:
    """Predict, before any download, whether a run fits and how long it takes.

    Takes a run's options, or a stage's; without any, it lists models that fit.
    """
    from unslothrl.commands.plan import forecast

    forecast(command_of(command, flags), flags, card, json)


def data(command: str, source: str, json: bool, **flags: Any) -> None:
    """Show how a data set is read: prompts, lengths, rows left out.

    `data sft`, `data dpo` and `data rm` show it as those commands read it.
    """
    from unslothrl.commands.data import describe

    if source in BASES and command == RUN.command and "recipe" not in flags:
        flags.setdefault("model", source)  # nothing of the hub's is needed
    describe(command_of(command, flags), {**flags, "dataset": source}, json)


def command_of(command: str, flags: Mapping[str, Any]) -> str:
    """The command that a recipe is for, in place of train; without one it stays."""
    return toml_files.command_of(flags.get("recipe")) if command == RUN.command else command


for of in (RUN, *TABLES.values()):
    name, end = of.command, "" if of is RUN else f" {of.command}"
    whole: dict[str, Any] = {"table": of, "options": tuple(of.options)}
    of_data = [
        each
        for each, entry in of.options.items()
        if each in OF_DATA or (entry.metadata["group"] == TASK and each != "dataset")
    ]
    function: Any = train if of is RUN else partial(stage, name)
    add(name, function, STAGES.get(name, train.__doc__), **whole)
    usual = {"learner": "default grpo"} if of is RUN else {}
    add(f"plan{end}", partial(plan, name), plan.__doc__, own=[CARD, JSON], defaults=usual, **whole)
    whole |= {"options": of_data}
    add(f"data{end}", partial(data, name), data.__doc__, own=[SOURCE, JSON], **whole)


@takes(options=("output_dir", "seed"), defaults={})
def demo(**flags: Any) -> int:
    """Watch a tiny model learn to subtract: a whole run, in a minute, without a GPU."""
    from unslothrl.commands.demo import demo as run

    return run(**flags)


@takes(CARD, JSON)
def recipes(card: str | None, json: bool) -> None:
    """List ready-made settings, and which fit this machine."""
    from unslothrl.commands.plan import list_recipes

    list_recipes(card, json)


@takes(
    argument("source", "File of rows as for training, plus a column `completion`.", "FILE"),
    option(
        "--reward", "NAME, NAME=WEIGHT or file.py:function; may be repeated; default: that of a "
        "run.", "NAME", multiple=True,
    ),
    options=SCORED,
)  # fmt: skip
def score(source: str, reward: Sequence[str], **flags: Any) -> None:
    """Score a file of completions with a reward, without a model."""
    from unslothrl.commands.score import score as run

    run(source, {"reward": read_value("reward", reward), **flags})


def named_adapter(run: str | None, adapter: str | None) -> str:
    """The one that is given, or the newest run that has one. UserError where two are given."""
    if run and adapter and run != adapter:
        raise UserError(f"{run} and --adapter {adapter} are two adapters: give one of them")
    return run or adapter or newest_run(has_adapter=True)


def newest_run(has_adapter: bool = False) -> str:
    """Of those in the folder that runs are written to. UserError where there is none."""
    from unslothrl.tracking.run_folder import is_control, newest

    found = newest(Path(str(RUN.options["output_dir"].default)), has_adapter)
    apart = ", controls apart" * (has_adapter and not is_control(found))
    print(f"{found}, the newest run{apart}", file=sys.stderr)
    return str(found)


@takes(
    argument(
        "words", "Folder of a run or of an adapter, by default the newest run, and the question; "
        "- reads it from stdin.", "[RUN] QUESTION", nargs=-1, required=True,
    ),
    ADAPTER[1],
    option("--base/--no-base with_base", "Also ask the base alone.", default=False),
    TEMPERATURE,
    options=("model", "max_new_tokens"),
)  # fmt: skip
def ask(words: Sequence[str], adapter: str | None, **flags: Any) -> None:
    """Ask a trained adapter one question."""
    from unslothrl.commands.chat import ask as answer

    run, *said = words if adapter is None and len(words) > 1 else [None, *words]
    answer(named_adapter(run, adapter), " ".join(map(str, said)), **flags)


@takes(
    *ADAPTER,
    option("--base/--no-base with_base", "Do not ask the base beside it.", default=True),
    TEMPERATURE,
    option("--json as_json", "Read conversations, print answers: JSON lines for programs.",
           is_flag=True),
    options=("model", "max_new_tokens"),
)  # fmt: skip
def chat(run: str | None, adapter: str | None, **flags: Any) -> None:
    """Chat with an adapter, its base beside it; lines of a pipe are questions of their own."""
    from unslothrl.commands.chat import chat as talk

    talk(named_adapter(run, adapter), **flags)


@takes(
    *ADAPTER,
    option(
        "--dataset", "Problems, also NAME=SOURCE or MATH-500; may be repeated; default: as in its "
        "run.", "SOURCE", multiple=True,
    ),
    option(
        "--n", "Completions per problem; default: as in its run.", "COUNT", type=click.IntRange(1)
    ),
    option("--base/--no-base", "Do not evaluate the base.", default=True),
    option("--output", "JSONL of every completion; default: evals/ in its run.", "FILE"),
    option("--suite", "Standard suites, by lm-eval's names: gsm8k,math500,ifeval.", "TASKS"),
    option("--suite_folder", "Their rows in TASK/*.jsonl; tasks of yours.", "FOLDER"),
    JSON,
    options=EVALUATED,
    defaults=dict.fromkeys(EVALUATED, "default: as in its run"),
)  # fmt: skip
def eval_(
    run: str | None, adapter: str | None, dataset: Sequence[str], n: int | None, base: bool,
    output: str | None, suite: str | None, suite_folder: str | None, json: bool, **flags: Any,
) -> None:  # fmt: skip
    """Compare an adapter with its base, with intervals: pass@k, majority vote."""
    chosen = named_adapter(run, adapter)
    if suite:
        from unslothrl.commands.suites import evaluate as benchmark

        flags |= {name: value for name, value in (("n", n), ("dataset", dataset)) if value}
        benchmark(chosen, suite, suite_folder, flags, base, output, json)
    else:
        from unslothrl.commands.eval import evaluate as figures

        flags |= {"eval_candidates": n} if n else {}
        figures(chosen, dataset, flags, with_base=base, output=output, as_json=json)


@takes(
    *ADAPTER,
    option("--output", "Folder to write, which must not exist yet.", "FOLDER"),
    option(
        "--to", "merged: a 16-bit model; adapter: for PEFT and vLLM; gguf: for llama.cpp.",
        type=click.Choice(["adapter", "merged", "gguf"]), default="merged", show_default=True,
    ),
    option(
        "--gguf-type", "Weights of a GGUF file.",
        type=click.Choice(["f16", "q8_0"]), default="f16", show_default=True,
    ),
    option("--push", "Also upload it to the hub.", "USER/NAME"),
    option("--private", "Create the repository as private.", is_flag=True),
    options=("model",),
)  # fmt: skip
def export(run: str | None, adapter: str | None, **flags: Any) -> None:
    """Export an adapter: merged, for PEFT and vLLM, as GGUF, to the hub."""
    from unslothrl.commands.export import export as write

    write(named_adapter(run, adapter), **flags)


@takes(
    argument("runs", "Run folders, or a folder of runs; default: the newest run.", "[RUN]...",
             nargs=-1),
    option("--output", "File for a comparison; default: beside the first run, named after the "
           "runs.", "FILE"),
    option("--proof", "Print what a run proves of itself; exit code 1 if a check fails.",
           is_flag=True),
)  # fmt: skip
def report(runs: Sequence[str], **flags: Any) -> int:
    """Write a run's report.html, a page that compares several runs, or list a folder's runs."""
    from unslothrl.commands.report import report as write

    return write(runs or [newest_run()], **flags)


@takes(
    option("--port", "Port on 127.0.0.1; default: any that is free.", "PORT", default=0,
           type=click.IntRange(0, 65535)),
    options=("output_dir",),
)  # fmt: skip
def ui(port: int, output_dir: str = str(RUN.options["output_dir"].default)) -> None:
    """Train, watch and try runs on a page in the browser.

    Prints an address on this machine. Whoever has it can do what you can do in a terminal: keep it
    to yourself. Closing the page, or ending this command, stops no run.
    """
    from unslothrl.ui.server import serve

    serve(Path(output_dir), port)


@takes(
    option(
        "--set kind", "The set of packages; default: what suits the machine.",
        type=click.Choice(["gpu", "cpu"]),
    ),
    option("--check", "Only show what is missing and what prevents it.", is_flag=True),
)  # fmt: skip
def setup(kind: str | None, check: bool) -> int:
    """Install Ray, vLLM and all else of the lock into this environment.

    It replaces what is there in another version. In a clone, `make setup` makes an environment.
    """
    package = Path(__file__).parents[1]
    scripts = [folder / "tools" / "setup_here.py" for folder in (package.parent, package)]
    command = [sys.executable, next(str(each) for each in scripts if each.is_file())]
    command += ["--set", kind] if kind else []
    return subprocess.call([*command, *(["--check"] if check else [])])


@takes(argument("model", "A folder, a hub id, or embedded.", "MODEL"), JSON, options=("engine",))
def check_model(model: str, json: bool, **flags: Any) -> int:
    """Try a model before a run: what would go wrong without a word.

    Its text model is quantised, given a LoRA, trained on, served and exported, in minutes: a line
    for each check. The exit code is 1 if one fails.
    """
    from unslothrl.system import variables
    from unslothrl.system.machine import Machine

    machine = Machine.detect()
    variables.apply(machine.cpus, bool(machine.gpus))  # before torch is imported
    from unslothrl.commands.check_model import check_model as run

    return run(model, as_json=json, **flags)


@takes(option("--self-test/--no-self-test", "Do not train a step.", default=True), JSON)
def doctor(self_test: bool, json: bool) -> int:
    """Check this machine for a run, and train one step.

    GPUs, versions, disks, limits, sandbox: a line for each, with what to do. The exit code is 1 if
    there is a problem. The step takes at most 30 s.
    """
    from unslothrl.commands.doctor import doctor as run

    return run(self_test, json)
