"""What is done on a node of a joined cluster before a run's processes start there.

Each function runs once on a node, in a process that Ray starts there. It gets and returns plain
values, since the package may be another version there.
"""

import os
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unslothrl import environments
from unslothrl.algorithms import objectives
from unslothrl.cluster import shipping, versions
from unslothrl.config.options import Config
from unslothrl.engines.vllm import adapter_room
from unslothrl.errors import UserError
from unslothrl.planning import tensor_parallel
from unslothrl.planning.machine import available_ram_mb, find_gpus, usable_cpus, usable_ram_mb
from unslothrl.variables import CARD_LIMIT, IMPORT_FOLDER
from unslothrl.weights import base_model, base_parts

SCRATCH_PREFIX = "unslothrl-node-"


def call(folder: str, name: str, *arguments: Any) -> Any:
    """Runs on a node, where the package may be missing or another version: so it is sent as it is
    written here. `folder` is where the driver has the package, which a node that shares its disk
    uses before its own."""
    import importlib
    import os
    import sys

    if os.path.isdir(os.path.join(folder, "unslothrl")) and folder not in sys.path[:1]:
        sys.path.insert(0, folder)
    try:
        function = getattr(importlib.import_module("unslothrl.cluster.on_node"), name)
    except (ImportError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return function(*arguments)


call.__module__ = "__main__"  # which Ray's pickle sends by its code, not by its name


def facts(paths: list[str]) -> dict[str, Any]:
    """What the node is and has; of each path, a hash of what is there."""
    return {
        "host": socket.gethostname(),
        "cpus": usable_cpus(),
        "memory_mb": usable_ram_mb(),
        "free_mb": available_ram_mb(),
        "versions": versions.installed(),
        "digests": {path: shipping.digest(path) for path in paths},
        "folder": str(IMPORT_FOLDER),
        "pythonpath": os.environ.get("PYTHONPATH", ""),
    }


def card(limit: str | None) -> dict[str, Any]:
    """In a process to which Ray has given a GPU: its id, and the card that torch finds there. The
    driver's `limit` of a card goes before the node's own."""
    import ray

    if limit:
        os.environ[CARD_LIMIT] = limit
    find_gpus.cache_clear()  # Ray may use this process again, with another of the node's GPUs
    gpus, problem = find_gpus()
    return {
        "id": ray.get_runtime_context().get_accelerator_ids()["GPU"][0],
        "gpu": asdict(gpus[0].limited()) if gpus else None,
        "problem": problem,
    }


def prepare(
    config: Config,
    sent: Sequence[str],
    session: str,
    job: str,
    alive: Sequence[str],
    *contents: shipping.Content,
) -> dict[str, Any]:
    """Finds or fetches the base, writes what was `sent` of the user's paths (`contents`) into a
    folder of the run's own, and reads the user's files. -> {"error": a line} where that fails.

    `session` and `job` are Ray's names of the cluster and of the run; the folders of its jobs that
    are no longer `alive` are removed.
    """
    scratch = scratch_folder(session, job, alive)
    moved: dict[str, str] = {}
    try:
        moved = shipping.write(dict(zip(sent, contents, strict=True)), scratch)
        here = shipping.with_paths(config, moved)
        objectives.load(here.learner)
        load_rewards(here)
        environments.check(here.environment)
        tensor_parallel.check_source(here)
        base = base_model.prepare(config.model)
    except UserError as error:
        shutil.rmtree(scratch, ignore_errors=True)
        return {"error": in_users_words(str(error), moved)}
    return {
        "config": here,
        "base": str(base),
        "parts": base_parts.of(base),
        "scratch": str(scratch),
    }


def load_rewards(config: Config) -> None:
    """Loads functions of the user's as an actor would. Raises UserError."""
    from unslothrl.runs.build import scorer_of

    scorer = scorer_of(config)
    try:
        scorer.check()
    finally:
        scorer.close()


def in_users_words(error: str, moved: Mapping[str, str]) -> str:
    """An error with the user's paths, and with what may be missing beside a file that was sent."""
    files = {path: here for path, here in moved.items() if path.endswith(".py")}
    if not any(here in error for here in files.values()):
        return error
    for path, here in files.items():
        error = error.replace(str(Path(here).parent), str(Path(path).parent))
    return (
        f"{error} (this node was sent the Python files beside it alone: copy what else it reads or "
        "imports to the same path there)"
    )


def scratch_folder(session: str, job: str, alive: Sequence[str]) -> Path:
    """A new folder for a run's files on this node, without those that killed runs have left."""
    for folder in room().glob(f"{SCRATCH_PREFIX}{session}-*"):
        if folder.name.removeprefix(f"{SCRATCH_PREFIX}{session}-").split("-")[0] not in alive:
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{SCRATCH_PREFIX}{session}-{job}-", dir=room()))


def remove(session: str, job: str) -> None:
    """Removes a run's folders on this node, also those of an earlier time on it: a node that was
    cut off joins again as another one."""
    for folder in room().glob(f"{SCRATCH_PREFIX}{session}-{job}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def room() -> Path:
    """Where the folders of runs are on this node."""
    return Path(adapter_room() or tempfile.gettempdir())
