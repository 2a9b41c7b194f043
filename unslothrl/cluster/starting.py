"""The Ray that a run starts itself: its ports, its address, its temporary folder, its token.

Nothing of it listens where others can use it without the token, and there is no dashboard. It lies
on the loopback address, unless it is given another or `--ray_port`, with which other machines can
join; `--ray_worker_ports LOW-HIGH` then has all the other ports of this machine that they connect
to: LOW is the node manager's, LOW + 1 the object manager's, and the workers take the rest.
"""

import contextlib
import functools
import os
import re
import shutil
import signal
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from unslothrl import stopping
from unslothrl.cluster import joining
from unslothrl.config.options import Config
from unslothrl.errors import UserError
from unslothrl.planning.machine import Machine

SESSION = "/session_2026-11-21_20-59-29_205618_4194304/sockets/plasma_store"  # below Ray's folder
LEAST_ROOM = 100 << 20  # bytes, in Ray's folder
MOST_SOCKET = 107  # bytes of a socket's path on Linux
SPARE_PORTS = 16  # besides one for each process: Ray's own workers, and those on their way out
# Ray keeps the last 100,000 calls for its dashboard, which takes 350 MB by then.
QUIET = {"task_events_report_interval_ms": 0}
SERVERS = ("gcs_server", "raylet")
TMPDIR = "RAY_TMPDIR"  # read by Ray


def check(config: Config) -> None:
    """Raises UserError where Ray could not start with the options that it is given."""
    node_ip = config.ray_node_ip
    if node_ip is not None:
        check_bind("ray_node_ip", f"{node_ip} (see `ip -4 address`)", node_ip, 0)
    check_temp_dir(config.ray_temp_dir)
    if config.ray_port is not None:
        check_bind("ray_port", str(config.ray_port), node_ip, config.ray_port)
        check_token(config.ray_port)
    if config.ray_worker_ports is not None:
        low, high = port_range(config.ray_worker_ports)
        least = config.number_of_processes + SPARE_PORTS
        if high - low + 1 < least:
            raise UserError(
                f"ray_worker_ports {low}-{high}: {config.number_of_processes} processes need at "
                f"least {least} ports: set {low}-{low + least - 1}"
            )
        for port in (low, low + 1):
            check_bind("ray_worker_ports", f"port {port}", node_ip, port)


def check_bind(option: str, what: str, host: str | None, port: int) -> None:
    """Raises UserError where nothing can listen there."""
    try:
        socket.create_server((host or "", port)).close()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise UserError(
            f"{option} {what} cannot be used ({reason}): set another, or end the program that "
            "listens there"
        ) from None


def check_token(port: int) -> None:
    """A token that is made for this run alone would keep every other machine out."""
    is_on = os.environ.get(joining.MODE, "token") == "token"
    if is_on and joining.token_source(os.environ) is None:
        raise UserError(
            f"ray_port {port}: machines that join must have this one's token, and there is none: "
            f"run `ray get-auth-token --generate`, and copy {joining.DEFAULT_TOKEN} to them"
        )


def port_range(text: str) -> tuple[int, int]:
    """-> (low, high). Raises UserError."""
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text, re.ASCII)
    low, high = map(int, match.groups()) if match else (0, 0)
    if not 1024 <= low < high < 2**16:
        raise UserError(
            f"ray_worker_ports must be LOW-HIGH between 1024 and 65535, got {text!r}: set e.g. "
            "--ray_worker_ports 10002-10999"
        )
    return low, high


def check_temp_dir(given: str | None) -> None:
    """The folder that Ray gets, or takes by RAY_TMPDIR. Raises UserError. On a full disk Ray
    starts, and fails later."""
    name, folder = f"ray_temp_dir {given}", given
    if folder is None and (variable := os.environ.get(TMPDIR)):
        name, folder = f"{TMPDIR} {variable}", os.path.join(variable, "ray")
    if folder is None:
        name, folder = "ray_temp_dir is not set, and /tmp", "/tmp"
    path = os.path.abspath(folder)
    length = len(os.fsencode(path + SESSION))
    if length > MOST_SOCKET:
        raise UserError(
            f"{name} is too long for Ray's sockets by {length - MOST_SOCKET} bytes: set a shorter "
            "one, such as /tmp/ray"
        )
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise UserError(
            f"{name} cannot be written ({error.strerror}): set --ray_temp_dir to another folder"
        ) from None
    free = shutil.disk_usage(path).free
    if free < LEAST_ROOM:
        raise UserError(
            f"{name} has {free / 2**20:.0f} MB free, and Ray needs about {LEAST_ROOM >> 20} for "
            "its logs: free some space, or set --ray_temp_dir to a folder on another disk"
        )


def start(ray: Any, config: Config, machine: Machine) -> Any:
    """Starts Ray on this machine; it ends with this process. -> Ray's context

    `ray.init` (2.60) has no argument for ports, and takes the network's address even if it is given
    the loopback's, unless it is told as on macOS that there is no cluster.
    """
    joining.ensure_token(os.environ)
    size, folder = object_store(machine)
    if folder is not None:
        os.environ["RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE"] = "1"
    ports = {} if config.ray_port is None else {"gcs_server_port": config.ray_port}
    if config.ray_worker_ports is not None:
        low, high = port_range(config.ray_worker_ports)
        ports |= {"node_manager_port": low, "object_manager_port": low + 1}
        ports |= {"min_worker_port": low + 2, "max_worker_port": high}
    parameters, constants = ray._private.parameter, ray._private.ray_constants
    params, can_cluster = parameters.RayParams, constants.ENABLE_RAY_CLUSTER
    is_alone = config.ray_port is None and config.ray_node_ip is None
    parameters.RayParams = functools.partial(params, **ports)
    constants.ENABLE_RAY_CLUSTER = can_cluster and not is_alone
    try:
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
            _node_ip_address=config.ray_node_ip,
            _temp_dir=config.ray_temp_dir and os.path.abspath(config.ray_temp_dir),
        )
    finally:
        parameters.RayParams, constants.ENABLE_RAY_CLUSTER = params, can_cluster
    keep_others_out(Path(context.address_info["session_dir"]))
    return context


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
    connect, set_handler = worker.connect, utils.set_sigterm_handler
    on_termination = signal.getsignal(signal.SIGTERM)

    def connect_undisturbed(*arguments: Any, **keywords: Any) -> None:
        with stopping.held(may_hang=True):
            connect(*arguments, **keywords)
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, on_termination)  # over that of the C++ part

    worker.connect, utils.set_sigterm_handler = connect_undisturbed, lambda handler: None
    try:
        yield
    finally:
        worker.connect, utils.set_sigterm_handler = connect, set_handler


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


def join_command(address: str) -> str:
    """What another machine runs to join this Ray; it has the token by then."""
    is_on = os.environ.get(joining.MODE, "token") == "token"
    return f"{joining.MODE}=token " * is_on + f"ray start --address={address}"


def object_store(machine: Machine) -> tuple[int, str | None]:
    """-> (bytes, folder or None for /dev/shm) for Ray's object store on a small host.

    Adapters and rollouts pass through it, so a tenth of memory is plenty; where /dev/shm is too
    small for that (64 MB in a container), the store lies on disk.
    """
    size = int(min(max(0.1 * machine.ram_mb, 128), 4096)) * 2**20
    if machine.shm_mb * 2**20 > 1.2 * size:
        return size, None
    return size, "/tmp"
