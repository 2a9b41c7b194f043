"""`unslothrl ask` and `chat`: questions to an adapter, and to its base beside it."""

import contextlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from unslothrl.commands import answering
from unslothrl.commands.answering import ADAPTER, BASE, Answering
from unslothrl.embedded import EMBEDDED
from unslothrl.errors import UserError
from unslothrl.text import printable
from unslothrl.tracking.terminal import can_redraw

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
    answers = answering.load(adapter, model, max_new_tokens, temperature)
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
    answers = answering.load(adapter, model, max_new_tokens, temperature)
    conversation = Conversation(answers, policies(with_base), sys.stdout, sys.stderr)
    if sys.stdin.isatty() and not whole:
        conversation.interactively()
    else:
        conversation.through_a_pipe([sys.stdin.read()] if whole else sys.stdin, not whole)


def policies(with_base: bool) -> tuple[str, ...]:
    return (BASE, ADAPTER) if with_base else (ADAPTER,)


class Conversation:
    """With each policy: they get the same questions and remember their own answers."""

    def __init__(self, answers: Answering, policies: tuple[str, ...], out: TextIO, err: TextIO):
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
