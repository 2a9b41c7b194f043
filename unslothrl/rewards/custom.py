"""A custom reward: a function in a file of the user's, read here without running it.

What each parameter gets, and which functions are called as TRL calls them, is in docs/rewards.md.
A function that names `answers` or `rows`, which TRL has not, gets texts always.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unslothrl.data.formats import PROMPTS, is_turns, parsed
from unslothrl.errors import UserError
from unslothrl.files import read_text
from unslothrl.records import Completion, Scorable, Task
from unslothrl.rewards.functions import LOGS

ALL = "completions"
ANSWER, PROMPT, ROW = ("answer", "answers"), ("prompt", "prompts"), ("row", "rows")
NO_ANSWER = (*PROMPT, *ROW, *PROMPTS)  # names of a second parameter that is another
COMPLETION = ("completion", "solution_str")  # ours, and verl's
ANSWER_COLUMNS = ("ground_truth", "gt_answer", "solution")  # where the answer was read from one
IDS, STATE = "completion_ids", "trainer_state"  # of TRL: tokens; how far the training is
OF_TRL = (ALL, IDS, STATE, PROMPT[1])
OWN = (ANSWER[1], *ROW)  # names that TRL's have not


@dataclass(frozen=True)
class Signature:
    """What a function takes, by its text."""

    names: tuple[str, ...]  # of what it gets besides the completion
    second: str | None  # the second parameter: the answer, unless it is named as something else
    is_batch: bool  # takes all completions at once
    is_async: bool
    takes_rest: bool  # has **
    line: int = 0  # where it stands in its file

    @property
    def takes_answer(self) -> bool:
        return bool({self.second, *self.names} & set(ANSWER)) or (
            self.second is not None and self.second.lower() not in NO_ANSWER
        )

    def has_messages(self, task: Task) -> bool:
        """Whether it gets completion and prompt as lists of messages, as TRL has them."""
        is_trls = self.is_batch and not {*self.names, self.second} & set(OWN)
        return is_trls and any(is_turns(parsed(each)) for each in task.read.values())

    def values(self, task: Task, done: Completion) -> dict[str, Any]:
        """All that it may ask for about one completion, by name."""
        prompt: Any = task.prompt
        if self.is_batch:  # as TRL: the row's, no template around it
            prompt = task.problem or prompt
        if self.has_messages(task):
            prompt = [{"role": role, "content": content} for role, content in task.messages]
        return {
            **({self.second: task.answer} if self.second else {}),
            **dict.fromkeys(ANSWER_COLUMNS, task.answer),
            **(task.read if self.is_batch else {name: task.read[name] for name in task.asked}),
            **task.extra,
            **dict.fromkeys(ANSWER, task.answer),
            **dict.fromkeys(PROMPT, prompt),
            **dict.fromkeys(ROW, task.extra),
            IDS: done.token_ids.tolist(),
        }

    def named(self, task: Task, done: Completion) -> dict[str, Any]:
        """The arguments for one completion, besides its text."""
        rest = (ANSWER[0], PROMPT[0], *task.asked, *task.extra) if self.takes_rest else ()
        names = {*self.names, *rest}
        return {name: value for name, value in self.values(task, done).items() if name in names}

    def named_for_all(self, completed: Sequence[Scorable], steps: int = 0) -> dict[str, Any]:
        """The arguments for all completions, a list each; None for a row without that column.
        `steps`: how many optimiser steps there will be."""
        columns = {name for task, _ in completed for name in (*task.extra, *task.read)}
        rest = (*ANSWER, PROMPT[1], IDS, *columns - {*PROMPT, ALL}) if self.takes_rest else ()
        values = [self.values(*pair) for pair in completed]
        given: dict[str, Any] = {
            name: [each.get(name) for each in values]
            for name in {*self.names, *rest} - {ALL, STATE}
            if any(name in each for each in values)
        }
        given[ALL] = [
            [{"role": "assistant", "content": done.text}] if self.has_messages(task) else done.text
            for task, done in completed
        ]
        step = max((version for _, done in completed for version in done.versions), default=0)
        return {**given, STATE: {"global_step": int(step), "max_steps": steps}}


def signature_of(path: Path, name: str) -> Signature:
    """UserError for a file that is no Python; the function is looked for when it is loaded."""
    from unslothrl.rewards.assertions import python_of

    text = read_text(path)
    tree, why = python_of(text, path.name)
    if tree is None:
        raise UserError(f"reward {path}: it is not Python ({why:.200}): fix it")
    functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
    for node in tree.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                functions[node.name] = node
            case ast.Assign(targets=[ast.Name(id=given)], value=ast.Lambda(args=args, body=body)):
                made = ast.FunctionDef(given, args, [ast.Expr(body)], [])
                functions[given] = ast.copy_location(made, node)
    if name not in functions:  # by an import, an assignment, under a condition: as TRL calls it
        return Signature((), None, is_batch=True, is_async=False, takes_rest=True)
    signature = _signature(functions[name])
    if not signature.is_batch and {*signature.names, signature.second} & set(COMPLETION):
        raise UserError(
            f"reward {path}: the first parameter of {name} is what gets the completion: put it "
            "there, as in def reward(completion, answer)"
        )
    return signature


def _signature(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Signature:
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    by_keyword = [argument.arg for argument in arguments.kwonlyargs]
    is_batch = bool({*names, *by_keyword} & set(OF_TRL))
    is_batch = is_batch or (not names and arguments.kwarg is not None)
    required = set(names[: len(names) - len(arguments.defaults)])
    defaults = zip(by_keyword, arguments.kw_defaults, strict=True)
    required |= {name for name, default in defaults if default is None}
    passed = {*OF_TRL, *LOGS} if is_batch else {*names[:1]}
    others = [name for name in names if name not in passed]
    has_second = bool(others) and not (is_batch and arguments.kwarg)  # TRL's are all by name
    wanted = {*required, *ANSWER, *PROMPT, *ROW, IDS}  # other options keep their defaults
    asked = [*(names if is_batch else names[1:]), *by_keyword]
    return Signature(
        names=tuple(name for name in asked if name in wanted and name not in LOGS),
        second=others[0] if has_second and others[0] in required else None,
        is_batch=is_batch,
        is_async=isinstance(function, ast.AsyncFunctionDef),
        takes_rest=arguments.kwarg is not None,
        line=function.lineno,
    )
