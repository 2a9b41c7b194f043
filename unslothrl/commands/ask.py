"""Asks a trained adapter a question: the shortest way to see what a run has learnt."""

import sys
from typing import TextIO

from unslothrl.commands import answering, showing
from unslothrl.commands.answering import ADAPTER, BASE
from unslothrl.errors import UserError

STDIN = "-"


def ask(
    adapter: str,
    question: str,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    model: str | None = None,
    *,
    with_base: bool = False,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> None:
    """Prints the completion as it is drawn, special tokens left out; with `with_base` that of the
    base alone beside it. A question "-" is read from stdin. UserError for a folder that is no
    adapter."""
    if question == STDIN:
        question = showing.lenient(sys.stdin).read()
    if not question.strip():
        raise UserError('question is empty: ask something, e.g. "What is 347 + 285?"')
    answers = answering.load(adapter, model, max_new_tokens, temperature, err)
    turns = [("user", question.strip("\n") if question.endswith("\n") else question)]
    policies = (BASE, ADAPTER) if with_base else (ADAPTER,)
    drawing = {policy: answers.draw(policy, turns) for policy in policies}
    showing.show(drawing, out or sys.stdout)
