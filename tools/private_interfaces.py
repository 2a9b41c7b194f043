"""Lists what the package uses of vLLM, Unsloth, bitsandbytes, Ray and TRL in
tests/private_interfaces.json, and checks it against the installed versions' source.

    python tools/private_interfaces.py            # writes the list: `make interfaces`
    python tools/private_interfaces.py --check    # what is not as listed here; exit status 1
"""

import inspect
import json
import re
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import library_source as source
from interface_uses import UNKNOWN, Use, uses

LIST = Path(__file__).parents[1] / "tests" / "private_interfaces.json"
NOT_ON_A_CPU = {"unsloth", "unsloth_zoo"}  # the CPU set lacks them
FORWARDED = {  # what **kwargs are: parameters of a class, or names in a module
    "ray.remote": "ray._common.ray_option_utils",
    "unsloth.models.loader.FastLanguageModel.get_peft_model": (
        "unsloth.models.vision.FastBaseModel.get_peft_model"  # llama's takes all but one of them
    ),
    "vllm.LLM": "vllm.engine.arg_utils.EngineArgs",
}


def library_of(path: str) -> str:
    name = re.split(r"[._]", path.lstrip("$").lower())[0]
    return "unsloth_zoo" if path.startswith("unsloth_zoo.") else name


@cache
def version_of(library: str) -> str:
    """As installed; the CPU build of vLLM has another name."""
    names = metadata.packages_distributions()[library]
    return f"{library} {min(map(metadata.version, names))}"


def is_mentioned(modules: list[str], name: str) -> bool:
    return any(source.mentions(module, name) for module in modules)


def readers_of(variable: str) -> list[str]:
    """The modules of the installed libraries that read a variable, but for lists of all of them."""
    top = library_of(f"${variable}")
    tops = [top, "unsloth_zoo"] if top == "unsloth" else [top]
    read = re.compile(rf"envs\.{variable}\b|[\"']{variable}[\"']")
    modules = [module for library in tops for module in source.modules_of(library)]
    found = [m for m in modules if variable in source.text_of(m) and read.search(source.text_of(m))]
    found = [m for m in found if not re.search(r"test|bench|usage_lib|collect_env|\.envs$", m)]
    return found or [m for m in modules if source.mentions(m, variable)]


def signature_of(path: str) -> inspect.Signature | None:
    found = source.resolve(path)
    return found and source.signature(found)


def call_of(path: str, use: Use, before: str | None = None) -> str | None:
    """How it is called, by its parameters' names: "lora_request, priority=, ..."; None where it is
    not. The names are those of an installed library, unless they are `before`'s."""
    if use.positional is None:
        return None
    names = before.split(", ") if before is not None else positional(signature_of(path))
    names = [*names, *"_" * use.positional][: use.positional]
    keywords = [f"{name}=" for name in sorted(use.keywords)]
    return ", ".join([*names, *keywords, *(["..."] if use.is_open else [])])


def positional(signature: inspect.Signature | None) -> list[str]:
    listed = signature.parameters.values() if signature else ()
    return [each.name for each in listed if each.kind < each.KEYWORD_ONLY]


def replaced_of(path: str, use: Use, before: str | None = None) -> str | None:
    """All parameters of a function whose place we take; None where we do not. Likewise."""
    if not use.is_replaced or before is not None:
        return before if use.is_replaced else None
    return str(signature_of(path) or "()")[1:-1]


def problem(path: str, use: Use, entry: dict[str, Any]) -> str | None:
    """What the installed libraries lack of it; None where nothing does."""
    if path.startswith("$"):
        is_read = is_mentioned(entry["read in"], path[1:])
        return None if is_read else f"not read in {' or '.join(entry['read in']) or 'it'}"
    if ":" in path:
        modules, _, name = path.rpartition(":")
        return None if is_mentioned(modules.split("|"), name) else "not there"
    if source.resolve(path) is None:
        return None if any(map(source.resolve, use.either)) else "not there"
    for key, now in (("call", call_of(path, use)), ("replaced", replaced_of(path, use))):
        if entry.get(key) != now:
            return f"its parameters are {now}, listed are {entry.get(key)}"
    signature = signature_of(path)
    return None if signature is None or use.positional is None else refused(path, signature, use)


