"""The package is small, and needs nothing but mpmath."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "answercheck"
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES, MAX_FILE_LINES, MAX_FUNCTION_LINES = 2600, 400, 60


def test_it_is_small():
    lines = {path.name: path.read_text().count("\n") for path in FILES}
    assert sum(lines.values()) <= MAX_LINES
    assert {name for name, count in lines.items() if count > MAX_FILE_LINES} == set()
    functions = [
        node
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None
    ]
    long = [node.name for node in functions if node.end_lineno - node.lineno >= MAX_FUNCTION_LINES]
    assert long == []


def test_it_imports_the_standard_library_and_mpmath_alone():
    known = sys.stdlib_module_names | {"mpmath", PACKAGE.name}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in names} <= known, path


def test_it_is_imported_without_the_rest():
    code = "import sys, answercheck; print(*{'torch', 'unslothrl', 'sympy'} & {*sys.modules})"
    found = subprocess.check_output([sys.executable, "-c", code], cwd=PACKAGE.parent, text=True)
    assert found.strip() == ""
