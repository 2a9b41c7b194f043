"""The structure of the package: small files, no import cycle, layers, one door to each library.

Nothing of the package is imported here, files are parsed.
"""

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
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
    ("planning", "sharding", "tracking"),
    ("engines", "mirror"),
    ("actors", "backends"),
    ("export", "learners"),
    ("cluster",),
    ("training",),
    ("runs",),
    ("offline",),
    ("ui",),
    ("commands",),
    ("__main__",),
)
LAYER = {name: layer for layer, names in enumerate(LAYERS) for name in names}
LIBRARIES = {  # library -> the only packages and modules that import it
    "ray": ("cluster",),
    "vllm": ("engines", "backends.unsloth"),  # which asks its allocator what memory it holds
    "unsloth": ("backends.unsloth",),
    "unsloth_zoo": ("backends.unsloth",),
}
EXPORTED = ("", "commands.api")  # unslothrl.train and its like, found when they are asked for


@dataclass(frozen=True)
class Import:
    """`importer` and `imported` without the package's name in front; "": the package itself."""

    importer: str
    imported: str  # a module of ours, or a library
    is_ours: bool
    is_typing: bool  # under `if TYPE_CHECKING`


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
        if target != (importer, True) and (importer, target[0]) != EXPORTED
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


def check_acyclic(edges: Iterable[tuple[str, str]]) -> None:
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for importer, imported in edges:
        if importer != imported:
            sorter.add(importer, imported)
    sorter.prepare()  # it raises a CycleError, which names the cycle


def test_no_file_or_function_is_long():
    """Split by what belongs together; give parts names."""
    assert [path for path in files() if path.read_text().count("\n") > MAX_LINES] == []
    assert [
        f"{module}:{node.name}"
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= MAX_FUNCTION_LINES
    ] == []


def test_no_import_cycle():
    """Neither of modules, those under `if TYPE_CHECKING` included, nor of packages."""
    ours = [each for each in imports() if each.is_ours]
    check_acyclic((each.importer, each.imported) for each in ours)
    packages = [
        (each.importer.partition(".")[0], each.imported.partition(".")[0])
        for each in ours
        if not each.is_typing and each.importer and each.imported
    ]
    check_acyclic(packages)
    with pytest.raises(CycleError):
        check_acyclic([("a", "b"), ("b", "c"), ("c", "a")])


def layer_of(module: str) -> int | None:
    while module not in LAYER and "." in module:
        module = module.rpartition(".")[0]
    return LAYER.get(module)


def test_every_module_has_a_layer():
    assert [module for module in modules() if layer_of(module) is None] == [], "add it to LAYERS"
    assert LAYER.keys() - modules().keys() == set(), "no such module: remove it from LAYERS"


def test_a_layer_imports_none_above_it():
    assert [
        each
        for each in imports()
        if each.is_ours and (layer_of(each.imported) or 0) > (layer_of(each.importer) or 0)
    ] == []


def test_a_library_is_imported_in_one_place():
    assert [
        each
        for each in imports()
        if not each.is_ours
        and each.imported in LIBRARIES
        and not f"{each.importer}.".startswith(tuple(f"{x}." for x in LIBRARIES[each.imported]))
    ] == []


def test_the_architecture_shows_the_layers_and_names_every_module_and_package():
    text = (ROOT / "docs" / "architecture.md").read_text()
    graph = text.partition("## What imports what")[2].partition("\n## ")[0]
    shown = [set(line.split()) for line in graph.splitlines() if line.startswith("    ")]
    assert shown == [{name for name in layer if name} for layer in LAYERS[:-1]]
    tree = text.partition("## What is where")[2].partition("\n## ")[0]
    named = set(re.findall(r"[\w.]+\.py|\w+/", tree))
    present = {
        child.name if child.is_file() else f"{child.name}/"
        for child in (ROOT / PACKAGE).iterdir()
        if child.suffix == ".py" or (child.is_dir() and any(child.rglob("*.py")))
    } - {"__init__.py", "__main__.py"}
    assert present - named == set()


def is_padded(node: ast.AST, sign: str) -> bool:
    """Whether a part of an f-string is padded on that side: "<" after its text, ">" before."""
    if not isinstance(node, ast.FormattedValue) or node.format_spec is None:
        return False
    is_indent = isinstance(node.value, ast.Constant) and node.value.value == ""
    return not is_indent and ast.unparse(node.format_spec)[2:].startswith(sign)  # of f'...'


def neighbours(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """-> values of f-strings, one right after the other in what is printed."""
    pairs: list[tuple[ast.AST, ast.AST]] = []
    if isinstance(node, ast.JoinedStr):
        pairs += itertools.pairwise(node.values)
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "''.join":
        texts = [getattr(part, "elt", None) for part in node.args]
        pairs += [(t.values[-1], t.values[0]) for t in texts if isinstance(t, ast.JoinedStr)]
    for pair in pairs:
        if all(isinstance(part, ast.FormattedValue) for part in pair):
            yield pair


def test_cells_of_a_line_are_separated_where_they_are_wider_than_planned():
    """`f"{name:<12}{value}"` runs both together where a name has 12 letters; so does
    `"".join(f"{value:>9}" for value in values)`."""
    assert [
        (module, ast.unparse(node))
        for module, tree in modules().items()
        for node in ast.walk(tree)
        for left, right in neighbours(node)
        if is_padded(left, "<") or is_padded(right, ">")
    ] == []


AVOIDED = {  # a pattern -> what is written instead
    r"(?<!model )(?<![-_])\bcards?\b(?! must be| \n)": "GPU",  # but for the option's name
    r"\bgo(?:es)? on\b|\bwent on\b": "continue",
    r"\bin vain\b": "without success, or how often",
    r"\bmend(?:s|ed)?\b": "fix, remedy",
    r"(?<!there )\b(?:is|are) none\b": "there is no ..., or none is ...",
    r"\bheed(?:s|ed)?\b": "handle, obey",
}
CODE = re.compile(r"```.*?```|`[^`]*`|^ {4}[^\n]*$|\]\([^)]*\)", re.MULTILINE | re.DOTALL)


def texts_of(path: Path) -> str:
    """What a person reads of a file: prose, or a program's strings of several words."""
    if path.suffix == ".md":
        return CODE.sub("", path.read_text())
    if path.suffix == ".toml":
        return "\n".join(re.findall(r"^#(.*)$", path.read_text(), re.MULTILINE))
    nodes = [*ast.walk(modules()[name_of(path)])]
    documents = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    constants = [n.value for n in nodes if isinstance(n, ast.Constant) and id(n) not in documents]
    texts = [text for text in constants if isinstance(text, str) and " " in text]
    return "\n".join(CODE.sub("", text) for text in texts)


def test_words_that_are_avoided():
    pages = [*ROOT.glob("[AR]*.md"), *ROOT.glob("CON*.md")]
    pages += [*ROOT.glob("docs/*.md"), *ROOT.glob("recipes/*")]
    assert [
        f"{path}: {text[max(0, match.start() - 30) : match.end() + 20]}: {instead}"
        for path in (*pages, *files())
        for text in [texts_of(path)]
        for pattern, instead in AVOIDED.items()
        for match in re.finditer(pattern, text)
    ] == []
