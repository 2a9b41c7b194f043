"""`unslothrl chat`: a conversation with an adapter, and with its base beside it."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from unslothrl.commands import answering, showing
from unslothrl.commands.answering import ADAPTER, BASE, Answering
from unslothrl.embedded import EMBEDDED
from unslothrl.errors import UserError

QUIT, NEW, HELP = ("/quit", "/exit"), "/new", "/help"
COMMANDS = (
    f"{NEW} clears the conversation, {QUIT[0]} or Ctrl-D ends it, Ctrl-C stops an answer, {HELP} "
    "says this again"
)
SINGLE_TURNS = "the embedded base knows single questions only: every question starts anew"
INTERRUPTED = 130  # exit code
PROMPT = "> "


def chat(
    adapter: str,
    *,
    with_base: bool = True,
    whole: bool = False,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    model: str | None = None,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Answers what is typed, a conversation whose turns are remembered until /new; or what comes
    through a pipe: every line is a question of its own, or all of it is one if `whole`.

    -> the exit code: 0 at the end of the input and after /quit or Ctrl-C at the prompt. Ctrl-C
    while an answer is drawn ends the answer, in a pipe the program. UserError."""
    out, err = out or sys.stdout, err or sys.stderr
    policies = (BASE, ADAPTER) if with_base else (ADAPTER,)
    try:
        answers = answering.load(adapter, model, max_new_tokens, temperature, err)
        talk = Talk(answers, policies, out, err)
        if sys.stdin.isatty() and not whole:
            talk.interactively()
        else:
            talk.through_a_pipe(whole)
    except KeyboardInterrupt:
        print(file=err)
        return INTERRUPTED
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the last flush
    return 0


class Talk:
    """A conversation with each policy: they get the same questions and remember their own
    answers."""

    def __init__(self, answers: Answering, policies: tuple[str, ...], out: TextIO, err: TextIO):
        self.answers, self.policies, self.out, self.err = answers, policies, out, err
        self.is_single = answers.use.base == EMBEDDED
        self.turns: dict[str, list[tuple[str, str]]] = {}
        self.start_again()

    def start_again(self) -> None:
        self.turns = {policy: [] for policy in self.policies}

    def interactively(self) -> None:
        """With a prompt; returns at the end of the input."""
        names = " and ".join(self.policies)
        print(f"{names}; {COMMANDS}", file=self.err)
        if self.is_single:
            print(SINGLE_TURNS, file=self.err)
        for line in typed():
            if line in QUIT:
                return
            if line == NEW:
                self.start_again()
                print("a new conversation", file=self.err)
            elif line == HELP:
                print(COMMANDS, file=self.err)
            elif line:
                if self.is_single:
                    self.start_again()
                try:
                    self.say(line)
                except KeyboardInterrupt:
                    print("\n(stopped; not remembered)", file=self.err)
                except UserError as error:
                    print(f"{error}, or {NEW}", file=self.err)

    def through_a_pipe(self, whole: bool) -> None:
        stdin = showing.lenient(sys.stdin)
        lines = [stdin.read()] if whole else stdin
        is_empty = True
        for line in lines:
            question = line.strip()
            if not whole and question in QUIT:
                return
            if question:
                if not is_empty:
                    self.out.write("\n")
                is_empty = False
                if not whole:
                    self.out.write(f"{PROMPT}{question}\n")
                self.start_again()
                self.say(question)
        if is_empty:
            raise UserError('question is empty: echo "What is 347 + 285?" | unslothrl chat ...')

    def say(self, question: str) -> None:
        """Prints the answers and remembers them; nothing where one is interrupted."""
        asked = {policy: [*said, ("user", question)] for policy, said in self.turns.items()}
        drawing = {policy: self.answers.draw(policy, turns) for policy, turns in asked.items()}
        with contextlib.ExitStack() as closing:
            for parts in drawing.values():
                closing.callback(parts.close)  # type: ignore[attr-defined]
            for policy, answer in showing.show(drawing, self.out).items():
                asked[policy].append(("assistant", answer))
        self.turns = asked


def typed() -> Iterator[str]:
    """Lines from the terminal, with the arrow keys; ends at Ctrl-D and at Ctrl-C."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # input() uses it once it is imported
    while True:
        try:
            yield input(PROMPT).strip()
        except (EOFError, KeyboardInterrupt):
            print(file=sys.stderr)
            return
        except UnicodeDecodeError:
            print("that is not UTF-8", file=sys.stderr)
