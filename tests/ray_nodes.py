"""A cluster of `ray start` on this machine, with as many nodes as a test wants."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from unslothrl.cluster import joining

RAY = str(Path(sys.executable).parent / "ray")
VARIABLES = (joining.TOKEN, joining.TOKEN_PATH, joining.MODE, "RAY_ADDRESS")


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, in place of Ray's own, which another cluster may have."""
    servers = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


@contextlib.contextmanager
def own_token() -> Iterator[None]:
    """Ray keeps a process's first token: inside, and after it, it reads the variables anew."""
    from ray._private.authentication_test_utils import reset_auth_token_state

    reset_auth_token_state()
    try:
        yield
    finally:
        reset_auth_token_state()


class RayNodes:
    """A head and its nodes, each with a home below `folder`, where Ray's files lie too."""

    def __init__(self, *head: str, **variables: str):
        self.folder = Path(tempfile.mkdtemp(prefix="unslothrl-"))  # short: Ray makes sockets there
        self.processes: list[subprocess.Popen] = []
        self.token = "f" * 64
        port, client = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self.add(
            "--head", f"--port={port}", f"--ray-client-server-port={client}",
            "--include-dashboard=false", *head, **variables,
        )  # fmt: skip

    def environment(self, home: Path, **variables: str) -> dict[str, str]:
        others = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        return {
            **others, "HOME": str(home), "RAY_TMPDIR": str(self.folder),
            "RAY_USAGE_STATS_ENABLED": "0", joining.TOKEN: self.token,
            joining.MODE: "token", **variables,  # a node that joins does not turn it on by itself
        }  # fmt: skip

    def add(self, *arguments: str, **variables: str) -> Path:
        """Starts the head or another node. -> its home folder"""
        home = self.folder / f"home{len(self.processes)}"
        home.mkdir()
        log = home / "ray.log"
        if "--head" not in arguments:
            arguments = (f"--address={self.address}", *arguments)
        with log.open("w") as out:
            started = subprocess.Popen(
                [RAY, "start", "--disable-usage-stats", *arguments],
                env=self.environment(home, **variables), stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        self.processes.append(started)
        assert started.wait(timeout=150) == 0, log.read_text()
        return home

    def close(self) -> None:
        for process in reversed(self.processes):
            kill_session(process.pid)
        shutil.rmtree(self.folder, ignore_errors=True)


def kill_session(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
