"""`unslothrl ask` and `chat`: questions to an adapter, and to its base beside it."""

import contextlib
import dataclasses
import importlib.util
import json
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from unslothrl.commands.adapters import ADAPTER, BASE, find, half_here, source_of
from unslothrl.data import rendering
from unslothrl.embedded import BASES
from unslothrl.errors import UserError
from unslothrl.records import Request, Sampling, seed_of
from unslothrl.text import for_terminal, printable
from unslothrl.weights import base_model
from unslothrl.weights.adapter_use import MOST_NEW_TOKENS, USE_FILE, Use

Turns = Sequence[tuple[str, str]]  # (role, text)
HALF_A_CHARACTER = "\ufffd"
MARK = "\ufeff"  # Windows begins files with it
QUIT, NEW = "/quit", "/new"
COMMANDS = f"{NEW} clears the conversation, {QUIT} or Ctrl-D ends it, Ctrl-C stops an answer"
SINGLE_TURNS = "the embedded base knows single questions only: every question starts anew"
PROMPT = "> "


def ask(
    adapter: str, question: str, with_base: bool, temperature: float | None, **options: Any
) -> None:
    """Prints the answer as it is generated; with `with_base` that of the base before it. A question
    "-" is read from stdin. `options`: see `load`. UserError for a folder that is no adapter."""
    if question == "-":
        question = sys.stdin.read().removeprefix(MARK)
    if not question.strip():
        raise UserError('question is empty: ask something, e.g. "What is 347 + 285?"')
    conversation = Conversation(load(adapter, temperature, **options), with_base)
    conversation.say(question.removesuffix("\n"))


def chat(
    adapter: str, with_base: bool, temperature: float | None, as_json: bool = False, **options: Any
) -> None:
    """Answers what is typed, a conversation whose turns are remembered until /new; or what comes
    through a pipe, where every line is a question of its own; with `as_json` see `answer_lines`.
    UserError.

    Ctrl-C while an answer is generated ends the answer, in a pipe the program."""
    answers = load(adapter, temperature, **options)
    if as_json:
        return answer_lines(answers, sys.stdin)
    conversation = Conversation(answers, with_base)
    is_typed = sys.stdin.isatty()
    conversation.answer_all(typed() if is_typed else sys.stdin, is_typed)


def answer_lines(answers: "Answering", lines: Iterable[str]) -> None:
    """Continues conversations, for programs. Each line is an object, policy -> its turns so far,
    [[role, text], ...], the last the user's. For each there are lines {"policy": ..., "text": ...}
    with an answer as far as it is there, then {"done": true}, with "error" where one cannot be
    answered."""
    for line in lines:
        said: dict[str, Any] = {"done": True}
        try:
            for policy, turns in json.loads(line).items():
                known = turns[-1:] if answers.use.base in BASES else turns
                for text in answers.generate(policy, known):
                    print(json.dumps({"policy": policy, "text": text}), flush=True)
        except UserError as error:
            said["error"] = str(error)
        print(json.dumps(said), flush=True)


class Conversation:
    """With each policy: they get the same questions and remember their own answers."""

    def __init__(self, answers: "Answering", with_base: bool):
        self.answers, self.policies = answers, (BASE, ADAPTER) if with_base else (ADAPTER,)
        self.is_single = answers.use.base in BASES
        self.turns: dict[str, list[tuple[str, str]]] = {}
        self.start_again()

    def start_again(self) -> None:
        self.turns = {policy: [] for policy in self.policies}

    def answer_all(self, lines: Iterable[str], is_typed: bool) -> None:
        """Until the input ends or has /quit."""
        if is_typed:
            said = [" and ".join(self.policies), COMMANDS, *[SINGLE_TURNS] * self.is_single]
            print("; ".join(said), file=sys.stderr)
        for line in filter(None, (each.removeprefix(MARK).strip() for each in lines)):
            if line == QUIT:
                return
            if line == NEW or self.is_single or not is_typed:
                self.start_again()
            if line == NEW:
                print("a new conversation", file=sys.stderr)
                continue
            if not is_typed:
                print("\n", PROMPT, line, sep="")
            try:
                self.say(line)
            except (KeyboardInterrupt, UserError) as error:
                if not is_typed:
                    raise
                print(f"\n({str(error) or 'stopped'}; not remembered)", file=sys.stderr)

    def say(self, question: str) -> None:
        """Prints the answers and remembers them; nothing where one is interrupted."""
        asked = {policy: [*said, ("user", question)] for policy, said in self.turns.items()}
        for policy, turns in asked.items():
            if len(asked) > 1:
                print("" if policy == self.policies[0] else "\n", policy, ":", sep="")
            with contextlib.closing(self.answers.generate(policy, turns)) as parts:
                turns.append(("assistant", stream(parts)))
        self.turns = asked


