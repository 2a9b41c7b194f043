"""What runs in the sandbox of an interpreter: see `cells`. It imports the standard library alone.

A cell is a line with its text as JSON, the answer one with [text, failed].
"""

import ast
import contextlib
import io
import json
import os
import traceback
from typing import Any

CELL = "<cell>"


def serve(descriptor: int, most: int) -> None:
    """Runs cells until there are no more; of what one prints `most` characters are answered."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with os.fdopen(descriptor, "rb", closefd=False) as cells:
        for line in cells:
            said, failed = run(json.loads(line), names)
            data = json.dumps([shortened(said, most), failed]).encode() + b"\n"
            while data:
                data = data[os.write(descriptor, data) :]
    os._exit(0)


def run(code: str, names: dict[str, Any]) -> tuple[str, bool]:
    """-> (what it printed and the value of its last line, or what it raised; whether it did)."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            tree = ast.parse(code, CELL)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, CELL, "exec"), names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), CELL, "eval"), names)
                if value is not None:
                    print(repr(value))
            return out.getvalue(), False
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if frame.filename == CELL]
            where = f" (line {lines[-1]})" if lines else ""
            return f"{out.getvalue()}{type(error).__name__}: {error}{where}", True


def shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n... {len(text) - most:,} characters ...\n{text[-half:]}"
