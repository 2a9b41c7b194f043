"""The structure of the package: small files, no import cycle, layers, one door to each library.

Every rule has a dict of known exceptions, each with its reason. An exception that is no longer
needed fails too: the lists only shrink. Nothing of the package is imported here, files are parsed.
"""

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "unslothrl"
MAX_LINES, MAX_FUNCTION_LINES = 400, 60

# Packages and modules of the root; each may import from its own layer and from those above it in
# this table, and no two packages import one another.
LAYERS = (
    ("", "errors", "text", "files", "records", "embedded"),  # "": __version__
    ("algorithms", "checkpoints", "sandbox", "system"),
    ("data",),
    ("environments", "rewards"),
    ("config", "dialogue"),
    ("weights",),
    ("planning", "tracking"),
    ("engines", "mirror"),
    ("actors", "backends"),
    ("export", "learners"),
    ("cluster",),
    ("training",),
    ("evaluation", "runs"),
    ("offline",),
    ("commands",),
    ("__main__",),
)
LIBRARIES = {  # library -> the only modules that import it
    "ray": ("cluster",),
    "vllm": ("engines",),
    "unsloth": ("backends.unsloth",),
    "unsloth_zoo": ("backends.unsloth",),
}

# Known exceptions, to be removed one by one.
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}
CYCLIC_IMPORTS: dict[tuple[str, str], str] = {}  # without these imports there is no cycle
TYPING_CYCLES: dict[tuple[str, str], str] = {}  # under TYPE_CHECKING alone
LAYER_BREAKS: dict[tuple[str, str], str] = {}
LIBRARY_BREAKS: dict[tuple[str, str], str] = {
    ("backends.unsloth", "vllm"): "asks vLLM's allocator which memory it holds",
}
NOT_NAMED: dict[str, str] = {}


@dataclass(frozen=True)
class Import:
    """`importer` and `imported` without the package's name in front; "": the package itself."""

    importer: str
    imported: str  # a module of ours, or a library
    is_ours: bool
    is_typing: bool  # under `if TYPE_CHECKING`

    @property
    def pair(self) -> tuple[str, str]:
        return self.importer, self.imported


@cache
def modules() -> dict[str, ast.Module]:
    return {name_of(path): ast.parse(path.read_text()) for path in files()}


def files() -> list[Path]:
    return sorted((ROOT / PACKAGE).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports() -> list[Import]:
    """All imports, wherever they stand: also in functions, and those by name."""
    return [
        Import(importer, *target, is_typing)
        for importer, tree in modules().items()
        for node, is_typing in statements(tree)
        for target in targets(node)
        if target != (importer, True)
    ]


def statements(tree: ast.AST) -> Iterator[tuple[ast.Import | ast.ImportFrom | ast.Call, bool]]:
    """-> (import or call, whether it is under `if TYPE_CHECKING`), in no order."""
    waiting = [(tree, False)]
    while waiting:
        node, is_typing = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Call):
            yield node, is_typing
        is_typing |= isinstance(node, ast.If) and last_name(node.test) == "TYPE_CHECKING"
        waiting += [(child, is_typing) for child in ast.iter_child_nodes(node)]


def last_name(node: ast.AST) -> str:
    """ "c" of "a.b.c", "" of what is no name."""
    return getattr(node, "attr", getattr(node, "id", ""))


def targets(node: ast.Import | ast.ImportFrom | ast.Call) -> Iterator[tuple[str, bool]]:
    """-> (module, whether it is ours) for each that a statement imports."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield resolved(alias.name)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0 and node.module, "imports are absolute here"
        for alias in node.names:
            is_module = f"{node.module}.{alias.name}".removeprefix(f"{PACKAGE}.") in modules()
            yield resolved(f"{node.module}.{alias.name}" if is_module else node.module)
    elif last_name(node.func) in ("import_module", "__import__"):
        yield from (resolved(arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def resolved(module: str) -> tuple[str, bool]:
    if module == PACKAGE or module.startswith(f"{PACKAGE}."):
        return module.removeprefix(PACKAGE).removeprefix("."), True
    return module.partition(".")[0], False


def compare(found: Iterable, known: Iterable, advice: str) -> None:
    found, known = set(found), set(known)
    assert not found - known, f"{sorted(found - known)}: {advice}"
    assert not known - found, f"{sorted(known - found)}: no longer an exception, remove it here"


def cycles(edges: set[tuple[str, str]]) -> list[list[str]]:
    """Groups of modules that reach one another (Tarjan 1972)."""
    following: dict[str, list[str]] = {}
    for importer, imported in sorted(edges):
        following.setdefault(importer, []).append(imported)
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for other in following.get(module, ()):
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                groups.append(sorted(stack[at:]))
            del stack[at:]

    for module in sorted(following):
        if module not in number:
            visit(module)
    return groups


def check_acyclic(edges: set[tuple[str, str]], known: dict[tuple[str, str], str]) -> None:
    left = edges - known.keys()
    assert cycles(left) == [], "these modules import one another: let a third hold what they share"
    needless = {pair for pair in known if pair not in edges or not cycles(left | {pair})}
    assert not needless, f"{sorted(needless)}: no longer an exception, remove it here"


IMPORTS = """
import os.path
from typing import TYPE_CHECKING
from unslothrl import __version__, files
if TYPE_CHECKING:
    from unslothrl.records import Task
