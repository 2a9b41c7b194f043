"""The command line: `unslothrl`, `python -m unslothrl` and `python train_distributed.py`.

Flags come from the table of options. Whatever is wrong with the input is one line on stderr and
exit code 2, before anything heavy is imported: a command's file is imported when it is called.
"""

import functools
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from unslothrl import __version__, stopping
from unslothrl.commands import completion, diagnosis, inspection, offline, streams
from unslothrl.commands.flags import finite, given, with_options
from unslothrl.commands.help import ALL, GroupedCommand, Program, is_all
from unslothrl.commands.messages import crash, one_line, unknown_command, usage_message
from unslothrl.errors import RunError, UserError

USAGE = 2  # exit code
FAILED = 1  # the exit code of a run that had to stop
INTERRUPTED = 130  # of a command that Ctrl-C or SIGTERM ended
UsageError: Any = typer.BadParameter.__bases__[0]  # click's, from wherever this typer takes click

DATASET = "--dataset"
OF_THE_PROGRAM = ("--version", "--help", "-h", *completion.FLAGS)  # flags that mean no run

app = typer.Typer(
    cls=Program,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={
        "token_normalize_func": lambda name: name.replace("-", "_"),
        "help_option_names": ["--help", "-h"],
    },
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code."""
    stopping.heed_as_first_process()
    streams.prepare()
    code = 0
    try:
        with streams.flushed():
            code = answer(list(sys.argv[1:] if arguments is None else arguments))
            return code
    except BrokenPipeError:  # `| head` has seen enough
        return code or FAILED
    except OSError as error:  # a full disk, a folder that may not be read
        return refuse(streams.reason(error), code or FAILED)
    except Exception as error:  # nobody foresaw it
        return refuse(crash(error), FAILED)


def answer(arguments: list[str]) -> int:
    """Runs a command. Flags without a command mean `train`; nothing at all prints the help. -> the
    exit code"""
    if completion.VARIABLE in os.environ:
        return completion.answer(arguments, parser().commands)
    arguments = inspection.joined(arguments) or ["--help"]
    for text in arguments:
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            return refuse(f"{text!a:.60} is not in UTF-8: see unslothrl --help")
    command = parser()
    first = arguments[0]
    if not first.startswith("-") and first not in command.commands:
        return refuse(unknown_command(first, tuple(completion.of_one_word(command.commands))))
    flag = completion.normal(first)
    if first.startswith("-") and flag not in OF_THE_PROGRAM:
        arguments.insert(0, "train")
    flags = [completion.normal(each.partition("=")[0]) for each in arguments]
    if flags.count(DATASET) > 1 and arguments[0] != "eval":  # the last would count alone
        return refuse(f"{DATASET} is given twice: put the files into a folder, and set it once")
    whole_help = any(map(is_all, arguments))
    if whole_help:
        arguments = [*(each for each in arguments if not is_all(each)), "--help"]
    try:
        if flag in completion.FLAGS:
            return completion.run(arguments)
        settings = {"standalone_mode": False, "obj": {ALL: whole_help}}
        return command.main(arguments, prog_name="unslothrl", **settings) or 0
    except UsageError as error:
        return refuse(usage_message(error, command.commands, arguments))
    except UserError as error:
        return refuse(str(error))
    except RunError as error:
        return refuse(str(error), FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED


@functools.cache
def parser() -> Any:
    """The commands and their flags."""
    return typer.main.get_command(app)


def refuse(message: str, code: int = USAGE) -> int:
    """Prints one line; what it quotes may come from a file, and does not steer the terminal."""
    print("unslothrl: " + one_line(message), file=sys.stderr)
    return code


@app.callback(
    invoke_without_command=True,
    epilog="Flags without a command mean `train`: unslothrl --learner grpo. `unslothrl COMMAND "
    "--help` lists a command's options.",
)
def program(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    install_completion: str = typer.Option(
        None, "--install_completion", metavar="[SHELL]", help=completion.INSTALL_HELP
    ),
    show_completion: str = typer.Option(
        None, "--show_completion", metavar="[SHELL]", help="Print the completion script."
    ),
) -> None:
    """Reinforcement learning for language models that starts on one consumer GPU."""
    if version:
        print(f"unslothrl {__version__}")


TRAIN_HELP = (
    "Train a LoRA by reinforcement learning. `train` may be left out if there are flags.\n\n"
    "Flags override the recipe, and the recipe overrides the defaults. What you set is kept; a "
    "default that does not fit the machine is changed, and the change is printed. Without a GPU or "
    "without network the package's own tiny base and arithmetic problems are used, unless you name "
    "others."
)


def train(**flags: str | bool | list[str] | None) -> int:
    from unslothrl.commands.train import train as run

    return run(given(flags))


def score(
    source: str = typer.Argument(help="File of rows as for training, plus a column `completion`."),
    reward: list[str] = typer.Option(
        help="NAME, NAME=WEIGHT or file.py:function; may be repeated."
    ),
    reward_timeout: float = typer.Option(
        5.0, min=0.01, max=3600, callback=finite, help="Seconds that one completion may take."
    ),
    prompt_column: str = typer.Option(None, help="Column of the problem; default: detected."),
    answer_column: str = typer.Option(None, help="Column of the gold answer."),
    allow_unsandboxed_code: bool = typer.Option(
        False,
        "--allow_unsandboxed_code",
        help="Run code with limits only, if it cannot be sandboxed.",
    ),
) -> int:
    """Score a file of completions with a reward, without a model."""
    from unslothrl.commands.score import score as run
    from unslothrl.data.formats import Columns

    run(
        source,
        reward,
        reward_timeout,
        columns=Columns(prompt_column, answer_column),
        allow_unsandboxed=allow_unsandboxed_code,
    )
    return 0


RUN_FOLDER = typer.Argument(None, metavar="[RUN]", help="Run's folder; the same as --adapter.")
ADAPTER = typer.Option(
    None, "--adapter", help="Adapter folder, or a run's folder for its newest adapter."
)


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
    max_new_tokens: int = typer.Option(
        None, min=1, max=2**20, help="Longest completion (tokens); default: as in its run."
    ),
    temperature: float = typer.Option(
        None,
        min=0,
        max=2,
        callback=finite,
        help="Sampling temperature, 0: the likeliest token; default: as in its run's evaluation.",
    ),
    model: str = typer.Option(
        None, help="Base model: hub id, folder, or embedded; default: the adapter's own."
    ),
) -> int:
    """Ask a trained adapter a question and print its answer."""
    from unslothrl.commands.ask import ask as answer

    run, *said = words if adapter is None and len(words) > 1 else [None, *words]
    named = named_adapter("ask", run, adapter, ' "What is 347 + 285?"')
    answer(named, " ".join(map(str, said)), max_new_tokens, temperature, model, with_base=base)
    return 0


def chat(
    run: str = RUN_FOLDER,
    adapter: str = ADAPTER,
    base: bool = typer.Option(True, "--base/--no_base", help="Also ask the base alone."),
    whole: bool = typer.Option(
        False, "--whole", help="Take all of stdin as one question instead of one per line."
    ),
    max_new_tokens: int = typer.Option(
        None, min=1, max=2**20, help="Longest answer (tokens); default: as in its run."
    ),
    temperature: float = typer.Option(
        None,
        min=0,
        max=2,
        callback=finite,
        help="Sampling temperature, 0: the likeliest token; default: as in its run's evaluation.",
    ),
    model: str = typer.Option(
        None, help="Base model: hub id, folder, or embedded; default: the adapter's own."
    ),
) -> int:
    """Chat with an adapter and its base, side by side, or answer questions from a pipe."""
    from unslothrl.commands.chat import chat as talk

    return talk(
        named_adapter("chat", run, adapter),
        with_base=base,
        whole=whole,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        model=model,
    )


EVAL_OPTIONS = (
    "model",
    "recipe",
    "reward",
    "reward_timeout",
    "system_prompt",
    "prompt_column",
    "answer_column",
    "max_prompt_tokens",
    "max_new_tokens",
    "eval_problems",
    "eval_temperature",
    "eval_top_p",
    "seed",
    "engine",
    "cluster",
    "number_of_actors",
    "ray_address",
    "kv_cache_mb",
    "max_num_seqs",
    "allow_unsandboxed_code",
)


AS_IN_RUN = "default: as in its run"


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
    json: bool = typer.Option(False, "--json", help="Print one JSON object instead of text."),
    **flags: str | bool | list[str] | None,
) -> int:
    """Compare an adapter with its base: pass@k, majority vote, intervals, a paired test."""
    from unslothrl.commands.eval import evaluate as figures

    chosen = given(flags) | ({} if n is None else {"eval_candidates": n})
    named = named_adapter("eval", run, adapter)
    figures(named, dataset or (), chosen, with_base=base, output=output, as_json=json)
    return 0


def export(
    run: str = RUN_FOLDER,
    adapter: str = ADAPTER,
    output: str = typer.Option(None, help="Folder to write, which must not exist yet."),
    to: str = typer.Option(
        "merged",
        metavar="NAME",
        help="merged: one 16-bit model; adapter: for PEFT and vLLM, with its tokenizer; gguf: one "
        "file for llama.cpp and Ollama.",
    ),
    gguf_type: str = typer.Option(
        "f16", "--gguf_type", metavar="NAME", help="Weights of a GGUF file: f16 or q8_0."
    ),
    push: str = typer.Option(None, metavar="USER/NAME", help="Also upload it to the hub."),
    private: bool = typer.Option(False, "--private", help="Create the repository as private."),
    model: str = typer.Option(
        None, help="Base model: hub id, folder, or embedded; default: the adapter's own."
    ),
) -> int:
    """Export an adapter for other programs: merged, for PEFT and vLLM, as GGUF, to the hub."""
    from unslothrl.commands.export import export as write
    from unslothrl.commands.export import interrupted

    try:
        write(named_adapter("export", run, adapter), to, output, model, gguf_type, push, private)
    except KeyboardInterrupt:
        return refuse(interrupted(output), INTERRUPTED)
    return 0


def report(
    runs: list[str] = typer.Argument(help="Run folders, or a folder of runs."),
    output: str = typer.Option(
        None,
        help="File for a comparison; default: beside the first run, named after the runs.",
    ),
) -> int:
    """Write a run's report.html or a page that compares several runs, or list a folder's runs.

    `report runs/A` writes the report, `report runs/A runs/B` a comparison, `report runs` a list.
    """
    from unslothrl.commands.report import report as write

    write(runs, output)
    return 0


def cluster(
    ray_address: str = typer.Option(
        None, "--ray_address", help="HOST:PORT or auto; default: RAY_ADDRESS, else this machine's."
    ),
    json: bool = typer.Option(False, "--json", help="Print one JSON object instead of text."),
) -> int:
    """Show a Ray cluster: nodes, cards, what runs on each, health, and the speed of its runs."""
    from unslothrl.commands.cluster import show

    show(ray_address, json)
    return 0


app.command(cls=GroupedCommand, help=TRAIN_HELP)(with_options(train))
app.command("eval", cls=GroupedCommand)(
    with_options(evaluate, EVAL_OPTIONS, defaults=dict.fromkeys(EVAL_OPTIONS, AS_IN_RUN))
)
app.command(cls=GroupedCommand)(with_options(inspection.plan, defaults={"learner": "default grpo"}))
app.command(cls=GroupedCommand)(with_options(inspection.data, inspection.DATA_OPTIONS))
for stage in (offline.sft, offline.dpo, offline.rm):
    app.command(cls=GroupedCommand)(offline.with_its_options(stage))
for name, stage in inspection.of_stages():
    app.command(name, cls=GroupedCommand, hidden=True)(stage)
for function in (score, ask, chat, export, inspection.recipes, report, cluster):
    app.command(cls=GroupedCommand)(function)
for diagnose in (diagnosis.doctor, diagnosis.bundle):
    app.command(cls=GroupedCommand)(diagnose)
