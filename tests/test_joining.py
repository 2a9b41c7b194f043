"""Joining a cluster that a user started by `ray start --head`, token authentication included."""

import json
import socket
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from python_process import python
from ray_nodes import VARIABLES, RayNodes
from stopped_run import as_flags
from test_docs import documented_example

from unslothrl.cluster import joining
from unslothrl.errors import HeadLost, UserError

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def cluster():
    """With its token in `folder`, the home folder of the user whose cluster it is."""
    with closing(RayNodes()) as started:
        (started.folder / ".ray").mkdir()
        (started.folder / ".ray" / "auth_token").write_text(started.token)
        yield started


@pytest.fixture
def as_user(monkeypatch):
    """-> a function that gives this process a user's variables; undone at the end."""

    def become(home: Path, **variables: str) -> None:
        for name in VARIABLES:
            monkeypatch.setenv(name, "")  # so that a later change is undone as well
            monkeypatch.delenv(name)
        own = {"HOME": str(home), "RAY_TMPDIR": str(home), "RAY_USAGE_STATS_ENABLED": "0"}
        for name, value in {**own, **variables}.items():
            monkeypatch.setenv(name, value)

    return become


def refusal(address: str) -> str:
    with pytest.raises(UserError) as error:
        joining.check(address)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.slow
def test_a_run_joins_the_cluster_of_ray_start_head(cluster, as_user, tmp_path):
    """With the learner of docs/algorithms.md, which the driver and the learner's process read."""
    (tmp_path / "sapo.py").write_text(documented_example())
    options = {
        "learner": "sapo.py", "number_of_actors": 1, "engine": "transformers", "max_steps": 1,
        "batch_size": 2, "num_candidates": 2, "topk": 2, "learner_chunk_size": 0,
        "max_new_tokens": 8, "eval_every": 0, "run_name": "joined", "ray_address": "auto",
    }  # fmt: skip
    as_user(cluster.folder)
    program = Path(__file__).parents[1] / "train_distributed.py"
    done = python(program, *as_flags(options), cwd=tmp_path, timeout=200)
    summary = json.loads((tmp_path / "runs" / "joined" / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 1)
    assert "INFO" not in done.stderr


@pytest.mark.slow
def test_the_token_is_read_where_ray_reads_it(cluster, as_user, tmp_path):
    as_user(cluster.folder)
    joining.check(cluster.address)  # an explicit address needs it too
    in_home = str(cluster.folder / ".ray" / "auth_token")
    for name, value in ((joining.TOKEN, cluster.token), (joining.TOKEN_PATH, in_home)):
        as_user(tmp_path, **{name: value})
        joining.check(cluster.address)


@pytest.mark.slow
def test_a_missing_or_wrong_token_is_named(cluster, as_user, tmp_path):
    as_user(tmp_path)
    assert "a missing token: copy the head's ~/.ray/auth_token" in refusal(cluster.address)
    as_user(tmp_path, RAY_AUTH_TOKEN="0" * 64)
    assert "does not accept RAY_AUTH_TOKEN: copy" in refusal(cluster.address)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("1" * 64)
    as_user(tmp_path)
    assert f"does not accept {tmp_path}/.ray/auth_token: copy" in refusal(cluster.address)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("bogus.invalid:1234", "nothing listens there"),
        ("127.0.0.1:1", "nothing listens there (Connection refused): start a cluster with"),
        ("ray://head:10001", "must be HOST:PORT or auto"),
    ],
)
def test_an_address_without_a_cluster_is_refused(address, message, as_user, tmp_path):
    as_user(tmp_path)
    assert message in refusal(address)


def test_a_new_cluster_needs_no_file_in_the_home_folder(as_user, tmp_path):
    as_user(tmp_path)
    variables: dict[str, str] = {}
    joining.ensure_token(variables)
    assert len(variables[joining.TOKEN]) == 64 and not list(tmp_path.iterdir())
    given = {joining.TOKEN: "mine"}
    joining.ensure_token(given)
    assert given == {joining.TOKEN: "mine"}


def test_a_head_is_gone_when_nothing_has_listened_for_long(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(joining, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        head = joining.RayHead(address)
        for clock.now in (3.0, 6.0, 100.0):  # it was there whenever somebody looked
            head.check()
            assert head.answers()
    for clock.now in (103.0, 129.0):
        head.check()
    assert not head.answers()
    clock.now = 131.0
    with pytest.raises(HeadLost, match=f"Ray's head at {address} has not answered for 31 s"):
        head.check()
    clock.now = 200.0
    head.check()  # once
