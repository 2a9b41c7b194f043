"""`unslothrl ask` and `chat`: questions to an adapter, and to its base beside it."""

import contextlib
import dataclasses
import importlib.util
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from unslothrl.commands.adapters import base_of, base_under, find
from unslothrl.config.hardware import half_precision
from unslothrl.data import prompts
from unslothrl.embedded import EMBEDDED
from unslothrl.errors import UserError
from unslothrl.records import Request, Sampling, seed_of
from unslothrl.system import variables
from unslothrl.system.machine import Machine
from unslothrl.text import for_terminal, printable
from unslothrl.tracking.terminal import can_redraw
from unslothrl.weights import adapter_use, base_model
from unslothrl.weights.adapter_use import MOST_NEW_TOKENS, USE_FILE, Use

ADAPTER, BASE = "adapter", "base"  # policies
Turns = Sequence[tuple[str, str]]  # (role, text)
HALF_A_CHARACTER = "\ufffd"
QUIT, NEW, HELP = ("/quit", "/exit"), "/new", "/help"
COMMANDS = (
    f"{NEW} clears the conversation, {QUIT[0]} or Ctrl-D ends it, Ctrl-C stops an answer, {HELP} "
    "shows this again"
)
SINGLE_TURNS = "the embedded base knows single questions only: every question starts anew"
PROMPT = "> "
STDIN = "-"
WIDE = 100  # columns from which answers are shown side by side
EMPTY = 'question is empty: ask something, e.g. "What is 347 + 285?"'


def ask(
    adapter: str,
    question: str,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    model: str | None = None,
    *,
    with_base: bool = False,
) -> None:
    """Prints the answer as it is generated; with `with_base` that of the base alone beside it. A
    question "-" is read from stdin. UserError for a folder that is no adapter."""
    if question == STDIN:
        question = sys.stdin.read()
    if not question.strip():
        raise UserError(EMPTY)
    answers = load(adapter, model, max_new_tokens, temperature)
    question = question.strip("\n") if question.endswith("\n") else question
    Conversation(answers, policies(with_base), sys.stdout, sys.stderr).say(question)


def chat(
    adapter: str,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    model: str | None = None,
    *,
    with_base: bool = True,
    whole: bool = False,
) -> None:
    """Answers what is typed, a conversation whose turns are remembered until /new; or what comes
    through a pipe: every line is a question of its own, or all of it is one if `whole`. UserError.

    Ctrl-C while an answer is generated ends the answer, in a pipe the program."""
    answers = load(adapter, model, max_new_tokens, temperature)
    conversation = Conversation(answers, policies(with_base), sys.stdout, sys.stderr)
    if sys.stdin.isatty() and not whole:
        conversation.interactively()
    else:
        conversation.through_a_pipe([sys.stdin.read()] if whole else sys.stdin, not whole)


def policies(with_base: bool) -> tuple[str, ...]:
    return (BASE, ADAPTER) if with_base else (ADAPTER,)


class Conversation:
    """With each policy: they get the same questions and remember their own answers."""

    def __init__(self, answers: "Answering", policies: tuple[str, ...], out: TextIO, err: TextIO):
        self.answers, self.policies, self.out, self.err = answers, policies, out, err
        self.is_single = answers.use.base == EMBEDDED
        self.turns: dict[str, list[tuple[str, str]]] = {}
        self.start_again()

    def start_again(self) -> None:
        self.turns = {policy: [] for policy in self.policies}

    def interactively(self) -> None:
        """With a prompt; returns at the end of the input."""
        print(f"{' and '.join(self.policies)}; {COMMANDS}", file=self.err)
        if self.is_single:
            print(SINGLE_TURNS, file=self.err)
        for line in typed():
            if line in QUIT:
                return
            if line == HELP:
                print(COMMANDS, file=self.err)
                continue
            if line == NEW or self.is_single:
                self.start_again()
            if line == NEW:
                print("a new conversation", file=self.err)
            elif line:
                try:
                    self.say(line)
                except KeyboardInterrupt:
                    print("\n(stopped; not remembered)", file=self.err)
                except UserError as error:
                    print(f"{error}, or {NEW}", file=self.err)

    def through_a_pipe(self, lines: Iterable[str], echoes: bool) -> None:
        is_first = True
        for line in lines:
            question = line.strip()
            if echoes and question in QUIT:
                return
            if question:
                self.out.write("" if is_first else "\n")
                self.out.write(f"{PROMPT}{question}\n" if echoes else "")
                is_first = False
                self.start_again()
                self.say(question)
        if is_first:
            raise UserError(EMPTY)

    def say(self, question: str) -> None:
        """Prints the answers and remembers them; nothing where one is interrupted."""
        asked = {policy: [*said, ("user", question)] for policy, said in self.turns.items()}
        with contextlib.ExitStack() as closing:
            generating = {policy: self.answers.generate(policy, t) for policy, t in asked.items()}
            for parts in generating.values():
                closing.callback(parts.close)
            for policy, answer in show(generating, self.out).items():
                asked[policy].append(("assistant", answer))
        self.turns = asked


def typed() -> Iterator[str]:
    """Lines from the terminal, with the arrow keys; ends at Ctrl-D and at Ctrl-C."""
    if importlib.util.find_spec("readline") is not None:
        import readline  # noqa: F401  # input() uses it once it is imported
    while True:
        try:
            yield input(PROMPT).strip()
        except (EOFError, KeyboardInterrupt):
            print(file=sys.stderr)
            return


