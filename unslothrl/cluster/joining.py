"""Joining a Ray cluster that the user started, and whether its head lives; and starting one, on the
loopback address, with a token, without a dashboard.

Ray's own client retries for minutes and writes to stderr from C++. So another process tries first
(`python -m unslothrl.cluster.joining HOST:PORT`), and what it says becomes one line. Ray 2.60
starts a cluster with token authentication as soon as there is a token; a driver must present the
same one.
"""

import contextlib
import logging
import os
import secrets
import shlex
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any
from unittest import mock

from unslothrl.errors import HeadLost, UserError
from unslothrl.system import stopping
from unslothrl.system.machine import Machine
from unslothrl.system.variables import python_path

TOKEN, TOKEN_PATH, MODE = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"  # read by Ray
DEFAULT_TOKEN = "~/.ray/auth_token"
PORT_S, JOIN_S = 5.0, 30.0
JOINED = "unslothrl has joined"
UNAUTHENTICATED = "InvalidAuthToken"

# Ray keeps the last 100,000 calls for its dashboard, which takes 350 MB by then.
QUIET = {"task_events_report_interval_ms": 0}

LOOK_S = 2.0  # between two looks at the head
CONNECT_S = 1.0
GONE_S = 30.0  # after which it is taken for gone; what is left of Ray's 60 is for the end of a run


def check(address: str) -> None:
    """Tries to join the cluster from another process. Sets `RAY_AUTH_MODE` if there is a token.
    Raises UserError if it cannot be joined, within seconds where nothing listens."""
    endpoint = split(address)
    if endpoint is None and address != "auto":
        raise UserError(f"ray_address must be HOST:PORT or auto, got {address!r}")
    source = token_source(os.environ)
    if source is not None:
        os.environ.setdefault(MODE, "token")
    if endpoint is not None and (reason := connection_error(*endpoint)):
        raise UserError(
            f"ray_address {address}: nothing listens there ({reason}): start a cluster with "
            "`ray start --head` and use the address that it prints"
        )
    said = join_elsewhere(address)
    if JOINED in said:
        return
    if UNAUTHENTICATED in said:
        raise UserError(
            f"ray_address {address}: the cluster does not accept {source or 'a missing token'}: "
            f"copy the head's {DEFAULT_TOKEN}, or set {TOKEN} or {TOKEN_PATH}"
        )
    tail = " ".join(said.split())[-300:] or "no answer"
    raise UserError(f"ray_address {address}: it cannot be joined ({tail}): see `ray status`")


def split(address: str) -> tuple[str, int] | None:
    """-> (host, port), None if `address` has another form. An IPv6 host is in brackets."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return None
    return host.strip("[]"), int(port)


def connection_error(host: str, port: int, timeout_s: float = PORT_S) -> str | None:
    """-> why a port accepts no connection, None if it does."""
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except OSError as error:
        return error.strerror or str(error) or "no answer"
    return None


def token_source(variables: Mapping[str, str]) -> str | None:
    """-> the variable or the file that Ray reads its token from, None if there is no token."""
    if variables.get(TOKEN):
        return TOKEN
    path = Path(variables.get(TOKEN_PATH) or os.path.expanduser(DEFAULT_TOKEN))
    return str(path) if path.is_file() and path.read_text().strip() else None


def ensure_token(variables: MutableMapping[str, str]) -> None:
    """Sets a random token for a cluster that this process starts, unless the user has a token.

    Ray would write one to the home folder, which may be read-only; from then on every cluster that
    the user starts would use token authentication.
    """
    if token_source(variables) is None and variables.get(MODE, "token") == "token":
        variables[TOKEN] = secrets.token_hex(32)


def join_elsewhere(address: str) -> str:
    """Joins from another process, since Ray's client would go on trying. -> what it printed"""
    said = ""
    with subprocess.Popen(
        [sys.executable, "-m", "unslothrl.cluster.joining", address],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONPATH": python_path(), "RAY_USAGE_STATS_ENABLED": "0"},
    ) as process:
        at_deadline = threading.Timer(JOIN_S, process.kill)
        at_deadline.start()
        try:
            for line in process.stdout or ():
                said += line
                if JOINED in line or UNAUTHENTICATED in line:
                    break
        finally:
            at_deadline.cancel()
            process.kill()
    return said


def own_python() -> dict[str, str]:
    """Of `runtime_env`. Ray hands the path of Python to a shell as it is, so that workers of an
    environment whose path has a space would not start; here it is quoted."""
    quoted = shlex.quote(sys.executable)
    return {} if quoted == sys.executable else {"py_executable": quoted}


class RayHead:
    """The head of the cluster at `address`, "host:port".

    Without it calls of the head block, and after 60 s Ray ends every process that is connected,
    this one included. So what asks the head looks first whether it is there, and a run whose head
    has gone ends by itself before that.
    """

    def __init__(self, address: str):
        self.address, self.endpoint = address, split(address)
        self.looked = self.seen = time.monotonic()
        self.is_gone = False

    def answers(self) -> bool:
        """Whether it does now; takes a second at most."""
        if self.endpoint is not None and connection_error(*self.endpoint, CONNECT_S) is not None:
            return False
        self.seen = time.monotonic()
        return True

    def check(self) -> None:
        """Looks now and then. Raises HeadLost once it is gone, but at the end of the run."""
        now = time.monotonic()
        if self.is_gone or now - self.looked < LOOK_S:
            return
        if now - self.looked > GONE_S:  # nobody has looked for long: this process was busy
            self.seen = now
        self.looked = now
        if not self.answers() and now - self.seen > GONE_S:
            self.is_gone = True
            raise HeadLost(
                f"Ray's head at {self.address} has not answered for {now - self.seen:.0f} s, and "
                "without it Ray ends every process: continue with --resume when it is back"
            )


# A cluster of the run's own


def start(ray: Any, machine: Machine) -> Any:
    """Starts Ray on this machine; it ends with this process. -> Ray's context"""
    ensure_token(os.environ)
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
            object_store_memory=object_store_bytes(machine),
            _system_config=QUIET,
        )
    # Ray lets every user of the machine write into its session's folder, and replace the sockets in
    # it, through which processes exchange pickles; and replace the folder itself.
    session = Path(context.address_info["session_dir"])
    session.chmod(0o700)
    if session.parent.stat().st_uid == os.getuid():
        session.parent.chmod(session.parent.stat().st_mode | stat.S_ISVTX)
    return context


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


def object_store_bytes(machine: Machine) -> int:
    """Of Ray's object store. Adapters and rollouts pass through it, so a tenth of memory is plenty;
    where /dev/shm is too small for that (64 MB in a container), Ray has it on disk."""
    return int(min(max(0.1 * machine.ram_mb, 128), 4096)) * 2**20


if __name__ == "__main__":
    import ray

    ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)
    print(f"\n{JOINED}", flush=True)  # on a line of its own, among what Ray's C++ threads write
    ray.shutdown()
