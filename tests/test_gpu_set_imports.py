"""Every name that the package imports, anywhere in its code, is there in the GPU set.

`import` statements inside of functions run on a GPU alone; here each is found by its syntax.
"""

import ast
import json
import os
import sys
from pathlib import Path

import pytest
from python_process import python

import unslothrl

pytestmark = pytest.mark.slow

PACKAGE = Path(unslothrl.__file__).parent
# What a user adds for a tracker, and a notebook has
NOT_INSTALLED = {"tensorboard", "trackio", "wandb", "IPython", "matplotlib"}


def imports(file: Path) -> list[tuple[str, str | None]]:
    """-> (module, name) of every import of a file that is not relative."""
    found: list[tuple[str, str | None]] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found += [(str(node.module), alias.name) for alias in node.names]
    return found


def module_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


CHECK = """
import importlib, json, os, sys
os.environ.update(UNSLOTH_ALLOW_CPU="1", UNSLOTH_COMPILE_DISABLE="1", HF_HUB_OFFLINE="1")
import simulated_driver
simulated_driver.set_gpus(simulated_driver.H100)
import unslothrl.backends.unsloth  # before what it patches, as in a learner
modules, names, not_installed = json.load(sys.stdin)
wrong = []
for module, name in names:
    try:
        found = importlib.import_module(module)
        if name and not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")
    except ImportError as error:
        if error.name not in not_installed:
            wrong.append(f"{module}: {error}")
for module in modules:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in not_installed:
            raise
print(json.dumps(wrong))
"""


def test_every_module_and_every_name_that_it_imports_is_there():
    files = [file for file in PACKAGE.rglob("*.py") if file.name != "__main__.py"]
    names = sorted({
        (module, name or "")
        for file in files
        for module, name in imports(file)
        if module.split(".")[0] not in NOT_INSTALLED
    })  # fmt: skip
    assert ("vllm.lora.utils", "parse_fine_tuned_lora_name") in names
    modules = sorted(map(module_of, files))
    assert "unslothrl.backends.unsloth" in modules and len(modules) > 200
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore"}
    given = json.dumps([modules, names, sorted(NOT_INSTALLED)])
    assert json.loads(python("-c", CHECK, input=given, env=environ).stdout.splitlines()[-1]) == []
