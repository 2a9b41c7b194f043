"""Whether a run goes on, as far as its folder tells."""

import itertools
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unslothrl.tracking.run_folder import RunLock, lock_holder

RUNNING = "running"
KILLED = "killed"  # without a word: its process is gone
SILENT = "stopped?"  # it writes nothing, and its process is another machine's
SILENT_S = 600.0  # after which a run that writes nothing may have been stopped


def status(summary: Mapping[str, Any], folder: Path) -> str:
    """What the summary says; of a run without one whether it runs."""
    if said := summary.get("status"):
        return str(said)
    if lock_holder(folder).get("host") == platform.node():
        return KILLED if RunLock.is_free(folder) else RUNNING
    return RUNNING if has_changed(folder, time.time() - SILENT_S) else SILENT


def has_changed(folder: Path, since: float) -> bool:
    """Whether anything in a folder has, after a time in seconds since 1970."""
    files = itertools.chain([folder], folder.glob("*"), folder.glob("*/*"))
    return any(path.lstat().st_mtime > since for path in files)
