"""Checks tests/private_interfaces.json, the list of what the package uses of vLLM, Unsloth,
bitsandbytes, Ray and TRL, against the package's code and the installed versions' source.

    python tools/private_interfaces.py     # what is not as listed; exit status 1

No type checker sees these objects, which reach us as Any. An entry is a dotted path, "MODULE:NAME"
for a name that a module's text must have, or "$VARIABLE", with `by`, our files that use it; `call`,
the names of the arguments that it is given ("a, b=, ..."); `replaced`, all parameters of a function
whose place ours takes; `read in`, the modules that read a variable; `or`, what is used where a
version lacks it.
"""

import ast
import json
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import library_source as source

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "unslothrl"
LIST = ROOT / "tests" / "private_interfaces.json"
LIBRARIES = {"vllm", "unsloth", "unsloth_zoo", "bitsandbytes", "ray", "trl"}
NOT_ON_A_CPU = {"unsloth", "unsloth_zoo"}  # the CPU set lacks them
VARIABLE = re.compile(r"[\"']((?:VLLM|UNSLOTH|RAY|BNB|TRL)_[A-Z0-9_]+)[\"']")
HUGGING_FACE = {  # what configurations of transformers and layers of PEFT may have
    "attn_logit_softcapping", "base_layer", "final_logit_softcapping", "layer_types", "logit_scale",
    "logits_scaling", "lora_A", "quant_state", "sliding_window", "use_sliding_window",
}  # fmt: skip
FORWARDED = {  # what **kwargs are: parameters of a class, or names in a module
    "ray.remote": "ray._common.ray_option_utils",
    "unsloth.models.loader.FastLanguageModel.get_peft_model": (
        "unsloth.models.llama.FastLlamaModel.get_peft_model"
    ),
    "vllm.LLM": "vllm.engine.arg_utils.EngineArgs",
}
BY_STRING = ("getattr", "hasattr", "setattr")
Entry = dict[str, Any]


def listed() -> dict[str, Entry]:
    return json.loads(LIST.read_text())


@cache
def texts() -> dict[str, str]:
    """The package's files, by their path in it."""
    return {str(p.relative_to(PACKAGE)): p.read_text() for p in sorted(PACKAGE.rglob("*.py"))}


# The list and our code


def names_of(path: str) -> list[str]:
    """The last name of a path; of "(a.B|c.D)" there are several."""
    if path.endswith(")"):
        return [each.rpartition(".")[2] for each in path.strip("()").split("|")]
    return [re.split(r"[.:$]", path)[-1]]


def has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None


def unlisted() -> list[str]:
    """Where the code and the list differ, one line each."""
    found, lines = listed(), []
    for path, entry in found.items():
        for file in entry["by"]:
            text = texts().get(file, "")
            if not any(has_word(text, name) for name in names_of(path)):
                lines.append(f"{path}: {file} does not use it")
        lines += [
            f"{path}: no file gives it {keyword}"
            for keyword in re.findall(r"(\w+)=", entry.get("call", ""))
            if not any(has_word(text, keyword) for text in texts().values())
        ]
    names = {name for path in found for name in re.findall(r"\w+", path)} | HUGGING_FACE
    files = {file for entry in found.values() for file in entry["by"]}
    for file, text in texts().items():
        lines += [f"{path}: {file} uses it" for path in imports(text) if path not in found]
        for variable in set(VARIABLE.findall(text)):
            if f"${variable}" not in found:
                lines.append(f"${variable}: {file} uses it")
        if file in files:
            lines += [f"whose is {name}? {file} uses it" for name in private(text) - names]
    return sorted(set(lines))


def imports(text: str) -> set[str]:
    """What a file imports of the libraries."""
    if not re.search(rf"^ *(import|from) ({'|'.join(LIBRARIES)})\b", text, re.MULTILINE):
        return set()
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if "." in alias.name}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {path for path in found if path.partition(".")[0] in LIBRARIES}


def private(text: str) -> set[str]:
    """Names that begin with an underscore, or that are asked for by a string, of objects that are
    not known to be ours, Python's or torch's."""
    nodes, found = list(ast.walk(ast.parse(text))), set()
    strings = {}  # of a loop's variable
    for node in nodes:
        if isinstance(node, ast.For | ast.comprehension) and isinstance(node.iter, ast.Tuple):
            strings[ast.unparse(node.target)] = node.iter.elts
    for node in nodes:
        if isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr):
            found.add(node.attr)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in BY_STRING:
            name = node.args[1]
            asked = strings.get(ast.unparse(name), [name])
            found |= {str(each.value) for each in asked if isinstance(each, ast.Constant)}
    return {name for name in found - well_known() if not name.startswith("__")}


