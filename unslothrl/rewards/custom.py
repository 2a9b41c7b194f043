"""A custom reward: a function in a file of the user's, read here without running it.

    def reward(completion, answer): ...                  a number, or {"reward": ..., "score": ...}
    async def reward(completion, answer, row): ...       many at the same time
    def reward(completions, answers, **columns): ...     a list, for all completions at once

The first parameter is the completion; `completions` takes all of them. A second one is the answer.
By name a function gets `prompt`, `answer`, `row` (a dict of the row's other columns) or any column,
as lists where it takes all completions; `**` gets every column.

Functions written for TRL take `completions`. TRL gives them text, or lists of messages where the
data set is conversational. Here one gets messages that reads their key "content", as in
`c[0]["content"]`, itself or in a function of its file, or whose parameter is annotated with a dict.
One that names `completion_ids`, `log_extra` or `log_metric`, as a parameter or as a key of `**`,
gets these too; what it logs is dropped.
"""

import ast
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unslothrl.errors import UserError
from unslothrl.rewards.functions import LOGS
from unslothrl.untrusted import MOST_CODE, read_text

ALL = "completions"
ANSWER, PROMPT, ROW = ("answer", "answers"), ("prompt", "prompts"), ("row", "rows")
ANSWER_COLUMNS = ("ground_truth", "gt_answer", "solution")  # where the answer was read from one
CONTENT = "content"  # of a message
IDS = "completion_ids"  # of TRL: the tokens of each completion
NOT_GIVEN = ("trainer_state", "environments")  # of TRL
TICK_S = 0.1
MISSING = object()
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Known:
    """What is known of a completion's task."""

    answer: str
    prompt: str
    row: dict[str, Any]
    problem: str = ""  # what the user asks last; "": that is the prompt
    token_ids: tuple[int, ...] = ()  # of the completion

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", CONTENT: self.problem or self.prompt}]


@dataclass(frozen=True)
class Signature:
    """What a function takes, by its text."""

    names: tuple[str, ...]  # of what it gets besides the completion
    second: str | None  # the second parameter: the answer, unless it is named as something else
    is_batch: bool  # takes all completions at once
    is_async: bool
    takes_rest: bool  # has **
    wants_messages: bool = False  # of TRL's conversational form
    wants_ids: bool = False  # of the completions

    @property
    def takes_answer(self) -> bool:
        return bool({self.second, *self.names} & set(ANSWER)) or (
            self.second is not None and self.second not in (*PROMPT, *ROW)
        )

    def value(self, name: str, known: Known) -> Any:
        """What a parameter gets; MISSING where nothing has its name."""
        prompt: Any = known.messages if self.wants_messages else known.prompt
        if self.is_batch and not self.wants_messages:
            prompt = known.problem or known.prompt  # as TRL: the row's, no template around it
        for names, value in ((ANSWER, known.answer), (PROMPT, prompt), (ROW, known.row)):
            if name in names:
                return value
        is_answer = name == self.second or name in ANSWER_COLUMNS
        return known.row.get(name, known.answer if is_answer else MISSING)

    def named(self, known: Known) -> dict[str, Any]:
        """The arguments for one completion, besides its text."""
        names = {*self.names, *((ANSWER[0], PROMPT[0], *known.row) if self.takes_rest else ())}
        values = {name: self.value(name, known) for name in names}
        return {name: value for name, value in values.items() if value is not MISSING}

    def named_for_all(self, tasks: Sequence[Known]) -> dict[str, list]:
        """The arguments for all completions, a list each; None for a row without that column."""
        columns = {name for task in tasks for name in task.row}
        names = {*self.names, *((*ANSWER, PROMPT[1], *columns) if self.takes_rest else ())}
        lists = {name: [self.value(name, task) for task in tasks] for name in names}
        if self.wants_ids:
            lists[IDS] = [list(task.token_ids) for task in tasks]
        return {
            name: [None if value is MISSING else value for value in values]
            for name, values in lists.items()
            if any(value is not MISSING for value in values)
        }

    def completions(self, texts: Sequence[str]) -> list:
        """All completions in the form that the function wants."""
        if not self.wants_messages:
            return list(texts)
        return [[{"role": "assistant", CONTENT: text}] for text in texts]


def signature_of(path: Path, name: str) -> Signature:
    """Raises UserError for a file that is no Python, or that has no such function."""
    try:
        tree = ast.parse(read_text(path, MOST_CODE))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nesting
        reason = " ".join(str(error).split()) or "nested too deeply"
        raise UserError(f"reward {path}: it is not Python ({reason}): fix it") from None
    functions = {each.name: each for each in map(_function, tree.body) if each is not None}
    if name not in functions:
        raise UserError(
            f"reward {path}: it has no function {name!r}; it has {', '.join(functions) or 'none'}: "
            "write file.py:function"
        )
    signature = _signature(path, functions[name])
    if not signature.is_batch:
        return signature
    return replace(
        signature,
        wants_messages=_wants_messages(functions[name], functions),
        wants_ids=_mentions(functions[name], IDS),
    )


