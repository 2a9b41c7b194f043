"""The Ray that a run starts: what it is given, and what is refused before it starts."""

import contextlib
import ipaddress
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace

import psutil
import pytest
from ray_nodes import free_ports

from unslothrl.cluster import starting
from unslothrl.config.options import Config
from unslothrl.errors import UserError


@pytest.fixture
def variables(monkeypatch, tmp_path):
    """A user with an empty home, without Ray's variables."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", "RAY_TMPDIR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


def refusal(**options) -> str:
    with pytest.raises(UserError) as error:
        starting.check(replace(Config(), **options))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_port_in_use_is_named(variables):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        variables.setenv("RAY_AUTH_TOKEN", "f" * 64)
        said = refusal(ray_port=port, ray_node_ip="127.0.0.1")
        assert said.startswith(f"ray_port {port} cannot be used (Address already in use):")
        assert f"port {port} cannot be used" in refusal(
            ray_worker_ports=f"{port - 1}-{port + 30}", ray_node_ip="127.0.0.1"
        )


def test_others_can_only_join_with_a_token_of_the_users(variables, tmp_path):
    (port,) = free_ports(1)
    assert "there is none: run `ray get-auth-token --generate`" in refusal(ray_port=port)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("f" * 64)
    starting.check(replace(Config(), ray_port=port))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10002", "must be LOW-HIGH between 1024 and 65535, got '10002'"),
        ("80-90", "must be LOW-HIGH"),
        ("20000-10000", "must be LOW-HIGH"),
        ("60000-70000", "must be LOW-HIGH"),
        ("x-y", "must be LOW-HIGH"),
        ("10002-10010", "3 processes need at least 19 ports: set 10002-10020"),
        ("10002-10999", "ray_port 10500 is among them"),
    ],
)
def test_worker_ports_that_cannot_be(text, message, variables):
    variables.setenv("RAY_AUTH_TOKEN", "f" * 64)
    options = {"ray_port": 10_500} if "among" in message else {}
    assert message in refusal(ray_worker_ports=text, number_of_actors=2, **options)


def test_a_temporary_folder_that_cannot_be(variables, tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert "cannot be written (Not a directory)" in refusal(ray_temp_dir="/dev/null/ray")
    least = 107 - len(starting.SESSION)  # /session_.../sockets/plasma_store takes 64 of the 107
    assert least == 43
    assert "too long for Ray's sockets by 1 bytes" in refusal(ray_temp_dir="/tmp/" + "x" * 39)
    variables.setenv("RAY_TMPDIR", "/tmp/" + "x" * 100)
    assert refusal().startswith("RAY_TMPDIR /tmp/xxx") and "by 66 bytes" in refusal()


def test_a_full_disk_is_refused(variables):
    """As if every disk were."""
    variables.delenv("RAY_TMPDIR", raising=False)
    starting.check(Config())
    variables.setattr(starting, "LEAST_ROOM", 2**60)
    said = refusal(ray_temp_dir="/tmp")
    assert said.startswith("ray_temp_dir /tmp has ") and "MB free, and Ray needs about" in said
    assert refusal().startswith("ray_temp_dir is not set, and /tmp has ")


def test_an_address_of_another_machine_is_refused(variables):
    said = refusal(ray_node_ip="203.0.113.7")
    assert said.startswith("ray_node_ip 203.0.113.7 is not an address of this machine (")
    for text in ("not an address", "::1", "127.0.0.1:80", "0.0.0.0", "224.0.0.1"):
        assert "not an address of this machine" in refusal(ray_node_ip=text), text
    starting.check(replace(Config(), ray_node_ip="127.0.0.1"))


HEAD = """
import json, os, ray
from dataclasses import replace
from unslothrl.cluster import starting
from unslothrl.config.options import Config
from unslothrl.errors import UserError
from unslothrl.planning.machine import Machine

config = replace(Config(), **json.loads(os.environ["OPTIONS"]))
starting.check(config)
before = os.environ.get(starting.GCS_PORT)
context = starting.start(ray, config, Machine(cpus=1, ram_mb=4_000, shm_mb=8_000))
(node,) = ray.nodes()
try:
    starting.check(replace(Config(), ray_port=config.ray_port, ray_node_ip=config.ray_node_ip))
except UserError as error:
    refusal = str(error)
