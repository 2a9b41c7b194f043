"""The commands with their own flags. What a command does is imported when it is called."""

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
    metavar="GPU[,GPU...]",
    help="Assume these GPUs, by GB or name: 24, or 4090,12.",
)
SOURCE = typer.Argument(help="Data set: hub id, file or folder, NAME@SPLIT[:1000].")
RUN_FOLDER = typer.Argument(None, metavar="[RUN]", help="Run's folder; the same as --adapter.")
ADAPTER = typer.Option(
    None, "--adapter", help="Adapter folder, or a run's folder for its newest adapter."
)
TEMPERATURE = typer.Option(
    None,
    "--temperature",
    min=0,
    max=2,
    help="Sampling temperature, 0: the likeliest token; default: as in its run's evaluation.",
)


def train(**flags: Any) -> int:
    """Train a LoRA by reinforcement learning. `train` may be left out if there are flags.

    Flags override the recipe, and the recipe overrides the defaults. What you set is kept; a
    default that does not fit the machine is changed, and the change is printed. Without a GPU or
    without network the package's own tiny base and arithmetic problems are used, unless you name
    others. The numbers of the objective are --objective.NAME: see --help_all.
    """
    from unslothrl.runs.resolve import resolve

    resolved = resolve(flags, fetches=True)
    from unslothrl.runs.rl import run

    return run(resolved)


STAGES = {
    "sft": "Teach a LoRA to answer as written examples do (TRL's SFTTrainer).",
    "dpo": "Train a LoRA on pairs of a better and a worse answer (TRL's DPOTrainer).",
    "rm": "Train a reward model on pairs of a better and a worse answer (TRL's RewardTrainer).",
}


def stage(command: str, **flags: Any) -> int:
    from unslothrl.offline.resolve import resolve

    resolved = resolve(command, flags, fetches=True)
    from unslothrl.offline.run import run

    return run(resolved)


def plan(command: str, card: str = CARD, json: bool = JSON, **flags: Any) -> None:
    """Predict a run's memory by process and part, and print the flags that fit a GPU best.

    It takes the options of a run. Without any, it prints a table of models that fit the GPU.
    `plan sft`, `plan dpo` and `plan rm` take the options of those commands.
    """
    from unslothrl.commands.plan import forecast

    forecast(command_of(command, flags), flags, card, json)


def data(command: str, source: str = SOURCE, json: bool = JSON, **flags: Any) -> None:
    """Show how a data set is read: columns, prompts, lengths, rows that are not used.

    `data sft`, `data dpo` and `data rm` show it as those commands read it: what is learnt,
    lengths, rows that are left out.
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
    """List the recipes, and which fit this machine."""
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


def named_adapter(command: str, run: str | None, adapter: str | None, more: str = "") -> str:
    """The one that is given. UserError where none is, or two."""
    if run and adapter and run != adapter:
        raise UserError(f"{command}: {run} and --adapter {adapter} are two: give one of them")
    if not run and not adapter:
        raise UserError(
            f"{command}: no adapter is given: write `unslothrl {command} runs/NAME{more}`; "
            "`unslothrl report runs` lists the runs"
        )
    return str(run or adapter)


def ask(
    words: list[str] = typer.Argument(
        metavar="[RUN] QUESTION",
        help="Run's folder, unless --adapter is given, and the question; - reads that from stdin.",
    ),
    adapter: str = ADAPTER,
    base: bool = typer.Option(False, "--base/--no_base", help="Also ask the base alone."),
    temperature: float = TEMPERATURE,
    **flags: Any,
) -> None:
    """Ask a trained adapter a question and print its answer."""
    from unslothrl.commands.chat import ask as answer

    run, *said = words if adapter is None and len(words) > 1 else [None, *words]
    named = named_adapter("ask", run, adapter, ' "What is 347 + 285?"')
    answer(named, " ".join(map(str, said)), base, temperature, **flags)


def chat(
    run: str = RUN_FOLDER,
    adapter: str = ADAPTER,
    base: bool = typer.Option(True, "--base/--no_base", help="Also ask the base alone."),
    temperature: float = TEMPERATURE,
    **flags: Any,
) -> None:
    """Chat with an adapter and its base, or answer questions from a pipe, one a line."""
    from unslothrl.commands.chat import chat as talk

    named = named_adapter("chat", run, adapter)
    talk(named, base, temperature, **flags)


def evaluate(
    run: str = RUN_FOLDER,
    adapter: str = ADAPTER,
    dataset: list[str] = typer.Option(
        None,
        help="Evaluation problems: SOURCE, NAME=SOURCE or a known set such as MATH-500; may be "
        "repeated; default: as in its run.",
    ),
    n: int = typer.Option(
        None, "--n", min=1, help="Completions per problem; default: as in its run."
    ),
    base: bool = typer.Option(True, "--base/--no_base", help="Also evaluate the base alone."),
    output: str = typer.Option(
        None, help="JSONL file for every completion; default: evals/ in its run's folder."
    ),
    json: bool = JSON,
    **flags: Any,
) -> None:
    """Compare an adapter with its base: pass@k, majority vote, intervals, a paired test."""
    from unslothrl.commands.eval import evaluate as figures

    named = named_adapter("eval", run, adapter)
    flags |= {} if n is None else {"eval_candidates": n}
    figures(named, dataset or (), flags, with_base=base, output=output, as_json=json)


def export(
    run: str = RUN_FOLDER,
    adapter: str = ADAPTER,
    output: str = typer.Option(None, help="Folder to write, which must not exist yet."),
    to: Literal["adapter", "merged", "gguf"] = typer.Option(
        "merged",
        help="merged: one 16-bit model; adapter: for PEFT and vLLM, with its tokenizer; gguf: one "
        "file for llama.cpp and Ollama.",
    ),
    gguf_type: Literal["f16", "q8_0"] = typer.Option(
        "f16", "--gguf_type", help="Weights of a GGUF file."
    ),
    push: str = typer.Option(None, metavar="USER/NAME", help="Also upload it to the hub."),
    private: bool = typer.Option(False, "--private", help="Create the repository as private."),
    **flags: Any,
) -> None:
    """Export an adapter for other programs: merged, for PEFT and vLLM, as GGUF, to the hub."""
    from unslothrl.commands.export import export as write

    named = named_adapter("export", run, adapter)
    write(named, to, output, flags.get("model"), gguf_type, push, private)


def report(
    runs: list[str] = typer.Argument(help="Run folders, or a folder of runs."),
    output: str = typer.Option(
        None, help="File for a comparison; default: beside the first run, named after the runs."
    ),
) -> None:
    """Write a run's report.html or a page that compares several runs, or list a folder's runs.

    `report runs/A` writes the report, `report runs/A runs/B` a comparison, `report runs` a list.
    """
    from unslothrl.commands.report import report as write

    write(runs, output)


def doctor(
    self_test: bool = typer.Option(
        True, "--self_test/--no_self_test", help="Also train a step, at most 30 s."
    ),
    json: bool = JSON,
) -> int:
    """Check this machine: GPUs, versions, disks, limits, sandbox; train one step.

    One line for each check, with what to do. The exit code is 1 where there is a problem.
    """
    from unslothrl.commands.doctor import doctor as run

    return run(self_test, json)


def bundle(
    run: str = typer.Argument(help="A run's folder."),
    output: str = typer.Option(
        None, help="Archive to write, .tar.gz; default: <run>-bundle.tar.gz here."
    ),
) -> None:
    """Make an archive of a run for a bug report: without secrets, prompts and completions."""
    from unslothrl.commands.bundle import bundle as write

    write(run, output)