def function():
    from unslothrl.rewards.builtin import boxed
    importlib.import_module("vllm.config")
"""


def test_imports_are_seen():
    seen = [
        (*target, is_typing)
        for node, is_typing in statements(ast.parse(IMPORTS))
        for target in targets(node)
    ]
    assert sorted(seen) == [
        ("", True, False),
        ("files", True, False),
        ("os", False, False),
        ("records", True, True),
        ("rewards.builtin.boxed", True, False),
        ("typing", False, False),
        ("vllm", False, False),
    ]


def test_cycles_are_seen():
    assert cycles({("a", "b"), ("b", "c"), ("c", "d")}) == []
    assert cycles({("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")}) == [["a", "b", "c"]]


def test_no_file_is_long():
    lengths = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in files()}
    long = [path for path, lines in lengths.items() if lines > MAX_LINES]
    compare(long, LONG_FILES, f"over {MAX_LINES} lines: split by what belongs together")


def test_no_function_is_long():
    long = [
        f"{module}:{node.name}"
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= MAX_FUNCTION_LINES
    ]
    compare(long, LONG_FUNCTIONS, f"over {MAX_FUNCTION_LINES} lines: give its parts names")


def test_no_import_cycle():
    edges = {each.pair for each in imports() if each.is_ours and not each.is_typing}
    check_acyclic(edges, CYCLIC_IMPORTS)


def test_no_cycle_of_packages():
    pairs = [each.pair for each in imports() if each.is_ours and not each.is_typing]
    edges = {(a.partition(".")[0], b.partition(".")[0]) for a, b in pairs if a and b}
    assert cycles({(a, b) for a, b in edges if a != b}) == []


def test_no_import_cycle_under_type_checking():
    edges = {each.pair for each in imports() if each.is_ours} - CYCLIC_IMPORTS.keys()
    check_acyclic(edges, TYPING_CYCLES)


def layer_of(module: str) -> int | None:
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        for layer, names in enumerate(LAYERS):
            if ".".join(parts[:length]) in names:
                return layer
    return None


def test_every_module_has_a_layer():
    assert [module for module in modules() if layer_of(module) is None] == [], "add it to LAYERS"
    names = {name for layer in LAYERS for name in layer}
    assert names - modules().keys() == set(), "no such module any more: remove it from LAYERS"


def test_a_layer_imports_none_above_it():
    breaks = [
        each.pair
        for each in imports()
        if each.is_ours and (layer_of(each.imported) or 0) > (layer_of(each.importer) or 0)
    ]
    compare(breaks, LAYER_BREAKS, "a lower layer imports a higher one")


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_imported_in_one_place(library):
    homes = LIBRARIES[library]
    breaks = {
        each.pair
        for each in imports()
        if not each.is_ours
        and each.imported == library
        and not any(f"{each.importer}.".startswith(f"{home}.") for home in homes)
    }
    known = {pair for pair in LIBRARY_BREAKS if pair[1] == library}
    compare(breaks, known, f"{library} is imported in {', '.join(homes)} alone")


def test_the_architecture_shows_the_layers():
    text = (ROOT / "docs" / "architecture.md").read_text()
    graph = text.partition("## What imports what")[2].partition("\n## ")[0]
    shown = [set(line.split()) for line in graph.splitlines() if line.startswith("    ")]
    assert shown == [{name for name in layer if name} for layer in LAYERS[:-1]]


def test_the_architecture_names_every_module_and_package():
    text = (ROOT / "docs" / "architecture.md").read_text()
    tree = text.partition("## What is where")[2].partition("\n## ")[0]
    named = set(re.findall(r"[\w.]+\.py|\w+/", tree))
    present = {
        child.name if child.is_file() else f"{child.name}/"
        for child in (ROOT / PACKAGE).iterdir()
        if child.suffix == ".py" or (child.is_dir() and any(child.rglob("*.py")))
    } - {"__init__.py", "__main__.py"}
    compare(present - named, NOT_NAMED, "name it in docs/architecture.md under What is where")


def _side(node, sign):
    """Whether a part of an f-string is padded on that side: "<" after its text, ">" before."""
    if not isinstance(node, ast.FormattedValue) or node.format_spec is None:
        return False
    if isinstance(node.value, ast.Constant) and node.value.value == "":
        return False  # an indent
    first = node.format_spec.values[0]  # type: ignore[attr-defined]
    return isinstance(first, ast.Constant) and str(first.value).startswith(sign)


def test_cells_of_a_line_are_separated_where_they_are_wider_than_planned():
    """`f"{name:<12}{value}"` runs both together where a name has 12 letters; so does
    `"".join(f"{value:>9}" for value in values)`."""
    for module, tree in modules().items():
        for node in ast.walk(tree):
            where = f"{module} line {getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.JoinedStr):
                for left, right in itertools.pairwise(node.values):
                    assert not (isinstance(right, ast.FormattedValue) and _side(left, "<")), where
                    assert not (isinstance(left, ast.FormattedValue) and _side(right, ">")), where
            elif isinstance(node, ast.Call) and last_name(node.func) == "join":
                for said in (getattr(part, "elt", None) for part in node.args):
                    if isinstance(said, ast.JoinedStr) and ast.unparse(node.func) == "''.join":
                        assert not _side(said.values[0], ">"), where
                        assert not _side(said.values[-1], "<"), where
