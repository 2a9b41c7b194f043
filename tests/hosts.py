"""Hosts on one machine, as far apart as real ones: each has its own network, mounts, processes,
shared memory and hostname, its own /tmp, /dev/shm and home in memory, and one cable to a switch.

    python tests/hosts.py 2      # builds two with Ray, prints how to enter them, waits for Ctrl-C

    with hosts(2) as (head, other):
        head.start_ray()
        other.start_ray(head)
        head.run(["python", "train_distributed.py", "--ray_address", head.ray_address])

Needs root, bubblewrap and `ip`. All but /tmp, /var/tmp, /run, /dev/shm, /root, /home and /srv is
read-only there, so no file that one host writes can be seen on another. The checkout and its .venv
are at a path of each host's own, and absent from where they are here. A host knows no other's name,
and as on Debian its own stands for 127.0.1.1.

The switch is a bridge in network and PID namespaces of its own, and the hosts' PID namespaces are
nested in that one. It ends with the pipe that this process holds, so the kernel ends and removes
everything whichever way this process ends.
"""

import contextlib
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
NETWORK = "10.77.0"
GATEWAY = f"{NETWORK}.254"
RAY_PORT = 6379
RAY = ["python", "-m", "ray.scripts.scripts"]  # .venv/bin/ray starts the Python of another path
SHM_BYTES, STORE_BYTES = 1 << 30, 128 << 20
IN_MEMORY = ("/root", "/home", "/srv", "/tmp", "/var/tmp", "/run", "/dev/shm")
HOMES = ("/home/ada", "/root", "/home/grace")  # by host, repeated
CHECKOUTS = ("/home/ada/unslothrl", "/srv/unslothrl", "/home/grace/code/unslothrl")
START_S = 240.0  # on a machine that is busy with other things


class CannotBuild(Exception):
    """This machine cannot have such hosts; says why."""


