"""The hosts of hosts.py share nothing but a cable, and leave nothing."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from hosts import ROOT, hosts_or_skip

pytestmark = [pytest.mark.real, pytest.mark.slow]

NAMESPACES = ("net", "mnt", "pid", "ipc", "uts")

# Listens at an address, prints its port, and sends back what it gets from each who connects.
ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], 0))
print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    while data := connection.recv(100):
        connection.sendall(data)
"""

# Connects, then for every line of its input sends it and prints what has come back within 1 s.
TALK = """
import socket, sys
try:
    connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1)
except OSError:
    sys.exit("no connection")
print("connected", flush=True)
for line in sys.stdin:
    connection.sendall(line.strip().encode())
    try:
        print(connection.recv(100).decode(), flush=True)
    except TimeoutError:
        print("nothing", flush=True)
"""


def python(code: str, *arguments: object) -> list[str]:
    return ["python", "-c", textwrap.dedent(code), *map(str, arguments)]


@pytest.fixture(scope="module")
def pair():
    with hosts_or_skip(2) as built:
        yield built


@pytest.fixture
def start(pair):
    """-> a function that starts Python on a host; what still runs at the end is killed."""
    running = []

    def start(host, code, *arguments):
        process = host.popen(
            python(code, *arguments), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_the_checkout_is_elsewhere_on_each_and_read_only(pair):
    where = "import unslothrl, sys; print(unslothrl.__file__, sys.prefix)"
    for host in pair:
        package = host.checkout / "unslothrl" / "__init__.py"
        assert host.run(python(where)).stdout.split() == [
            str(package),
            str(host.checkout / ".venv"),
        ]
        assert not host.path(ROOT / "unslothrl").exists()
        for file in (package, host.checkout / ".venv/bin/new"):
            assert host.run(["touch", file], check=False).returncode != 0
    assert pair[0].checkout != pair[1].checkout and pair[0].home != pair[1].home


def test_no_namespace_is_shared(pair):
    for kind in NAMESPACES:
        ids = {
            os.readlink(f"/proc/{pid}/ns/{kind}") for pid in (os.getpid(), pair[0].pid, pair[1].pid)
        }
        assert len(ids) == 3, kind


def test_a_host_reaches_another_at_its_address_alone(pair, start):
    head, other = pair
    loopback, reachable = (start(head, ECHO, address) for address in ("127.0.0.1", "0.0.0.0"))
    hidden, port = (int(server.stdout.readline()) for server in (loopback, reachable))
    for address, number, is_open in (
        ("127.0.0.1", hidden, False),
        (head.address, hidden, False),
        (head.address, port, True),
    ):
        talk = start(other, TALK, address, number)
        assert talk.communicate("hello\n")[0].split() == ["connected", "hello"] * is_open


def test_a_cable_comes_out_and_goes_in_again(pair, start):
    head, other = pair
    port = int((server := start(head, ECHO, "0.0.0.0")).stdout.readline())
    talk = start(other, TALK, head.address, port)

    def say(word: str) -> str:
        talk.stdin.write(f"{word}\n")
        talk.stdin.flush()
        return talk.stdout.readline().strip()

    assert talk.stdout.readline() == "connected\n" and say("one") == "one"
    other.unplug()
    try:
        assert say("two") == "nothing"
        assert start(other, TALK, head.address, port).communicate()[0] == ""
    finally:
        other.plug()
    assert server.poll() is None
    heard = ""
    while "three" not in heard:  # TCP sends what was lost again, when it next tries
        heard += say("three").replace("nothing", "")
    assert heard.startswith("two")


def test_nothing_is_left_though_the_owner_is_killed():
    with hosts_or_skip(1):
        pass
    mounts, links = Path("/proc/mounts").read_text(), Path("/proc/net/dev").read_text().count(":")
    code = """
        import sys
        from hosts import hosts
        with hosts(2) as pair:
            background = pair[1].popen(["sh", "-c", "(setsid sleep 1000 &) ; echo started; cat"],
                                       stdin=-1)
            print(*(host.pid for host in pair), flush=True)
            sys.stdin.read()
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT / "tests", text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    lines = {owner.stdout.readline().strip() for _ in range(2)}
    pids = [int(pid) for pid in " ".join(lines - {"started"}).split()]
    spaces = {os.readlink(f"/proc/{pid}/ns/pid") for pid in pids}
    inside = [process for process in psutil.process_iter() if namespace(process) in spaces]
    assert len(inside) >= 6  # two a host, `cat` and what runs in the background
    os.kill(owner.pid, signal.SIGKILL)
    owner.communicate()
    assert psutil.wait_procs(inside, timeout=10)[1] == []
    assert Path("/proc/mounts").read_text() == mounts
    assert Path("/proc/net/dev").read_text().count(":") == links


def namespace(process: psutil.Process) -> str | None:
    try:
        return os.readlink(f"/proc/{process.pid}/ns/pid")
    except OSError:
        return None