def _function(node: ast.stmt) -> Function | None:
    """What a statement defines by `def`, or by giving a lambda a name."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return node
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda(args=args, body=body)):
            return ast.copy_location(ast.FunctionDef(name, args, [ast.Expr(body)], []), node)
    return None


def _signature(path: Path, function: Function) -> Signature:
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    is_batch = ALL in (*names, *(argument.arg for argument in arguments.kwonlyargs))
    if not names and not is_batch:
        raise UserError(
            f"reward {path}: {function.name} takes no completion: write "
            f"def {function.name}(completion, answer)"
        )
    required = set(names[: len(names) - len(arguments.defaults)])
    by_name = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    required |= {argument.arg for argument, default in by_name if default is None}
    if missing := [name for name in NOT_GIVEN if is_batch and name in required]:
        raise UserError(
            f"reward {path}: {function.name} takes {missing[0]}, which TRL has and this run has "
            f"not: give the parameter a default, {missing[0]}=None"
        )
    others = [name for name in names if name != (ALL if is_batch else names[0])]
    if is_batch:
        others = [name for name in others if name not in (IDS, *LOGS)]
        required -= {IDS, *LOGS}
    wanted = {*required, *ANSWER, *PROMPT, *ROW}  # other options keep their defaults
    by_keyword = (argument.arg for argument in arguments.kwonlyargs if argument.arg != ALL)
    return Signature(
        names=tuple(name for name in (*others, *by_keyword) if name in wanted),
        second=others[0] if others and others[0] in required else None,
        is_batch=is_batch,
        is_async=isinstance(function, ast.AsyncFunctionDef),
        takes_rest=arguments.kwarg is not None,
    )


def _mentions(function: Function, name: str) -> bool:
    """Whether a function has a parameter of this name, or reads the key of its `**`."""
    arguments = function.args
    parameters = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return any(each.arg == name for each in parameters) or (
        arguments.kwarg is not None
        and any(
            isinstance(node, ast.Constant) and node.value == name for node in ast.walk(function)
        )
    )


def _wants_messages(function: Function, functions: dict[str, Function]) -> bool:
    """By the annotation of `completions`, or by what the function and those it names read."""
    arguments = function.args
    parameters = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    annotation = next(each.annotation for each in parameters if each.arg == ALL)
    annotated = ast.unparse(annotation).lower() if annotation is not None else ""
    if "dict" in annotated or "str" in annotated:
        return "dict" in annotated
    seen: dict[str, Function] = {}
    waiting = [function]
    while waiting:
        each = waiting.pop()
        if each.name not in seen:
            seen[each.name] = each
            names = {node.id for node in ast.walk(each) if isinstance(node, ast.Name)}
            waiting += [functions[name] for name in names & functions.keys()]
    return any(_reads_content(node) for each in seen.values() for node in ast.walk(each))


def _reads_content(node: ast.AST) -> bool:
    """Whether this is `x["content"]` or `x.get("content")`, with x no row and no call's result."""
    if isinstance(node, ast.Subscript):
        base, key = node.value, node.slice
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        base, key = node.func.value, node.args[0]
        if node.func.attr != "get":
            return False
    else:
        return False
    while isinstance(base, ast.Subscript):
        base = base.value
    is_message = isinstance(base, ast.Name) and base.id not in ROW
    return is_message and isinstance(key, ast.Constant) and key.value == CONTENT


def check(function: str) -> None:
    """Runs in a reward process: loads a function, which raises what is wrong with its file."""
    from unslothrl.rewards.functions import load

    load(function)


def together(function: str, deadline_s: float, calls: list[list]) -> list[list]:
    """Runs in a reward process: calls an async function concurrently. -> [value, error] of each.

    Time in which one of them keeps all others waiting, as one that loads a model, does not count.
    """
    import asyncio

    from unslothrl.rewards.functions import as_json, load, reason

    loaded = load(function)

    async def result(text: str, named: dict[str, Any]) -> list:
        try:
            return [as_json(await loaded(text, **named)), None]
        except Exception as error:
            return [None, reason(error)]

    async def all_of_them() -> list[list]:
        tasks = [asyncio.create_task(result(text, named)) for text, named in calls]
        pending, spent = set(tasks), 0.0
        while pending and spent < deadline_s:
            tick = min(TICK_S, deadline_s - spent)
            started = time.monotonic()
            _, pending = await asyncio.wait(pending, timeout=tick)
            spent += min(tick, time.monotonic() - started)
        late = [None, f"took longer than {deadline_s:g} s"]
        return [late if task in pending else task.result() for task in tasks]

    return asyncio.run(all_of_them())