class Host:
    """One host. Paths and process ids are the host's own unless said otherwise."""

    def __init__(self, index: int, switch: int):
        """`switch` is the id, here, of a process in the namespaces of the switch."""
        self.index, self.switch = index, switch
        self.name, self.address = f"host-{index}", f"{NETWORK}.{index + 1}"
        self.home = Path(HOMES[index % len(HOMES)])
        self.checkout = Path(CHECKOUTS[index % len(CHECKOUTS)])
        self.ray_address = f"{self.address}:{RAY_PORT}"  # where this one is the head
        self.variables = {
            "PATH": f"{self.checkout}/.venv/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "HF_HUB_OFFLINE": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self.token: str | None = None  # Ray's
        self.monitor, self.pid = self._start()  # `pid`: of the host's first process, here
        self._connect()

    def _start(self) -> tuple[subprocess.Popen, int]:
        command = [
            "bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
            "--die-with-parent", "--hostname", self.name, *self._mounts(),
        ]  # fmt: skip
        files = {
            "/etc/hosts": f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n",
            "/etc/hostname": f"{self.name}\n",
            **self._installed(),
        }
        with contextlib.ExitStack() as stack:
            descriptors = [stack.enter_context(memory_file(text)) for text in files.values()]
            for descriptor, path in zip(descriptors, files, strict=True):
                command += ["--ro-bind-data", str(descriptor), path]
            return start_first_process([*enter(self.switch), *command], pass_fds=descriptors)

    def _mounts(self) -> list[str]:
        environment = ROOT / ".venv" if (ROOT / ".venv").is_dir() else Path(sys.prefix)
        python = Path(os.path.realpath(environment / "bin" / "python")).parents[1]
        mounts = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        for path in (*IN_MEMORY, str(ROOT), os.path.realpath(environment)):
            mounts += ["--perms", "1777"]
            mounts += ["--size", str(SHM_BYTES)] if path == "/dev/shm" else []
            mounts += ["--tmpfs", path]
        if any(python.is_relative_to(path) for path in IN_MEMORY):
            mounts += ["--ro-bind", str(python), str(python)]
        mounts += ["--dir", str(self.home), "--dir", str(self.checkout)]
        for entry in ROOT.iterdir():
            if entry.name not in (".venv", ".git", "runs"):
                mounts += ["--ro-bind", str(entry), f"{self.checkout}/{entry.name}"]
        return [*mounts, "--ro-bind", os.path.realpath(environment), f"{self.checkout}/.venv"]

    def _installed(self) -> Mapping[str, str]:
        """The files by which an editable install finds the package, with this host's paths."""
        try:
            package = distribution("unslothrl")
        except PackageNotFoundError:
            return {}
        url = json.loads(package.read_text("direct_url.json") or "{}").get("url", "")
        site = Path(str(package.locate_file("")))
        inside = f"{self.checkout}/.venv/{site.relative_to(sys.prefix)}"
        return {
            f"{inside}/{path.name}": path.read_text().replace(
                url.removeprefix("file://"), str(self.checkout)
            )
            for path in site.glob("__editable__*unslothrl*")
            if path.is_file()
        }

    def _connect(self) -> None:
        port = f"port-{self.index}"
        ip(
            self.switch,
            f"link add {port} type veth peer name eth0 netns {self.pid}",
            f"link set {port} master bridge up",
        )
        ip(
            self.pid,
            f"address add {self.address}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {GATEWAY}",
        )

    def unplug(self) -> None:
        """Takes the cable out at the switch's end; connections stay open, and nothing arrives."""
        ip(self.switch, f"link set port-{self.index} down")

    def plug(self) -> None:
        ip(self.switch, f"link set port-{self.index} up")

    def command(self, arguments: Sequence[str | Path], **variables: str) -> list[str]:
        """What runs `arguments` there, in the checkout, from here. It ends with what it returns."""
        return [
            *enter(self.pid), "setpriv", "--pdeathsig=KILL",
            "env", "-i", f"--chdir={self.checkout}",
            *(f"{name}={value}" for name, value in {**self.variables, **variables}.items()),
            *map(str, arguments),
        ]  # fmt: skip

    def popen(self, arguments: Sequence[str | Path], **keywords: Any) -> subprocess.Popen:
        return subprocess.Popen(self.command(arguments), env=plain_environment(), **keywords)

    def run(
        self, arguments: Sequence[str | Path], timeout: float = 120.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """-> what it printed and its exit code. AssertionError if that is not 0, unless `check` is
        False; what it has started in the background goes on."""
        done = subprocess.run(
            self.command(arguments), text=True, timeout=timeout, env=plain_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{self.name}: {arguments}: {done.stdout[-6000:]}"
        return done

    def path(self, inside: str | Path) -> Path:
        """The same file as this machine sees it."""
        return Path(f"/proc/{self.pid}/root") / str(inside).lstrip("/")

    def processes(self) -> list[psutil.Process]:
        """All that run there, but for the first two, which are the host; ids as of this machine."""
        try:
            namespace = os.readlink(f"/proc/{self.pid}/ns/pid")
        except OSError:  # the host has ended
            return []
        running = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                own_id = int(status(process.pid, "NSpid").split()[-1])
                if os.readlink(f"/proc/{process.pid}/ns/pid") == namespace and own_id > 2:
                    running.append(process)
        return running

    def start_ray(self, head: "Host | None" = None, *flags: str, token: str | None = None) -> None:
        """Starts Ray there: the head of a cluster, or a node of `head`'s. With token
        authentication: by `token`, else by the head's, else by a new one."""
        self.token = token or (head.token if head else None) or secrets.token_hex(32)
        file = self.path(self.home) / ".ray" / "auth_token"
        file.parent.mkdir(exist_ok=True)
        file.write_text(self.token)
        self.variables["RAY_AUTH_MODE"] = "token"
        where = ["--head", f"--port={RAY_PORT}", "--include-dashboard=false"]
        if head is not None:
            where = [f"--address={head.ray_address}"]
        command = [*RAY, "start", *where, "--num-cpus=2", f"--object-store-memory={STORE_BYTES}"]
        self.run([*command, "--disable-usage-stats", *flags], timeout=START_S)

    def stop_ray(self) -> None:
        self.run([*RAY, "stop", "--force"], timeout=START_S)

    def end(self) -> None:
        """The end of the host, as of one whose power is cut."""
        psutil.Process(self.pid).kill()
        self.monitor.wait()


@contextlib.contextmanager
def hosts(count: int) -> Iterator[tuple[Host, ...]]:
    """`count` hosts on one switch, until the end of the block. Raises CannotBuild."""
    if reason := missing():
        raise CannotBuild(reason)
    command = [
        "bwrap", "--unshare-pid", "--unshare-net", "--die-with-parent",
        "--bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc",
    ]  # fmt: skip
    switch, pid = start_first_process(command)
    built: list[Host] = []
    try:
        address = f"address add {GATEWAY}/24 dev bridge"
        ip(pid, "link add bridge type bridge", "link set bridge up", address)
        for index in range(count):
            built.append(Host(index, pid))
        yield tuple(built)
    finally:
        for process in (switch, *(host.monitor for host in built)):
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.wait()
            process.stdout.close()


@contextlib.contextmanager
def hosts_or_skip(count: int) -> Iterator[tuple[Host, ...]]:
    """Hosts for a test, which is passed over where there can be none, and fails for it in CI."""
    import pytest

    with contextlib.ExitStack() as stack:
        try:
            built = stack.enter_context(hosts(count))
        except CannotBuild as error:
            (pytest.fail if os.environ.get("UNSLOTHRL_ALL_LEVELS") else pytest.skip)(str(error))
        yield built


def missing() -> str | None:
    """What keeps this machine from having hosts; None where nothing is known to."""
    if sys.platform != "linux":
        return "hosts are made of Linux's namespaces"
    if os.geteuid() != 0:
        return "hosts need root"
    packages = {"bwrap": "bubblewrap", "ip": "iproute2", "nsenter": "util-linux"}
    for program, package in packages.items():
        if shutil.which(program) is None:
            return f"hosts need `{program}`: apt-get install {package}"
    return None


def start_first_process(
    command: Sequence[str], pass_fds: Sequence[int] = ()
) -> tuple[subprocess.Popen, int]:
    """Starts bubblewrap, whose namespaces end with the pipe to the process's stdin.

    -> (the process, the id here of the first one inside). Raises CannotBuild.
    """
    process = subprocess.Popen(
        [*command, "--", "sh", "-c", "echo up; exec cat"],
        pass_fds=pass_fds, env=plain_environment(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    if process.stdout.readline() != "up\n":
        reason = process.stderr.read().strip() or f"exit code {process.wait()}"
        raise CannotBuild(f"{command[0]} does not start here: {reason}")
    process.stderr.close()
    depth = len(status(os.getpid(), "NSpid").split())
    for child in psutil.Process(process.pid).children(recursive=True):
        ids = status(child.pid, "NSpid").split()
        if len(ids) > depth and ids[-1] == "1":
            return process, child.pid
    raise CannotBuild(f"{command[0]} has made no PID namespace")


def plain_environment() -> dict[str, str]:
    """This process's, without what vLLM preloads once it is imported: a library that is not there
    inside, of which the loader complains to stderr, and so ends who has none."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def enter(pid: int) -> list[str]:
    """What runs a command in all namespaces of a process."""
    return ["nsenter", f"--target={pid}", "--all", "--"]


def ip(pid: int, *lines: str) -> None:
    """Runs `ip` in the network of a process. Raises CannotBuild."""
    done = subprocess.run(
        ["nsenter", f"--target={pid}", "--net", "--", "ip", "-batch", "-"],
        input="\n".join(lines) + "\n", capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise CannotBuild(f"ip: {done.stderr.strip()} ({'; '.join(lines)})")


def status(pid: int, field: str) -> str:
    """A field of /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return line.partition(":")[2].strip()
    raise KeyError(field)


@contextlib.contextmanager
def memory_file(text: str) -> Iterator[int]:
    """-> a descriptor that `text` can be read from."""
    descriptor = os.memfd_create("hosts")
    try:
        os.write(descriptor, text.encode())
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def start_ray(cluster: Sequence[Host], memory_gb: Sequence[float] = ()) -> None:
    """Starts Ray on each, the first being the head; the others try until it answers. `memory_gb`
    is what Ray then takes each to have, all of them having this machine's."""
    token = secrets.token_hex(32)
    flags = [[f"--memory={int(size * 2**30)}"] for size in memory_gb] or [[]] * len(cluster)
    heads = [None, *[cluster[0]] * (len(cluster) - 1)]
    with ThreadPoolExecutor() as pool:
        starts = [
            pool.submit(host.start_ray, head, *more, token=token)
            for host, head, more in zip(cluster, heads, flags, strict=True)
        ]
        for start in starts:
            start.result()


def main() -> None:
    with hosts(int(sys.argv[1])) as cluster:
        for host in cluster:
            print(f"{host.name} {host.address}: {shlex.join(host.command(['bash']))}")
        start_ray(cluster)
        print(f"Ray: {cluster[0].ray_address}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