def show(generating: Mapping[str, Iterator[str]], out: TextIO) -> dict[str, str]:
    """Prints answers, by the name of what generates them, as they grow. -> the answers"""
    console = Console(file=out, highlight=False)
    if len(generating) > 1 and can_redraw(console) and console.width >= WIDE:
        return in_columns(generating, console)
    answers: dict[str, str] = {}
    for name, parts in generating.items():
        out.write("\n" if answers else "")
        out.write(f"{name}:\n" if len(generating) > 1 else "")
        answers[name] = stream(parts, out)
        out.write("\n")
        out.flush()
    return answers


def stream(parts: Iterator[str], out: TextIO) -> str:
    """Writes what each part adds to the one before; on a terminal without control characters, which
    would move its cursor. -> the last part"""
    written = text = ""
    visible = partial(printable, kept="\n\t") if out.isatty() else str
    for text in parts:
        if text.startswith(written):
            out.write(visible(text[len(written) :]))
            out.flush()
            written = text
    if written != text:  # a tokenizer that writes otherwise as it goes on
        out.write("\n" + visible(text))
    return text


def in_columns(generating: Mapping[str, Iterator[str]], console: Console) -> dict[str, str]:
    """One after the other, each into its column."""
    answers = dict.fromkeys(generating, "")
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        for name, parts in generating.items():
            for answers[name] in parts:
                live.update(columns(answers))
    console.print(columns(answers))
    return answers


def columns(answers: Mapping[str, str]) -> Table:
    table = Table(box=None, expand=True, padding=(0, 2, 0, 0))
    for name in answers:
        table.add_column(name, ratio=1, header_style="bold", overflow="fold")
    table.add_row(*(Text(printable(answer, kept="\n\t")) for answer in answers.values()))
    return table


# What answers: an adapter and the base that it was trained over, loaded once


@dataclasses.dataclass
class Answering:
    """Generates answers under the adapter or under its base alone, as the adapter's run was
    evaluated where nothing else is set."""

    use: Use
    base: Path
    tokenizer: Any
    engine: Any  # a TransformersEngine over the backend
    backend: Any
    max_new_tokens: int | None = None
    temperature: float | None = None

    def generate(self, policy: str, turns: Turns) -> Generator[str, None, None]:
        """The answer to a conversation that ends with the user's turn, as far as it is there after
        each token; the last is all of it. Special tokens are left out. UserError where the context
        has no room for it."""
        text = prompts.render(self.tokenizer, turns, self.use.system_prompt)
        (ids,) = prompts.tokenise(self.tokenizer, [text])
        most = self.use.max_new_tokens if self.max_new_tokens is None else self.max_new_tokens
        context = base_model.read_config(self.base).get("max_position_embeddings")
        left = context - len(ids) if isinstance(context, int) else MOST_NEW_TOKENS
        if left < 1:
            raise UserError(
                f"question: it has {len(ids)} tokens with its prompt, the base's context "
                f"{context}: shorten it"
            )
        sampling = sampling_of(self.use, min(most, left), self.temperature)
        request = Request("answer", tuple(ids), seed_of(*(said for _, said in turns)), sampling)
        under = contextlib.nullcontext()
        with under if policy == ADAPTER else self.backend.model.disable_adapter():
            self.engine.add(request)
            try:
                while not (finished := self.engine.step()):
                    yield self._text(self.engine.drawn(request.id)).rstrip(HALF_A_CHARACTER)
            finally:
                self.engine.abort([request.id])
                self.engine.sleep()
        yield self._text(finished[0].completion.token_ids.tolist())

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=True))


def load(
    adapter: str,
    model: str | None = None,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    err: TextIO | None = None,
) -> Answering:
    """The adapter in a folder of its own, or the newest of a run's. UserError for what is none.

    What is None is as in the run that trained the adapter, by the file beside its weights. Where
    there is none, a line on `err` says what is assumed.
    """
    err = err or sys.stderr
    found = find(adapter)
    recorded = adapter_use.read(found.folder)
    name = base_of(found, model)
    use = dataclasses.replace(recorded or Use(base=name, system_prompt=""), base=name)
    machine = Machine.detect()
    variables.apply(machine.cpus, bool(machine.gpus))
    if err.isatty():
        print(for_terminal(f"loading {use.base} and {found.folder} ..."), file=err)
    base = base_under(found, use.base)
    if recorded is None:
        note = (
            f"adapter {found.folder}: no {USE_FILE} in it; assumed: base {use.base}, its own chat "
            f"template, no system prompt, top_p {use.top_p:g}"
        )
        print(for_terminal(note), file=err)
    tokenizer = base_model.load_tokenizer(base)
    if use.chat_template is not None:
        tokenizer.chat_template = use.chat_template
    engine, backend = load_engine(found.folder, base)
    return Answering(use, base, tokenizer, engine, backend, max_new_tokens, temperature)


def load_engine(adapter: Path, base: Path) -> tuple[Any, Any]:
    """-> (what generates with transformers, the backend that it generates with)"""
    import torch

    from unslothrl.backends import peft
    from unslothrl.engines.transformers import TransformersEngine

    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
    dtype = getattr(torch, half_precision(capability))
    backend = peft.load(base, dtype=dtype, rank=1, alpha=1, dropout=0.0, seed=0, start=adapter)
    return TransformersEngine(backend, base, max_num_seqs=1, has_own_base=False), backend


def sampling_of(use: Use, max_new_tokens: int, temperature: float | None) -> Sampling:
    """As the adapter's run was evaluated; temperature 0 takes the likeliest token."""
    if temperature == 0:
        return Sampling(1.0, 1.0, 1, max_new_tokens)
    used = use.temperature if temperature is None else temperature
    return Sampling(used, use.top_p, 0, max_new_tokens)
