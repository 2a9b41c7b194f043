"""The Ray that a run starts itself, on the loopback address, with a token, without a dashboard.

Other machines join a Ray that `ray start` has started, and `--ray_address` then names.
"""

import contextlib
import os
import shutil
import signal
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from unslothrl.cluster import joining
from unslothrl.errors import UserError
from unslothrl.system import stopping
from unslothrl.system.machine import Machine

LEAST_ROOM = 100 << 20  # bytes, in Ray's folder
# Ray keeps the last 100,000 calls for its dashboard, which takes 350 MB by then.
QUIET = {"task_events_report_interval_ms": 0}
TMPDIR = "RAY_TMPDIR"  # read by Ray


def check() -> None:
    """Raises UserError where Ray would start, and fail later on a full disk."""
    path = os.environ.get(TMPDIR) or "/tmp"
    free = shutil.disk_usage(path).free
    if free < LEAST_ROOM:
        raise UserError(
            f"{path} has {free / 2**20:.0f} MB free, and Ray needs about {LEAST_ROOM >> 20} for "
            f"its logs: free some space, or set {TMPDIR} to a folder on another disk"
        )


def start(ray: Any, machine: Machine) -> Any:
    """Starts Ray on this machine; it ends with this process. -> Ray's context"""
    joining.ensure_token(os.environ)
    size, folder = object_store(machine)
    if folder is not None:
        os.environ["RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE"] = "1"
    # As on macOS, where all of Ray's servers listen at the loopback address alone: `ray.init`
    # (2.60) takes the network's even if it is given the loopback's.
    with mock.patch.object(ray._private.ray_constants, "ENABLE_RAY_CLUSTER", False):
        context = ray.init(
            address="local",
            num_cpus=machine.cpus,
            num_gpus=len(machine.gpus),
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=size,
            _plasma_directory=folder,
            _system_config=QUIET,
        )
    keep_others_out(Path(context.address_info["session_dir"]))
    return context


def keep_others_out(session: Path) -> None:
    """Ray lets every user of the machine write into its session's folder, and replace the sockets
    in it, through which processes exchange pickles; and replace the folder itself."""
    session.chmod(0o700)
    if session.parent.stat().st_uid == os.getuid():
        session.parent.chmod(session.parent.stat().st_mode | stat.S_ISVTX)


@contextlib.contextmanager
def undisturbed(ray: Any) -> Iterator[None]:
    """Inside it, where Ray starts or is joined, signals wait: a process that stops while Ray's C++
    part starts may crash when it ends, and one that stops before that leaves Ray's agents behind.
    Ray would also answer SIGTERM itself, then and later."""
    on_termination = signal.getsignal(signal.SIGTERM)
    utils = ray._private.utils
    with stopping.held(may_hang=True), mock.patch.object(utils, "set_sigterm_handler"):
        yield
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_termination)  # over that of the C++ part


def object_store(machine: Machine) -> tuple[int, str | None]:
    """-> (bytes, folder or None for /dev/shm) for Ray's object store on a small host.

    Adapters and rollouts pass through it, so a tenth of memory is plenty; where /dev/shm is too
    small for that (64 MB in a container), the store lies on disk.
    """
    size = int(min(max(0.1 * machine.ram_mb, 128), 4096)) * 2**20
    if machine.shm_mb * 2**20 > 1.2 * size:
        return size, None
    return size, "/tmp"
