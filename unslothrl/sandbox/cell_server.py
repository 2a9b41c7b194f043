"""What runs in the sandbox of an interpreter: see `cells`. It imports the standard library alone.

A cell comes as its length and its text, the answer goes as its length and JSON: [text, failed].
"""

import ast
import contextlib
import io
import json
import os
import struct
import traceback
from typing import Any

HEADER = struct.Struct(">I")
CELL = "<cell>"


def serve(descriptor: int, most: int) -> None:
    """Runs cells until there are no more; of what one prints `most` characters are answered."""
    names: dict[str, Any] = {"__name__": "__main__"}
    while True:
        (length,) = HEADER.unpack(receive(descriptor, HEADER.size))
        said, failed = run(receive(descriptor, length).decode(), names)
        data = json.dumps([shortened(said, most), failed]).encode()
        data = HEADER.pack(len(data)) + data
        while data:
            data = data[os.write(descriptor, data) :]


def receive(descriptor: int, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = os.read(descriptor, length - len(data))
        if not more:
            os._exit(0)
        data += more
    return data


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
