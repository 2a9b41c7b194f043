"""Tests that are Python: assertions about what a program's functions return.

    test         functions check(candidate) (HumanEval), test_... or cases of unittest's, as text
    test_list    a list of assertions (MBPP); also in `tests`, `test_cases` and `testcase`

with `entry_point`, the function that `candidate` stands for, and code that runs before the tests
(`SETUPS`). What the row's `prompt` defines, where it is Python, is there for the program and for
the tests, each with its own: a program cannot replace a helper that the tests use.

The tests run in one sandbox, the program in another (`sandbox.remote`). A name that neither the
tests nor the row's code define is the program's. Names of Python's own are Python's, unless the
tests call nothing else.
"""

import ast
import builtins
import symtable
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from unslothrl.data.columns import UnusableRow, parsed, value_of

TEXTS = ("test", "tests", "test_cases", "testcase")  # that may be Python
LISTS = ("test_list", "tests", "test_cases", "testcase")  # of assertions
SETUPS = ("test_setup_code", "setup_code", "test_imports")
ENTRY = "entry_point"
EXAMPLE = "Your code should pass this test:\n\n{}"
WHOLE = "Complete this function. Write all of it, with what it needs:\n\n```python\n{}\n```"
Node = TypeVar("Node", bound=ast.stmt)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


def read(row: Mapping) -> dict[str, Any] | None:
    """What `sandbox.run_tests` takes; None where a row has no such tests. UnusableRow."""
    column, text = source(row)
    if text is None:
        return None
    tree = parsed_python(text, column)
    entry = entry_point(row, tree)
    setup = parsed_python(setup_of(row), "test_setup_code")
    prelude = prompt_code(row) + [node for node in setup.body if isinstance(node, _DEFINITIONS)]
    rest = [node for node in setup.body if not isinstance(node, _DEFINITIONS)]
    functions = of_kind(tree, ast.FunctionDef)
    tests = {
        "assertions": text,
        "entry_point": entry,
        "prelude": code_of(prelude),
        "setup": code_of(rest),
        "has_check": entry is not None and any(is_check(each) for each in functions),
        "functions": [each.name for each in functions if is_test(each, column)],
        "cases": [each.name for each in of_kind(tree, ast.ClassDef) if is_case(each)],
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
    try:
        compile(text, column, "exec", dont_inherit=True)  # finds more than the parser does
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnusableRow(f"column {column} is not Python ({error!s:.80})") from None


def entry_point(row: Mapping, tree: ast.Module) -> str | None:
    """The function that is tested, or an expression such as Solution().add. UnusableRow."""
    value = row.get(ENTRY)
    takes_one = any(isinstance(node, ast.FunctionDef) and is_check(node) for node in tree.body)
    if value is None and takes_one:
        defined = [each.name for each in prompt_code(row) if isinstance(each, ast.FunctionDef)]
        if not defined:
            raise UnusableRow(f"column test has check(candidate), and there is no column {ENTRY}")
        return defined[-1]
    if value is None:
        return None
    try:
        node: ast.AST = ast.parse(value, mode="eval").body
    except (SyntaxError, ValueError, TypeError):
        raise UnusableRow(f"column {ENTRY} is no name: {value!r:.60}") from None
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    if not isinstance(node, ast.Name):
        raise UnusableRow(f"column {ENTRY} is no name: {value!r:.60}")
    return value


def setup_of(row: Mapping) -> str:
    """The code that runs before the tests."""
    values = [parsed(row.get(name)) for name in SETUPS]
    parts = [part for value in values for part in (value if isinstance(value, list) else [value])]
    return "\n".join(part for part in parts if isinstance(part, str))


def prompt_code(row: Mapping) -> list[ast.stmt]:
    """The statements of a prompt that is Python, as HumanEval's are; [] for any other."""
    prompt = row.get("prompt")
    if not isinstance(prompt, str) or "def " not in prompt:
        return []
    try:
        return ast.parse(prompt).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


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
    """Whether this is a class of unittest's."""
    names = (getattr(base, "attr", getattr(base, "id", "")) for base in node.bases)
    return "TestCase" in names


def of_kind(tree: ast.Module, kind: type[Node]) -> list[Node]:
    """The statements of a module that are of a kind."""
    return [node for node in tree.body if isinstance(node, kind)]


def check_that_they_test(tree: ast.Module, tests: Mapping[str, Any], column: str) -> None:
    """UnusableRow where nothing is asserted, or nothing would be run."""
    asserts = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert | ast.Raise)
        or (isinstance(node, ast.Attribute) and node.attr.startswith(("assert", "raises")))
    ]
    if not asserts:
        raise UnusableRow(f"column {column} asserts nothing")
    outside = [node for node in tree.body if not isinstance(node, _DEFINITIONS)]
    at_top = any(isinstance(node, ast.Assert) for each in outside for node in ast.walk(each))
    if not (at_top or tests["has_check"] or tests["functions"] or tests["cases"]):
        raise UnusableRow(
            f"column {column} runs no test: write assertions, check(candidate) or test_ functions"
        )


def free_names(text: str) -> set[str]:
    """The names that code reads and does not define."""
    table = symtable.symtable(text, "tests.py", "exec")
    defined = {
        each.get_name()
        for each in table.get_symbols()
        if each.is_assigned() or each.is_imported() or each.is_namespace()
    }
    return {name for each in tables(table) for name in globals_of(each)} - defined


def tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from tables(child)


def globals_of(table: symtable.SymbolTable) -> Iterator[str]:
    is_module = table.get_type() == "module"
    for each in table.get_symbols():
        if each.is_referenced() and (each.is_global() or is_module):
            yield each.get_name()


def is_module(name: str, nodes: list[ast.stmt]) -> bool:
    """Whether a name that nobody defines is a module that the tests forgot to import: math.isclose
    must not be the program's."""
    if name not in sys.stdlib_module_names and name not in ("np", "numpy"):
        return False
    uses = [node for each in nodes for node in ast.walk(each)]
    in_attributes = {
        id(node.value)
        for node in uses
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    named = [node for node in uses if isinstance(node, ast.Name) and node.id == name]
    return bool(named) and all(id(node) in in_attributes for node in named)


def called_everywhere(tree: ast.Module) -> set[str]:
    """Of tests that call Python's own names alone, such as `sum(10, 15) == 6`: the innermost that
    every assertion calls."""
    in_each: list[list[str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
            in_each.append([getattr(each.func, "id", "") for each in calls])  # outermost first
    common = set.intersection(*map(set, in_each)) - {""} if in_each else set()
    innermost = [name for name in reversed(in_each[0] if in_each else []) if name in common]
    return set(innermost[:1])


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