print(json.dumps({
    "refusal": refusal,
    "is the variable as before": os.environ.get(starting.GCS_PORT) == before,
    "address": context.address_info["gcs_address"],
    "join": starting.join_command(context.address_info["gcs_address"]),
    "folder": context.address_info["session_dir"],
    "ports": [node["NodeManagerPort"], node["ObjectManagerPort"]],
    "dashboard": context.dashboard_url,
}))
ray.shutdown()
"""


@pytest.mark.slow
@pytest.mark.real
def test_ray_listens_where_it_was_told_and_nowhere_else(variables, tmp_path):
    """The head's port, and every port of a worker's, between the two that were named. In a process
    of its own: Ray reads the token once a process, and another test may have had another."""
    import ray

    address = ray.util.get_node_ip_address()  # Ray takes no loopback address
    port, low = free_ports(2)
    low = min(low, 65_000)
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")  # short: Ray makes sockets there
    options = {
        "ray_port": port, "ray_worker_ports": f"{low}-{low + 40}", "number_of_actors": 1,
        "ray_node_ip": address, "ray_temp_dir": folder,
    }  # fmt: skip
    variables.setenv("RAY_AUTH_TOKEN", "f" * 64)
    variables.setenv("OPTIONS", json.dumps(options))
    try:
        done = subprocess.run(
            [sys.executable, "-c", HEAD], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert said["is the variable as before"]
    assert said["address"] == f"{address}:{port}"
    assert said["join"] == f"RAY_AUTH_MODE=token ray start --address={address}:{port}"
    assert said["folder"].startswith(folder + "/session_")
    assert said["ports"] == [low, low + 1]
    assert f"ray_port {port} cannot be used" in said["refusal"]
    assert said["dashboard"] in (None, "")


ALONE = """
import json, os, psutil, ray, subprocess, sys
from dataclasses import replace
from unslothrl.cluster import starting
from unslothrl.config.options import Config
from unslothrl.planning.machine import Machine

config = replace(Config(), ray_temp_dir=sys.argv[1])
context = starting.start(ray, config, Machine(cpus=1, ram_mb=4_000, shm_mb=8_000))

@ray.remote
def work():
    return ray.util.get_node_ip_address()

worker = ray.get(work.remote())  # a process of its own, which listens too
this = psutil.Process()
listening = [
    connection.laddr.ip
    for process in (this, *this.children(recursive=True))
    for connection in process.net_connections("inet")
    if connection.status == psutil.CONN_LISTEN
]
address = context.address_info["gcs_address"]
looked = subprocess.run(
    [sys.executable, "-m", "unslothrl.cluster.looking", "auto"],
    env={**os.environ, "RAY_ADDRESS": address}, capture_output=True, text=True, timeout=100,
)
print(json.dumps({
    "address": address, "worker": worker, "listening": listening, "looked": looked.stdout,
    "mode": os.stat(context.address_info["session_dir"]).st_mode & 0o777,
}))
ray.shutdown()
"""


@pytest.mark.real
def test_without_a_cluster_everything_listens_on_the_loopback_address(variables):
    """Of every process that Ray has started, and of the driver; and what asks Ray what runs on this
    machine finds it there."""
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")
    variables.setenv("RAY_AUTH_TOKEN", "e" * 64)
    try:
        done = subprocess.run(
            [sys.executable, "-c", ALONE, folder], capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert said["address"].startswith("127.0.0.1:") and said["worker"] == "127.0.0.1"
    own = [ipaddress.ip_address(each.removeprefix("::ffff:")) for each in said["listening"]]
    assert len(own) >= 5 and all(each.is_loopback for each in own), said["listening"]
    assert '"is_head": true' in said["looked"], said["looked"]
    assert said["mode"] == 0o700  # other users of the machine do not get at its sockets


def has_agents(process: psutil.Process) -> bool:
    try:
        return process.name() == "raylet" and bool(process.children())
    except psutil.NoSuchProcess:
        return False


@pytest.mark.real
@pytest.mark.parametrize("late", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_that_is_stopped_while_ray_starts_ends_all_of_it(late, tmp_path):
    """Also Ray's agents, which it starts last, and which would notice it a minute later."""
    flags = f"--output_dir {tmp_path} --run_name a --engine transformers --cluster ray"
    process = subprocess.Popen(
        [sys.executable, "-m", "unslothrl", "train", *flags.split(), "--number_of_actors", "1"],
        stdin=subprocess.DEVNULL,
        stdout=(tmp_path / "said").open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    run = psutil.Process(process.pid)
    started: set[psutil.Process] = set()
    while not any(map(has_agents, started)):
        with contextlib.suppress(subprocess.TimeoutExpired):
            pytest.fail(f"it ended with {process.wait(0.02)}: {(tmp_path / 'said').read_text()}")
        started |= set(run.children(recursive=True))
    if late:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
        started |= set(run.children(recursive=True))
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    _, left = psutil.wait_procs(started, timeout=5)
    assert not left
