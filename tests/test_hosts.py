"""The hosts of hosts.py share nothing but a cable, and leave nothing."""

import os
import subprocess
import textwrap

import pytest
from hosts import hosts_or_skip

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