def refused(path: str, signature: inspect.Signature, use: Use) -> str | None:
    """What of a call its parameters do not take."""
    known = signature.parameters
    if any(each.kind is each.VAR_KEYWORD for each in known.values()):
        unknown = {name for name in use.keywords - known.keys() if not is_forwarded(path, name)}
        if unknown:
            return f"takes no {', '.join(sorted(unknown))}"
    given = use.keywords - {*positional(signature)[: use.positional]}  # of other calls
    bind = signature.bind_partial if use.is_open else signature.bind
    try:
        bind(*range(use.positional or 0), **dict.fromkeys(given))
    except TypeError as error:
        return str(error)
    return None


def is_forwarded(path: str, keyword: str) -> bool:
    """Whether what a function does with its **keywords knows one of them."""
    target = FORWARDED.get(path)
    if target is None:
        found = source.resolve(path)
        return found is not None and source.mentions(found.module, keyword)
    known = signature_of(target)
    return source.mentions(target, keyword) if known is None else keyword in known.parameters


def listed() -> dict[str, Any]:
    return json.loads(LIST.read_text()) if LIST.exists() else {}


@cache
def found_uses() -> dict[str, Use]:
    return uses({path: entry["by"] for path, entry in listed().items()})


def entry_of(path: str, use: Use, before: dict[str, Any], asks: bool = False) -> dict[str, Any]:
    """Of the list; `asks` an installed library for the names of its parameters."""
    entry: dict[str, Any] = {"by": sorted(use.files)}
    asks = asks and source.file_of(library_of(path)) is not None
    for key, describe in (("call", call_of), ("replaced", replaced_of)):
        names = describe(path, use, None if asks else before.get(key, ""))
        if names is not None:
            entry[key] = names
    if path.startswith("$"):
        entry["read in"] = before.get("read in", [])
    if use.either:
        entry["or"] = sorted(use.either)
    return entry


def write() -> None:
    before = listed()
    entries = {
        path: entry_of(path, use, before.get(path, {}), asks=True)
        for path, use in found_uses().items()
        if not path.startswith(UNKNOWN)
    }
    for path, entry in entries.items():
        if path.startswith("$") and not is_mentioned(entry["read in"], path[1:]):
            entry["read in"] = sorted([*entry["read in"], *readers_of(path[1:])[:3]])
    lines = [f"{json.dumps(path)}: {json.dumps(entry)}" for path, entry in entries.items()]
    LIST.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def unlisted() -> list[str]:
    """Where the code and the list differ, one line each."""
    found, known = found_uses(), listed()
    lines = [
        f"{path}: {', '.join(found[path].files)} uses it" for path in found.keys() - known.keys()
    ]
    lines += [f"{path}: nothing uses it" for path in known.keys() - found.keys()]
    for path in found.keys() & known.keys():
        entry = known[path]
        if entry != (now := entry_of(path, found[path], entry)):
            lines.append(f"{path}: it is {json.dumps(now)}")
    return sorted(lines)


def problems() -> list[str]:
    """What of the list the installed versions lack, one line each."""
    found, lines = found_uses(), []
    for path, entry in listed().items():
        use, library = found.get(path, Use()), library_of(path)
        if source.file_of(library) is None:
            if library not in NOT_ON_A_CPU:
                lines.append(f"{path}: {library} is not installed")
        elif reason := problem(path, use, entry):
            lines.append(f"{path}: {version_of(library)}: {reason} ({', '.join(entry['by'])})")
    return lines


if __name__ == "__main__":
    if "--check" not in sys.argv:
        write()
    found = unlisted() + problems()
    print("\n".join(found) or f"{len(listed())} interfaces are as {LIST.name} has them")
    sys.exit(bool(found))