@cache
def well_known() -> set[str]:
    """Names that the package defines, and members of Python's and torch's own classes."""
    import numpy as np
    import torch

    kinds: list[Any] = [torch, torch.Tensor, torch.nn.Module, np.ndarray, Path, OSError, type]
    kinds += [bool, bytes, dict, float, int, list, set, str, tuple, os, ast.parse]
    found = {name for kind in kinds for name in dir(kind)}
    for tree in map(ast.parse, texts().values()):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(getattr(node, "attr", getattr(node, "id", "")))
    return found


# The list and what is installed


def library_of(path: str) -> str:
    name = re.split(r"[._]", path.lstrip("$(").lower())[0]
    return "unsloth_zoo" if path.startswith("unsloth_zoo.") else name


@cache
def version_of(library: str) -> str:
    """As installed; the CPU build of vLLM has another name."""
    names = metadata.packages_distributions()[library]
    return f"{library} {min(map(metadata.version, names))}"


def found_at(path: str) -> list[source.Found]:
    """Where a library has it; of "(A|B).name" there may be two."""
    owners, _, rest = path.removeprefix("(").partition(")") if path[0] == "(" else (path, "", "")
    return [found for each in owners.split("|") if (found := source.resolve(each + rest))]


def parameters_of(path: str) -> list[source.Parameter] | None:
    known = [source.parameters(found) for found in found_at(path)]
    if None in known or not known:
        return None
    return list(dict.fromkeys(each for some in known for each in some or ()))


def problem(path: str, entry: Entry) -> str | None:
    """What the installed libraries lack of it; None where nothing does."""
    if path.startswith("$"):
        is_read = any(source.mentions(module, path[1:]) for module in entry["read in"])
        return None if is_read else f"not read in {' or '.join(entry['read in']) or 'it'}"
    if ":" in path:
        modules, _, name = path.rpartition(":")
        is_there = any(source.mentions(module, name) for module in modules.split("|"))
        return None if is_there else "not there"
    if not found_at(path):
        return None if any(map(found_at, entry.get("or", ()))) else "not there"
    known = parameters_of(path)
    if known is not None and "replaced" in entry:
        now = ", ".join(f"{p.name}=" if p.may_be_left_out else p.name for p in known)
        if now != entry["replaced"]:
            return f"its parameters are {now}, listed are {entry['replaced']}"
    return None if known is None or "call" not in entry else refused(path, known, entry["call"])


def refused(path: str, known: list[source.Parameter], call: str) -> str | None:
    """What of a call its parameters do not take."""
    given = [each for each in call.split(", ") if each]
    keywords = {each[:-1] for each in given if each.endswith("=")}
    positional = [each for each in given if each != "..." and not each.endswith("=")]
    by_position = [each.name for each in known if each.by_position]
    taken = by_position[: len(positional)]
    if positional != taken and not any(name.startswith("*") for name in by_position):
        return f"its parameters are {', '.join(taken)}, listed are {', '.join(positional)}"
    names = {each.name for each in known}
    if any(name.startswith("**") for name in names):
        names |= {keyword for keyword in keywords if is_forwarded(path, keyword)}
    if unknown := keywords - names:
        return f"takes no {', '.join(sorted(unknown))}"
    lacking = [p.name for p in known if p.is_required and p.name not in keywords | set(taken)]
    return f"needs {', '.join(lacking)}" if lacking and "..." not in given else None


def is_forwarded(path: str, keyword: str) -> bool:
    """Whether what a function does with its **keywords knows one of them."""
    target = FORWARDED.get(path)
    if target is None:
        return any(source.mentions(found.module, keyword) for found in found_at(path))
    known = parameters_of(target)
    return source.mentions(target, keyword) if known is None else keyword in {p.name for p in known}


def problems() -> Iterator[str]:
    """What of the list the installed versions lack, one line each."""
    for path, entry in listed().items():
        library = library_of(path)
        if source.file_of(library) is None:
            if library not in NOT_ON_A_CPU:
                yield f"{path}: {library} is not installed"
        elif reason := problem(path, entry):
            yield f"{path}: {version_of(library)}: {reason} ({', '.join(entry['by'])})"


if __name__ == "__main__":
    found = [*unlisted(), *problems()]
    print("\n".join(found) or f"{len(listed())} interfaces are as {LIST.name} has them")
    sys.exit(bool(found))
