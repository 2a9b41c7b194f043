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

import psutil

from unslothrl.cluster import joining
from unslothrl.errors import UserError
from unslothrl.system import stopping
from unslothrl.system.machine import Machine

LEAST_ROOM = 100 << 20  # bytes, in Ray's folder
# Ray keeps the last 100,000 calls for its dashboard, which takes 350 MB by then.
QUIET = {"task_events_report_interval_ms": 0}
SERVERS = ("gcs_server", "raylet")
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
    with loopback_alone(ray):
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


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside it `owner` has another value of that name."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def keep_others_out(session: Path) -> None:
    """Ray lets every user of the machine write into its session's folder, and replace the sockets
    in it, through which processes exchange pickles; and replace the folder itself."""
    with contextlib.suppress(OSError):
        session.chmod(0o700)
        session.parent.chmod(session.parent.stat().st_mode | stat.S_ISVTX)  # where it is ours


@contextlib.contextmanager
def undisturbed(ray: Any) -> Iterator[None]:
    """Inside it signals wait while Ray's C++ part starts, a second or two: a process that stops in
    between may crash when it ends. Ray would also answer SIGTERM itself, then and later."""
    worker, utils = ray._private.worker, ray._private.utils
    connect = worker.connect
    on_termination = signal.getsignal(signal.SIGTERM)

    def connect_undisturbed(*arguments: Any, **keywords: Any) -> None:
        with stopping.held(may_hang=True):
            connect(*arguments, **keywords)
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, on_termination)  # over that of the C++ part

    with (
        replaced(worker, "connect", connect_undisturbed),
        replaced(utils, "set_sigterm_handler", lambda handler: None),
    ):
        yield


class Started:
    """The processes of the Ray that this process starts: its servers, and what these start.

    A Ray that is ended while it starts leaves its agents behind, which notice it a minute later.
    """

    def __init__(self) -> None:
        self.seen: set[psutil.Process] = set()

    def look(self) -> list[psutil.Process]:
        """To be called while the servers live: what they have started is nobody's after that.
        -> the servers"""
        servers = []
        for server in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if server.name() in SERVERS:
                    servers.append(server)
                    self.seen |= {server, *server.children(recursive=True)}
        return servers

    def end(self) -> None:
        """Ends at once what is left of them."""
        for server in self.look():
            with contextlib.suppress(psutil.Error):
                server.suspend()  # it starts nothing more
        self.look()
        for process in self.seen:
            with contextlib.suppress(psutil.Error):
                process.kill()


@contextlib.contextmanager
def loopback_alone(ray: Any) -> Iterator[None]:
    """Inside it Ray starts at the loopback address, as it does on macOS, where all its servers
    listen there alone: `ray.init` (2.60) takes the network's even if it is given the loopback's."""
    constants = ray._private.ray_constants
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def object_store(machine: Machine) -> tuple[int, str | None]:
    """-> (bytes, folder or None for /dev/shm) for Ray's object store on a small host.

    Adapters and rollouts pass through it, so a tenth of memory is plenty; where /dev/shm is too
    small for that (64 MB in a container), the store lies on disk.
    """
    size = int(min(max(0.1 * machine.ram_mb, 128), 4096)) * 2**20
    if machine.shm_mb * 2**20 > 1.2 * size:
        return size, None
    return size, "/tmp"
