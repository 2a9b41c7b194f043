"""Names and parameters in the source of an installed library, which is read and not imported: the
CUDA build of vLLM does not import without a GPU's driver.
"""

import ast
import copy
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple


class Found(NamedTuple):
    """A definition: the last of that name where there are several."""

    module: str
    node: ast.AST


@cache
def file_of(module: str) -> Path | None:
    top, *rest = module.split(".")
    spec = PathFinder.find_spec(top)
    for folder in (spec and spec.submodule_search_locations) or ():
        place = Path(folder).joinpath(*rest)
        for path in (place / "__init__.py", place.with_suffix(".py")):
            if path.exists():
                return path
    return None


@cache
def text_of(module: str) -> str:
    path = file_of(module)
    return "" if path is None else path.read_text("utf-8")


def modules_of(package: str) -> list[str]:
    """A package's modules, those of its packages too."""
    path = file_of(package)
    if path is None or path.name != "__init__.py":
        return [package]
    root = path.parent
    parts = [each.relative_to(root).with_suffix("").parts for each in sorted(root.rglob("*.py"))]
    return [".".join((package, *p)).removesuffix(".__init__") for p in parts]


def mentions(module: str, name: str) -> bool:
    """Whether a word is in a module's text; "a.*": in a module of the package."""
    if module.endswith(".*"):
        return any(mentions(each, name) for each in modules_of(module[:-2]))
    text, word = text_of(module), rf"(?<!\w){re.escape(name)}(?!\w)"
    return name in text and re.search(word, text) is not None


@cache
def definitions(module: str) -> dict[str, ast.AST]:
    """A module's own names; "*": its star imports, one list of nodes."""
    return names_in(ast.parse(text_of(module)).body)


def names_in(body: list[ast.stmt]) -> dict[str, ast.AST]:
    found: dict[str, ast.AST] = {}
    for node in statements(body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for each in (name for target in targets for name in ast.walk(target)):
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                    found[each.id] = node
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = alias.asname or alias.name
                found[f"*{len(found)}" if name == "*" else name] = ast.ImportFrom(
                    node.module, [alias], node.level
                )
    return found


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Also those under `if`, `try` and `with`."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody", "handlers"):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for each in getattr(node, name, ()):
                    yield from statements(each.body if name == "handlers" else [each])


def find(module: str, name: str, seen: set[tuple[str, str]]) -> Found | None:
    """A name of a module, through what it imports from the same or another library; not again
    where that was `seen` to lead in a circle."""
    if (module, name) in seen:
        return None
    seen.add((module, name))
    found = definitions(module)
    node = found.get(name)
    if node is not None and not isinstance(node, ast.ImportFrom):
        return Found(module, node)
    for each in [node] if node else [n for key, n in found.items() if key.startswith("*")]:
        assert isinstance(each, ast.ImportFrom)
        origin = imported_from(module, each)
        target = name if each.names[0].name == "*" else each.names[0].name
        if file_of(origin) is not None and (there := follow(f"{origin}.{target}", seen)):
            return there
    return None


def imported_from(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    path = file_of(module)
    parts = module.split(".")
    up = node.level - (path is not None and path.name == "__init__.py")
    return ".".join([*parts[: len(parts) - up], *([node.module] if node.module else [])])


@cache
def resolve(path: str) -> Found | None:
    """What a dotted path names: module, then a name in it, then members of classes."""
    return follow(path, set())


def follow(path: str, seen: set[tuple[str, str]]) -> Found | None:
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        module, rest = ".".join(parts[:length]), parts[length:]
        if file_of(module) is None:
            continue
        if not rest:
            return Found(module, ast.Module([], []))
        found = find(module, rest[0], seen)
        for name in rest[1:]:
            found = found and member(found, name)
        return found
    return None


def member(found: Found, name: str) -> Found | None:
    """Of a class, or of the one instance of it that a name stands for: a method, a field or what a
    method sets on `self`; its bases' too."""
    value = getattr(found.node, "value", None)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        kind = find(found.module, value.func.id, set())
        return kind and member(kind, name)
    if not isinstance(found.node, ast.ClassDef):
        return None
    if (node := members(found.module, found.node).get(name)) is not None:
        return Found(found.module, node)
    return next(filter(None, (member(base, name) for base in bases(found))), None)


def class_of(kind: Found, found: Found) -> str:
    """The path of that of a class and its bases which has a member."""
    assert isinstance(kind.node, ast.ClassDef)
    if kind.module == found.module and found.node in members(kind.module, kind.node).values():
        return f"{kind.module}.{kind.node.name}"
    return next(filter(None, (class_of(base, found) for base in bases(kind))), "")


@cache
def members(module: str, node: ast.ClassDef) -> dict[str, ast.AST]:
    found: dict[str, ast.AST] = {
        each.attr: each
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id in ("self", "cls")
    }
    return found | names_in(node.body)


def bases(found: Found) -> list[Found]:
    assert isinstance(found.node, ast.ClassDef)
    named = [ast.unparse(base).partition("[")[0] for base in found.node.bases]
    there = [resolve(f"{found.module}.{name}") or resolve(name) for name in named]
    return [each for each in there if each is not None and isinstance(each.node, ast.ClassDef)]


def signature(found: Found) -> inspect.Signature | None:
    """Of a function, or of what makes an object of a class; None where the source does not say."""
    node = found.node
    if isinstance(node, ast.ClassDef):
        is_dataclass = any("dataclass" in ast.unparse(each) for each in node.decorator_list)
        has_own = "__init__" in names_in(node.body)
        init = member(found, "__init__") if has_own or not is_dataclass else None
        return inspect.Signature(fields(found)) if init is None else signature(init)
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    bare, nothing = copy.deepcopy(node.args), ast.Constant(None)
    for each in ast.walk(bare):
        if isinstance(each, ast.arg):
            each.annotation = None
    bare.defaults = [nothing for _ in bare.defaults]
    bare.kw_defaults = [default and nothing for default in bare.kw_defaults]
    made = inspect.signature(eval(f"lambda {ast.unparse(bare)}: None"))
    listed = list(made.parameters.values())
    return inspect.Signature(listed[listed[:1] != [] and listed[0].name in ("self", "cls") :])


def fields(found: Found) -> list[inspect.Parameter]:
    """Of a dataclass, named tuple or struct."""
    assert isinstance(found.node, ast.ClassDef)
    listed = {each.name: each for base in bases(found) for each in fields(base)}
    for node in found.node.body:
        if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
            default = inspect.Parameter.empty if node.value is None else None
            kind, name = inspect.Parameter.POSITIONAL_OR_KEYWORD, ast.unparse(node.target)
            listed[name] = inspect.Parameter(name, kind, default=default)
    return list(listed.values())
