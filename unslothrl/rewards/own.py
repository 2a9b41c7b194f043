"""A user's own reward: a function in a file, read here without running it.

    def reward(completion, answer): ...                  a number, or {"reward": ..., "score": ...}
    async def reward(completion, answer, row): ...       many at the same time
    def reward(completions, answers, **columns): ...     a list, for all completions at once

The first parameter is the completion; `completions` takes all of them. A second one is the answer.
By name a function gets `prompt`, `answer`, `row` (a dict of the row's other columns) or any column,
as lists where it takes all completions; `**` gets every column.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unslothrl.errors import UserError

ALL = "completions"
ANSWER, PROMPT, ROW = ("answer", "answers"), ("prompt", "prompts"), ("row", "rows")
MISSING = object()


@dataclass(frozen=True)
class Known:
    """What is known of a completion's task."""

    answer: str
    prompt: str
    row: dict[str, Any]


@dataclass(frozen=True)
class Signature:
    """What a function takes, by its text."""

    names: tuple[str, ...]  # of what it gets besides the completion
    second: str | None  # the second parameter: the answer, unless it is named as something else
    is_batch: bool  # takes all completions at once
    is_async: bool
    takes_rest: bool  # has **

    @property
    def takes_answer(self) -> bool:
        return bool({self.second, *self.names} & set(ANSWER)) or (
            self.second is not None and self.second not in (*PROMPT, *ROW)
        )

    def value(self, name: str, known: Known) -> Any:
        """What a parameter gets; MISSING where nothing has its name."""
        for names, value in ((ANSWER, known.answer), (PROMPT, known.prompt), (ROW, known.row)):
            if name in names:
                return value
        return known.row.get(name, known.answer if name == self.second else MISSING)

    def named(self, known: Known) -> dict[str, Any]:
        """The arguments for one completion, besides its text."""
        names = {*self.names, *((ANSWER[0], PROMPT[0], *known.row) if self.takes_rest else ())}
        found = {name: self.value(name, known) for name in names}
        return {name: value for name, value in found.items() if value is not MISSING}

    def named_for_all(self, every: Sequence[Known]) -> dict[str, list]:
        """The arguments for all completions, a list each; None for a row without that column."""
        columns = {name for one in every for name in one.row}
        names = {*self.names, *((ANSWER[1], PROMPT[1], *columns) if self.takes_rest else ())}
        found = {name: [self.value(name, one) for one in every] for name in names}
        return {
            name: [None if value is MISSING else value for value in values]
            for name, values in found.items()
            if any(value is not MISSING for value in values)
        }


def signature_of(path: Path, name: str) -> Signature:
    """Raises UserError for a file that is no Python, or that has no such function."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"reward {path}: it is not Python ({reason}): mend it") from None
    functions = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    if name not in functions:
        raise UserError(
            f"reward {path}: it has no function {name!r}; it has {', '.join(functions) or 'none'}: "
            "write file.py:function"
        )
    return _signature(path, functions[name])


def _signature(path: Path, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Signature:
    arguments = function.args
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    if not names:
        raise UserError(
            f"reward {path}: {function.name} takes no completion: write "
            f"def {function.name}(completion, answer)"
        )
    required = set(names[: len(names) - len(arguments.defaults)])
    by_name = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    required |= {one.arg for one, default in by_name if default is None}
    is_batch = ALL in names
    others = [one for one in names if one != (ALL if is_batch else names[0])]
    wanted = {*required, *ANSWER, *PROMPT, *ROW}  # an option of its own keeps its default
    every = (*others, *(one.arg for one in arguments.kwonlyargs))
    return Signature(
        names=tuple(one for one in every if one in wanted),
        second=others[0] if others and others[0] in required else None,
        is_batch=is_batch,
        is_async=isinstance(function, ast.AsyncFunctionDef),
        takes_rest=arguments.kwarg is not None,
    )


def check(function: str) -> None:
    """Runs in a worker: loads a function, so that what is wrong with its file is known."""
    from unslothrl.rewards.worker import load

    load(function)


def together(function: str, deadline_s: float, calls: list[list]) -> list[list]:
    """Runs in a worker: many calls of an async function at once. -> [value, error] of each."""
    import asyncio

    from unslothrl.rewards.worker import load, reason

    loaded = load(function)

    async def one(text: str, named: dict[str, Any]) -> list:
        try:
            return [await asyncio.wait_for(loaded(text, **named), deadline_s), None]
        except TimeoutError:
            return [None, f"took longer than {deadline_s:g} s"]
        except Exception as error:
            return [None, reason(error)]

    async def all_of_them() -> list[list]:
        return await asyncio.gather(*(one(text, named) for text, named in calls))

    return asyncio.run(all_of_them())
