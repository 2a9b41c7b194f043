"""The same faults put into two trees, one at a time: how many do the tests of each catch?

    python bench/mutants.py BEFORE [--count 200] [--tree FOLDER] [--run before|after] [--lane 0/2]

BEFORE is a checkout of another commit, --tree this one by default. Places are drawn by a hash from
those expressions that both trees have once, in a function of the same name; a fault swaps an
operator, a comparison or a constant. Each runs against those quick tests that run what it changes,
as pytest-testmon has seen, and then against the test files that import its module, 60 seconds of a
core at most; those of BEFORE only where those of this tree do not catch it. A second call goes on
with what is missing, and lanes divide the places among calls at the same time. Needs `python
tools/peers.py mutants`; writes bench/results/mutants.json.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import filelock

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "bench" / "results" / "mutants.json"
FOLDERS = ("training", "learners", "algorithms", "engines", "backends", "checkpoints")
LIMIT_S, QUICK_S, WAITS = 60, 300, 4
QUICK = ["--quick", "--testmon", "--testmon-forceselect", "--testmon-nocollect"]
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And, ast.USub: ast.UAdd,
    ast.Not: ast.UAdd,
}  # fmt: skip
Key = tuple[str, str]  # the function's name with its class's, the expression with the fault


@dataclass(frozen=True)
class Place:
    """Where a fault can be put: an expression of a file, by its span in the text."""

    file: Path
    span: tuple[int, int]
    faulted: str

    def mutated(self, text: str) -> str:
        return f"{text[: self.span[0]]}({self.faulted}){text[self.span[1] :]}"


def faults(node: ast.AST) -> Iterator[tuple[str, object]]:
    """-> (a field of the node, what it is in place of what it is)"""
    operator = getattr(node, "op", None)
    if type(operator) in SWAPS:
        yield "op", SWAPS[type(operator)]()
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield "ops", [SWAPS[type(node.ops[0])](), *node.ops[1:]]
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "value", not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "value", node.value + 1


def places(tree: Path) -> dict[Key, list[Place]]:
    """Of a tree, by what names them in another one, too."""
    found: dict[Key, list[Place]] = {}
    for folder in FOLDERS:
        for file in sorted((tree / "unslothrl" / folder).rglob("*.py")):
            text = file.read_text()
            starts = [0, *(end + 1 for end, letter in enumerate(text) if letter == "\n")]
            for name, whole in expressions(ast.parse(text)):
                if not text.isascii() or whole.end_lineno is None:  # columns count bytes
                    continue
                begin = starts[whole.lineno - 1] + whole.col_offset
                span = begin, starts[whole.end_lineno - 1] + (whole.end_col_offset or 0)
                strict = [k.value for k in ast.walk(whole) if getattr(k, "arg", "") == "strict"]
                for node in (each for each in ast.walk(whole) if each not in strict):
                    for field, value in faults(node):
                        before = getattr(node, field)
                        setattr(node, field, value)
                        faulted = ast.unparse(whole)
                        setattr(node, field, before)
                        found.setdefault((name, faulted), []).append(Place(file, span, faulted))
    return found


def expressions(node: ast.AST, of: str = "") -> Iterator[tuple[str, ast.expr]]:
    """-> (the name of a function with its class's, an expression that is a part of one of its
    statements)"""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from expressions(child, f"{of}.{child.name}")
        elif isinstance(child, ast.expr) and isinstance(node, ast.stmt) and of:
            is_string = isinstance(child, ast.Constant) and isinstance(child.value, str)
            if not is_string and not isinstance(node, ast.FunctionDef):
                yield of, child
        else:
            yield from expressions(child, of)


def caught(tree: Path, name: str, place: Place) -> bool:
    """Whether a test fails with the fault in the tree, which is put back."""
    text = place.file.read_text()
    module = str(place.file.relative_to(tree).with_suffix("")).replace("/", ".")
    package, _, last = module.rpartition(".")
    names = re.compile(rf"\b{module}\b|from {package} import [^\n]*\b{last}\b".replace(".", r"\."))
    tests = {str(file): file.read_text() for file in sorted((tree / "tests").glob("test_*.py"))}
    files = [file for file in tests if names.search(tests[file])]
    files.sort(key=lambda file: -tests[file].count(name.rpartition(".")[2]))  # likely ones first
    place.file.write_text(place.mutated(text))
    try:
        return fails(tree, QUICK, QUICK_S) or (bool(files) and fails(tree, files, LIMIT_S))
    finally:
        place.file.write_text(text)


def fails(tree: Path, arguments: list[str], limit_s: int) -> bool:
    """Whether a test fails within so many seconds of the processor: other work beside it does not
    count, but for `WAITS` times as long by the clock."""
    path = f"{tree}:{Path(sys.prefix, 'peers', 'mutants')}"
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=tree, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s)),
    )  # fmt: skip
    try:
        return process.wait(WAITS * limit_s) in (1, 2)  # a test failed, or was not collected
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        return False


def add(key: str, tree: str, is_caught: bool) -> None:
    with filelock.FileLock(f"{RESULT}.lock"):
        results = known_results()
        results.setdefault(key, {})[tree] = is_caught
        RESULT.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")


def known_results() -> dict[str, dict[str, bool]]:
    return json.loads(RESULT.read_text()) if RESULT.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("--tree", type=Path, default=ROOT)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--run", choices=["before", "after"], help="one of the trees only")
    parser.add_argument("--lane", default="0/1", help="every Nth place from the Ith: I/N")
    given = parser.parse_args()
    lane, lanes = map(int, given.lane.split("/"))
    with tempfile.TemporaryDirectory() as scratch:
        trees = {}
        for name, tree in (("before", given.before), ("after", given.tree)):
            leave = shutil.ignore_patterns(".venv*", ".git", "__pycache__")
            trees[name] = Path(shutil.copytree(tree, Path(scratch, name), ignore=leave))
        for name in [given.run] if given.run else trees:
            assert not fails(trees[name], QUICK[:-1], QUICK_S)  # and see what each runs
        known = {name: places(tree) for name, tree in trees.items()}
        old, new = known["before"], known["after"]
        both = [key for key in old if len(old[key]) == len(new.get(key, [])) == 1]
        both.sort(key=lambda key: hashlib.sha256(": ".join(key).encode()).digest())
        for key in both[: given.count][lane::lanes]:
            for name in [given.run] if given.run else ("after", "before"):
                results = known_results().get(": ".join(key), {})
                if name not in results and not results.get("after"):
                    add(": ".join(key), name, caught(trees[name], key[0], known[name][key][0]))
    drawn = [known_results().get(": ".join(key), {}) for key in both[: given.count]]
    print(len(both), "places;", Counter((e.get("before"), e.get("after")) for e in drawn))


if __name__ == "__main__":
    main()
