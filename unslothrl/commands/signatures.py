"""The commands with their own flags. What a command does is imported when it is called."""

from pathlib import Path
from typing import Any, Literal

import typer

from unslothrl.config.values import RUN, read_value
from unslothrl.embedded import EMBEDDED
from unslothrl.errors import UserError

JSON = typer.Option(False, "--json", help="Print one JSON object instead of text.")
CARD = typer.Option(
    None,
    "--card",
    "--gpu",
    metavar="GPUS",
    help="Assume these GPUs, by name or GB: 4090,12.",
)
SOURCE = typer.Argument(help="Data set: hub id, file or folder, NAME@SPLIT[:1000].")
RUN_FOLDER = typer.Argument(
    None, metavar="RUN", help="Folder of a run or of an adapter; default: the newest run."
)
ADAPTER = typer.Option(None, "--adapter", help="The same as RUN.")
TEMPERATURE = typer.Option(
    None,
    "--temperature",
    metavar="NUMBER",
    min=0,
    max=2,
    help="0: the likeliest token; default: as in its run.",
)


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


def plan(command: str, card: str = CARD, json: bool = JSON, **flags: Any) -> None:
    """Predict whether a run fits, and how long it takes, before any download.

    Takes a run's options, or a stage's; without any, it lists models that fit.
    """
    from unslothrl.commands.plan import forecast

    forecast(command_of(command, flags), flags, card, json)


def data(command: str, source: str = SOURCE, json: bool = JSON, **flags: Any) -> None:
    """Show how a data set is read: columns, prompts, lengths, rows left out.

    `data sft`, `data dpo` and `data rm` show it as those commands read it.
    """
    from unslothrl.commands.data import describe

    of = command_of(command, flags)
    if source == EMBEDDED and of == RUN.command and "recipe" not in flags:
        flags.setdefault("model", EMBEDDED)  # nothing of the hub's is needed
    describe(of, {**flags, "dataset": source}, json)


def command_of(command: str, flags: dict[str, Any]) -> str:
    """The command that a recipe is for, in place of train; without one it stays."""
    if command != RUN.command or "recipe" not in flags:
        return command
    from unslothrl.config.toml_files import command_of

    return command_of(flags["recipe"])


def recipes(card: str = CARD, json: bool = JSON) -> None:
    """List ready-made settings, and which fit this machine."""
    from unslothrl.commands.plan import list_recipes

    list_recipes(card, json)


def score(
    source: str = typer.Argument(help="File of rows as for training, plus a column `completion`."),
    reward: list[str] = typer.Option(
        help="NAME, NAME=WEIGHT or file.py:function; may be repeated."
    ),
    **flags: Any,
) -> None:
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
    import sys

    from unslothrl.tracking.run_folder import newest

    found = newest(Path(str(RUN.options["output_dir"].default)), has_adapter)
    print(f"{found}, the newest run", file=sys.stderr)
    return str(found)


def ask(
    words: list[str] = typer.Argument(
        metavar="[RUN] QUESTION",
        help="Folder of a run or of an adapter, by default the newest run, and the question; - "
        "reads it from stdin.",
    ),
    adapter: str = ADAPTER,
    base: bool = typer.Option(
        False, "--base/--no-base", help="Also ask the base alone.", show_default=False
    ),
    temperature: float = TEMPERATURE,
    **flags: Any,
) -> None:
    """Ask a trained adapter one question."""
    from unslothrl.commands.chat import ask as answer

    run, *said = words if adapter is None and len(words) > 1 else [None, *words]
    answer(named_adapter(run, adapter), " ".join(map(str, said)), base, temperature, **flags)


def chat(
    run: str = RUN_FOLDER,
    adapter: str = ADAPTER,
    base: bool = typer.Option(
        True, "--base/--no-base", help="Do not ask the base beside it.", show_default=False
    ),
    temperature: float = TEMPERATURE,
    **flags: Any,
) -> None:
    """Chat with an adapter, its base beside it; lines of a pipe are questions of their own."""
    from unslothrl.commands.chat import chat as talk

    talk(named_adapter(run, adapter), base, temperature, **flags)


