"""Tests that are Python: assertions about what a program's functions return.

docs/rewards.md has their columns. What the row's `prompt` defines, where it is Python, is there for
the program and for the tests, each with its own: a program cannot replace a helper that the tests
use. The tests run in one sandbox, the program in another (`sandbox.remote`). A name that neither
the tests nor the row's code define is the program's. Names of Python's own are Python's, unless the
tests call nothing else.
"""

import ast
import builtins
import symtable
import sys
from collections.abc import Mapping
from typing import Any

from unslothrl.data.formats import UnusableRow, parsed, value_of

TEXTS = ("test", "tests", "test_cases", "testcase")  # that may be Python
LISTS = ("test_list", "tests", "test_cases", "testcase")  # of assertions
SETUPS = ("test_setup_code", "setup_code", "test_imports")
ENTRY = "entry_point"
EXAMPLE = "Your code should pass this test:\n\n{}"
WHOLE = "Complete this function. Write all of it, with what it needs:\n\n```python\n{}\n```"
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


def read(row: Mapping) -> dict[str, Any] | None:
    """What `sandbox.runner.run_tests` takes; None where a row has no such tests. UnusableRow."""
    column, text = source(row)
    if text is None:
        return None
    tree = parsed_python(text, column)
    entry = entry_point(row, tree)
    given = [parsed(row.get(name)) for name in SETUPS]
    parts = [part for value in given for part in (value if isinstance(value, list) else [value])]
    written = "\n".join(part for part in parts if isinstance(part, str))
    setup = parsed_python(written, "test_setup_code")
    prelude = prompt_code(row) + [node for node in setup.body if isinstance(node, _DEFINITIONS)]
    rest = [node for node in setup.body if not isinstance(node, _DEFINITIONS)]
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    tests = {
        "assertions": text,
        "entry_point": entry,
        "prelude": code_of(prelude),
        "setup": code_of(rest),
        "has_check": entry is not None and any(is_check(each) for each in functions),
        "functions": [each.name for each in functions if is_test(each, column)],
        "cases": [each.name for each in classes if is_case(each)],
    }
    check_that_they_test(tree, tests, column)
    names = free_names("\n".join((code_of(prelude), code_of(rest), text)))
    modules = {name for name in names if is_module(name, [*rest, *tree.body])}
    names -= modules | {"candidate"} | ({entry} if entry else set())
    own = {name for name in names if not hasattr(builtins, name)}
    if not own and entry is None:
        own = called_everywhere(tree)
    return {**tests, "names": sorted(own), "modules": sorted(modules)}


def source(row: Mapping) -> tuple[str, str | None]:
    """-> (the column of a row's tests, their text or None)."""
    for column in LISTS:
        value = parsed(value_of(row, column))
        if isinstance(value, list | tuple) and value and all(map(is_assertion, value)):
            return column, "\n".join(value)
    for column in TEXTS:
        value = value_of(row, column)
        if isinstance(value, str) and ("def " in value or is_assertion(value)):
            return column, value
    return "", None


def is_assertion(value: Any) -> bool:
    """Whether this is a statement that asserts, perhaps after others."""
    return isinstance(value, str) and "assert" in value


def parsed_python(text: str, column: str) -> ast.Module:
    tree, why = python_of(text)
    if tree is None:
        raise UnusableRow(f"column {column} is not Python ({why:.80})")
    return tree


def python_of(text: str, file: str = "tests.py") -> tuple[ast.Module | None, str]:
    """-> (a text as Python, None where it is none; why it is none)."""
    try:
        compile(text, file, "exec", dont_inherit=True)  # finds more than the parser does
        return ast.parse(text), ""
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return None, str(error)


def entry_point(row: Mapping, tree: ast.Module) -> str | None:
    """The function that is tested, or an expression such as Solution().add. UnusableRow."""
    value = row.get(ENTRY)
    if value is None:
        if not any(isinstance(node, ast.FunctionDef) and is_check(node) for node in tree.body):
            return None
        defined = [each.name for each in prompt_code(row) if isinstance(each, ast.FunctionDef)]
        if not defined:
            raise UnusableRow(f"column test has check(candidate), and there is no column {ENTRY}")
        return defined[-1]
    written = python_of(value)[0] if isinstance(value, str) else None
    body = [] if written is None else written.body
    node: Any = body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    if not isinstance(node, ast.Name):
        raise UnusableRow(f"column {ENTRY} is no name: {value!r:.60}")
    return value


