"""An objective's file: a Python file that defines OBJECTIVE, read without loading torch here.

Options are resolved in the driver, which may go on to import Unsloth, and that patches what is
imported after it. A file that imports more than the standard library and `Objective` is therefore
executed in a process of its own (about the seconds that its imports take), which sends the parts
back as JSON; its functions stay behind as `Part`s, and are loaded when one is first called.
"""

import ast
import functools
import json
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from unslothrl.algorithms.objective import Objective
from unslothrl.algorithms.parts import BY_NAME, Part, unknown_name
from unslothrl.errors import UserError
from unslothrl.files import MOST_CODE, Unreadable, read_text
from unslothrl.text import shown

IMPORT_S = 300.0  # for a file's imports, torch's from a cold disk among them
ANSWER = "from unslothrl.algorithms import objective_file; objective_file.answer()"
LIGHT = {*sys.stdlib_module_names, Objective.__module__} - {"importlib", "runpy"}
PLAIN = (str, bool, int, float, type(None))  # what JSON keeps as it is

Described = dict[str, dict[str, Any]]  # an Objective's field -> see `_described`

in_own_process = False  # whether this process is there to execute objectives' files


class Unexpected:
    """A value that no part can have, as it is shown in a message."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


def read(learner: str, path: Path) -> Objective:
    """OBJECTIVE of the file `path`, which messages call `learner`. Raises UserError."""
    try:
        text = read_text(path, MOST_CODE)
    except Unreadable as error:
        raise UserError(f"learner {learner}: {error}: give a .py file") from None
    if in_own_process or "torch" in sys.modules or imports_little(text):
        described = _described(learner, path, text)
    else:
        described = _described_elsewhere(learner, path, text)
    values: dict[str, Any] = {}
    for name, value in described.items():
        if "function" in value:
            load = functools.partial(_function, learner, path, text, name)
            values[name] = Part(learner, name, value["function"], value["line"], load)
        else:
            values[name] = Unexpected(value["shown"]) if "shown" in value else value["value"]
    return Objective(**values)


def imports_little(text: str) -> bool:
    """Whether executing a file loads nothing heavy, by the imports outside of its functions.

    True as well for what is not Python: executing it tells what is wrong.
    """
    try:
        waiting: list[ast.AST] = [ast.parse(text)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nesting
        return True
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = ["." * node.level + (node.module or "")]
        else:
            modules = []
        if any(not {module, module.partition(".")[0]} & LIGHT for module in modules):
            return False
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting.extend(ast.iter_child_nodes(node))
    return True


@functools.lru_cache(maxsize=64)
def _executed(learner: str, path: Path, text: str) -> Objective:
    """Raises UserError."""
    module = types.ModuleType(f"unslothrl_objective_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses of the file look for it there
    if (folder := str(path.absolute().parent)) not in sys.path:
        sys.path.append(folder)  # for what lies beside it
    try:
        exec(compile(text.encode(), path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"learner {learner} fails when it is imported ({reason}): fix it") from None
    objective = getattr(module, "OBJECTIVE", None)
    if not isinstance(objective, Objective):
        raise UserError(
            f"learner {learner} defines no OBJECTIVE: write OBJECTIVE = Objective(...) with "
            "Objective from unslothrl.algorithms.objective"
        )
    return objective


def _function(learner: str, path: Path, text: str, part: str) -> Callable[..., Any]:
    return getattr(_executed(learner, path, text), part)


def _described(learner: str, path: Path, text: str) -> Described:
    """For each part its value, or a function's name and line, or how any other value is shown.

    Raises UserError.
    """
    objective = _executed(learner, path, text)
    described: Described = {}
    for part in (entry.name for entry in fields(Objective)):
        value = getattr(objective, part)
        is_huge = type(value) is int and value.bit_length() > 1000  # too long for JSON
        if type(value) in PLAIN and not is_huge:
            described[part] = {"value": value}
        elif callable(value) and part in BY_NAME:
            described[part] = _described_function(learner, part, value)
        else:
            described[part] = {"shown": shown(value)}
    return described


def _described_function(learner: str, part: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Raises UserError where it asks for something that does not exist."""
    if isinstance(function, Part):  # of another file, which this one builds on
        return {"function": function.name, "line": function.line}
    code = getattr(function, "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)
    line = code.co_firstlineno if code else 0
    unknown = unknown_name(function, part)
    if unknown is not None:
        known = f"one of {', '.join(BY_NAME[part])}" if BY_NAME[part] else "none"
        raise UserError(
            f"learner {learner}, line {line}, {part} {name}: nothing called {unknown} is passed to "
            f"it: take {known} by name, or give it a default"
        )
    return {"function": name, "line": line}


@functools.lru_cache(maxsize=64)
def _described_elsewhere(learner: str, path: Path, text: str) -> Described:
    """As `_described`, by a process of its own. Raises UserError."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-c", ANSWER, learner, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        try:
            output, _ = process.communicate(text.encode(), timeout=IMPORT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise UserError(
                f"learner {learner} takes longer than {IMPORT_S:g} s to import: fix it"
            ) from None
        except BaseException:  # Ctrl-C
            process.kill()
            raise
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines()
    try:
        result = json.loads(output)
    except ValueError:
        last = f"exit code {process.returncode}" + (f": {lines[-1][:300]}" if lines else "")
        raise UserError(f"learner {learner} fails when it is imported ({last}): fix it") from None
    if "error" in result:
        raise UserError(result["error"])
    return result["parts"]


def answer() -> None:
    """What the process for a file runs: the text comes on stdin, the parts go to stdout."""
    global in_own_process
    in_own_process = True
    with os.fdopen(os.dup(1), "w") as stdout:
        os.dup2(2, 1)  # what the file prints
        try:
            parts = _described(sys.argv[1], Path(sys.argv[2]), sys.stdin.buffer.read().decode())
            json.dump({"parts": parts}, stdout)
        except UserError as error:
            json.dump({"error": str(error)}, stdout)
    os._exit(0)  # whatever the file has left running