def evaluate(
    run: str = RUN_FOLDER,
    adapter: str = ADAPTER,
    dataset: list[str] = typer.Option(
        None,
        metavar="SOURCE",
        help="Problems, also NAME=SOURCE or MATH-500; may be repeated; default: as in its run.",
    ),
    n: int = typer.Option(
        None, "--n", metavar="COUNT", min=1, help="Completions per problem; default: as in its run."
    ),
    base: bool = typer.Option(
        True, "--base/--no-base", help="Do not evaluate the base.", show_default=False
    ),
    output: str = typer.Option(
        None, metavar="FILE", help="JSONL of every completion; default: evals/ in its run."
    ),
    suite: str = typer.Option(
        None, metavar="TASKS", help="Standard suites, by lm-eval's names: gsm8k,math500,ifeval."
    ),
    suite_folder: str = typer.Option(
        None, "--suite_folder", metavar="FOLDER", help="Their rows in TASK/*.jsonl; tasks of yours."
    ),
    json: bool = JSON,
    **flags: Any,
) -> None:
    """Compare an adapter with its base, with intervals: pass@k, majority vote."""
    if suite:
        from unslothrl.commands.suites import evaluate as benchmark

        given = {"n": n, "dataset": dataset, **flags}
        given = {name: value for name, value in given.items() if value is not None}
        return benchmark(
            named_adapter(run, adapter), suite, suite_folder, given, base, output, json
        )
    from unslothrl.commands.eval import evaluate as figures

    flags |= {} if n is None else {"eval_candidates": n}
    figures(
        named_adapter(run, adapter),
        dataset or (),
        flags,
        with_base=base,
        output=output,
        as_json=json,
    )


def export(
    run: str = RUN_FOLDER,
    adapter: str = ADAPTER,
    output: str = typer.Option(
        None, metavar="FOLDER", help="Folder to write, which must not exist yet."
    ),
    to: Literal["adapter", "merged", "gguf"] = typer.Option(
        "merged",
        help="merged: a 16-bit model; adapter: for PEFT and vLLM; gguf: for llama.cpp.",
    ),
    gguf_type: Literal["f16", "q8_0"] = typer.Option(
        "f16", "--gguf-type", help="Weights of a GGUF file."
    ),
    push: str = typer.Option(None, metavar="USER/NAME", help="Also upload it to the hub."),
    private: bool = typer.Option(False, "--private", help="Create the repository as private."),
    **flags: Any,
) -> None:
    """Export an adapter: merged, for PEFT and vLLM, as GGUF, to the hub."""
    from unslothrl.commands.export import export as write

    write(named_adapter(run, adapter), to, output, flags.get("model"), gguf_type, push, private)


def report(
    runs: list[str] = typer.Argument(
        None, metavar="RUN", help="Run folders, or a folder of runs; default: the newest run."
    ),
    output: str = typer.Option(
        None,
        metavar="FILE",
        help="File for a comparison; default: beside the first run, named after the runs.",
    ),
    proof: bool = typer.Option(
        False, "--proof", help="Print what a run proves of itself; exit code 1 if a check fails."
    ),
) -> int:
    """Write a run's report.html, a page that compares several runs, or list a folder's runs."""
    from unslothrl.commands.report import prove
    from unslothrl.commands.report import report as write

    names = runs or [newest_run()]
    if proof:
        return prove(names)
    write(names, output)
    return 0


def doctor(
    self_test: bool = typer.Option(
        True, "--self-test/--no-self-test", help="Do not train a step.", show_default=False
    ),
    json: bool = JSON,
) -> int:
    """Check this machine: GPUs, versions, disks, limits, sandbox; train one step.

    One line for each check, with what to do. The exit code is 1 if there is a problem. The step
    takes at most 30 s.
    """
    from unslothrl.commands.doctor import doctor as run

    return run(self_test, json)


def bundle(
    run: str = typer.Argument(None, metavar="RUN", help="A run's folder; default: the newest run."),
    output: str = typer.Option(
        None, metavar="FILE", help="Archive to write; default: <run>-bundle.tar.gz here."
    ),
) -> None:
    """Make an archive of a run for a bug report: without secrets, prompts and completions."""
    from unslothrl.commands.bundle import bundle as write

    write(run or newest_run(), output)
