"""The Ray that a run starts: who reaches it, and that nothing is left of it."""

import contextlib
import ipaddress
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from python_process import python

ROOT = Path(__file__).parents[1]


@pytest.fixture
def variables(monkeypatch, tmp_path):
    """A user with an empty home, without Ray's variables."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", "RAY_TMPDIR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


ALONE = """
import json, os, psutil, ray
from unslothrl.cluster import joining
from unslothrl.system.machine import Machine

context = joining.start(ray, Machine(cpus=1, ram_mb=4_000, shm_mb=8_000))

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
print(json.dumps({
    "address": context.address_info["gcs_address"], "worker": worker, "listening": listening,
    "mode": os.stat(context.address_info["session_dir"]).st_mode & 0o777,
}))
ray.shutdown()
"""


@pytest.mark.real
def test_without_a_cluster_everything_listens_on_the_loopback_address(variables):
    """Of every process that Ray has started, and of the driver."""
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")
    variables.setenv("RAY_AUTH_TOKEN", "e" * 64)
    variables.setenv("RAY_TMPDIR", folder)
    try:
        said = json.loads(python("-c", ALONE, timeout=200).stdout.splitlines()[-1])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert said["address"].startswith("127.0.0.1:") and said["worker"] == "127.0.0.1"
    own = [ipaddress.ip_address(each.removeprefix("::ffff:")) for each in said["listening"]]
    assert len(own) >= 5 and all(each.is_loopback for each in own), said["listening"]
    assert said["mode"] == 0o700  # other users of the machine do not get at its sockets


def has_agents(process: psutil.Process) -> bool:
    try:
        return process.name() == "raylet" and bool(process.children())
    except psutil.NoSuchProcess:
        return False


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
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


@pytest.mark.slow
def test_a_run_of_an_environment_whose_path_has_a_space(variables, tmp_path):
    environment = tmp_path / "a path"
    environment.symlink_to(sys.prefix)
    flags = "--learner grpo --engine transformers --max_steps 1 --batch_size 2 --num_candidates 2"
    done = subprocess.run(
        [environment / "bin" / "python", ROOT / "train_distributed.py", *flags.split(),
         "--eval_every", "0"],
        cwd=tmp_path, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