def typed() -> Iterator[str]:
    """Lines from the terminal, with the arrow keys; ends at Ctrl-D and at Ctrl-C."""
    if importlib.util.find_spec("readline") is not None:
        import readline  # noqa: F401  # input() uses it once it is imported
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            yield input(PROMPT)
    print(file=sys.stderr)


def stream(parts: Iterator[str]) -> str:
    """Writes what each part adds, on a terminal without control characters. -> the last part"""
    text = ""
    visible = partial(printable, kept="\n\t") if sys.stdout.isatty() else str
    for part in parts:
        print(visible(part[len(text) :]), end="", flush=True)
        text = part
    print()
    return text


# What answers: an adapter and the base that it was trained over, loaded once


@dataclasses.dataclass
class Answering:
    """Generates answers under the adapter or under its base alone."""

    use: Use  # its lengths and sampling are those of the answers
    base: Path
    tokenizer: Any
    engine: Any  # a TransformersEngine over the backend
    backend: Any

    def generate(self, policy: str, turns: Turns) -> Generator[str, None, None]:
        """The answer to a conversation that ends with the user's turn, as far as it is there after
        each token; the last is all of it. Special tokens are left out. UserError where the context
        has no room for it."""
        text = rendering.render(self.tokenizer, turns, self.use.system_prompt)
        (ids,) = rendering.tokenise(self.tokenizer, [text])
        context = base_model.read_config(self.base).get("max_position_embeddings")
        left = context - len(ids) if isinstance(context, int) else MOST_NEW_TOKENS
        if left < 1:
            raise UserError(
                f"question: it has {len(ids)} tokens with its prompt, the base's context "
                f"{context}: shorten it"
            )
        sampling = sampling_of(self.use, min(self.use.max_new_tokens, left))
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
    adapter: str, temperature: float | None, model: str | None = None, **lengths: Any
) -> Answering:
    """The adapter in a folder of its own, or the newest of a run's. UserError for what is none.

    What is not given is as in the run that trained the adapter, by the file beside its weights.
    Where there is none, a line on stderr says what is assumed. `lengths`: max_new_tokens, or none.
    """
    found = find(adapter)
    if sys.stderr.isatty():
        print(for_terminal(f"loading {found.folder} ..."), file=sys.stderr)
    source = source_of(found, model)
    use = source.use or Use(base=source.name, system_prompt="")
    if source.use is None:
        note = (
            f"adapter {found.folder}: no {USE_FILE} in it; assumed: base {use.base}, its own chat "
            f"template, no system prompt, top_p {use.top_p:g}"
        )
        print(for_terminal(note), file=sys.stderr)
    chosen = use.temperature if temperature is None else temperature
    use = dataclasses.replace(use, base=source.name, temperature=chosen, **lengths)
    from unslothrl.backends import peft
    from unslothrl.engines.transformers import TransformersEngine

    backend = peft.load(
        source.base, dtype=half_here(), rank=1, alpha=1, dropout=0.0, seed=0, start=found.folder
    )
    engine = TransformersEngine(backend, source.base, max_num_seqs=1, has_own_base=False)
    return Answering(use, source.base, source.tokenizer(needs_template=True), engine, backend)


def sampling_of(use: Use, max_new_tokens: int) -> Sampling:
    """Temperature 0 takes the likeliest token."""
    if use.temperature == 0:
        return Sampling(1.0, 1.0, 1, max_new_tokens)
    return Sampling(use.temperature, use.top_p, 0, max_new_tokens)