def prompt_code(row: Mapping) -> list[ast.stmt]:
    """The statements of a prompt that is Python, as HumanEval's are; [] for any other."""
    prompt = row.get("prompt")
    if not isinstance(prompt, str) or "def " not in prompt:
        return []
    tree, _ = python_of(prompt)
    return [] if tree is None else tree.body


def code_of(nodes: list[ast.stmt]) -> str:
    return ast.unparse(ast.Module(nodes, []))


def is_check(node: ast.FunctionDef) -> bool:
    return node.name == "check" and len(node.args.args) == 1


def is_test(node: ast.FunctionDef, column: str) -> bool:
    """Whether pytest would call this. UnusableRow where it asks for more than we have."""
    if not node.name.startswith("test"):
        return False
    if len(node.args.args) > len(node.args.defaults):
        raise UnusableRow(f"column {column}: {node.name} takes arguments: write it without")
    return True


def is_case(node: ast.ClassDef) -> bool:
    names = (getattr(base, "attr", getattr(base, "id", "")) for base in node.bases)
    return "TestCase" in names


def check_that_they_test(tree: ast.Module, tests: Mapping[str, Any], column: str) -> None:
    """UnusableRow where nothing is asserted, or nothing would be run."""
    asserts = (
        isinstance(node, ast.Assert | ast.Raise)
        or getattr(node, "attr", "").startswith(("assert", "raises"))
        for node in ast.walk(tree)
    )
    if not any(asserts):
        raise UnusableRow(f"column {column} asserts nothing")
    outside = [node for node in tree.body if not isinstance(node, _DEFINITIONS)]
    at_top = any(isinstance(node, ast.Assert) for each in outside for node in ast.walk(each))
    if not (at_top or tests["has_check"] or tests["functions"] or tests["cases"]):
        raise UnusableRow(
            f"column {column} runs no test: write assertions, check(candidate) or test_ functions"
        )


def free_names(text: str) -> set[str]:
    table = symtable.symtable(text, "tests.py", "exec")
    defined = {
        each.get_name()
        for each in table.get_symbols()
        if each.is_assigned() or each.is_imported() or each.is_namespace()
    }
    found, waiting = set(), [table]
    while waiting:
        scope = waiting.pop()
        waiting += scope.get_children()
        found |= {
            each.get_name()
            for each in scope.get_symbols()
            if each.is_referenced() and (each.is_global() or scope is table)
        }
    return found - defined


def is_module(name: str, nodes: list[ast.stmt]) -> bool:
    """Whether an unknown name is a module that the tests forgot to import, such as math."""
    walked = [node for each in nodes for node in ast.walk(each)]
    inside = [getattr(node.value, "id", "") for node in walked if isinstance(node, ast.Attribute)]
    uses = [node.id for node in walked if isinstance(node, ast.Name)].count(name)
    is_known = name in sys.stdlib_module_names or name in ("np", "numpy")
    return is_known and 0 < uses == inside.count(name)


def called_everywhere(tree: ast.Module) -> set[str]:
    """Of tests such as `sum(10, 15) == 6`: the innermost name that every assertion calls."""
    in_each = [
        [getattr(call.func, "id", "") for call in ast.walk(node) if isinstance(call, ast.Call)]
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
    ]  # outermost first
    if not in_each:
        return set()
    common = set.intersection(*map(set, in_each)) - {""}
    return set([name for name in in_each[0] if name in common][-1:])


def problem(row: Mapping) -> str | None:
    """MBPP's task where it is in the column `text`; None for any other row."""
    text = row.get("text")
    return text if isinstance(text, str) and source(row)[1] is not None else None


def asked(row: Mapping, text: str) -> str:
    """The task as the model reads it: HumanEval's as a function to complete, MBPP's, which does not
    name the function, with its first test."""
    column, tests = source(row)
    if tests is None:
        return text
    if prompt_code(row) and text.strip() == str(row["prompt"]).strip():
        return WHOLE.format(text.strip("\n"))
    if row.get(ENTRY) is None and column in LISTS:
        first = parsed(value_of(row, column))
        if isinstance(first, list | tuple) and str(first[0]).strip() not in text:
            return f"{text.rstrip()}\n\n{EXAMPLE.format(str(first[0]).strip())}"
    return text
