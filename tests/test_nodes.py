"""A joined cluster of two real nodes: each is looked at, made ready, refused where it differs."""

import os
import shutil
import subprocess
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from python_process import unslothrl
from ray_nodes import RayNodes, own_token
from stopped_run import as_flags

from unslothrl.cluster import joining, nodes, on_node
from unslothrl.config.options import Config
from unslothrl.embedded import BASE
from unslothrl.errors import UserError
from unslothrl.planning.place import place
from unslothrl.system.machine import Machine
from unslothrl.weights import base_model

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[1]
OPTIONS = {
    "learner": "grpo", "number_of_actors": 2, "engine": "transformers", "max_steps": 2,
    "batch_size": 2, "num_candidates": 2, "topk": 2, "learner_chunk_size": 0,
    "max_new_tokens": 8, "eval_every": 0,
}  # fmt: skip
REWARD = "from beside import VALUE\n\ndef reward(completion, answer):\n    return VALUE\n"


@pytest.fixture(scope="module")
def cluster():
    """A head and a second node, neither with a GPU."""
    with closing(RayNodes("--num-cpus=1", "--num-gpus=0")) as started:
        started.add("--num-cpus=1", "--num-gpus=0", PYTHONPATH=str(started.folder / "other"))
        yield started


def trained(cluster: RayNodes, folder: Path) -> subprocess.CompletedProcess:
    flags = as_flags({**OPTIONS, "ray_address": cluster.address})
    environ = cluster.environment(cluster.folder / "home0", PYTHONPATH=str(ROOT))
    return unslothrl(*flags, cwd=folder, env=environ, timeout=280)


@pytest.fixture
def ray(cluster, monkeypatch):
    """This process as a driver of the cluster."""
    for name, value in cluster.environment(cluster.folder / "home0").items():
        monkeypatch.setenv(name, value)
    import ray

    with own_token():
        joining.check(cluster.address)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield ray
        ray.shutdown()


def looked(ray, cluster, **options) -> nodes.JoinedNodes:
    config = replace(
        Config(), model="embedded", learner="grpo", engine="transformers", backend="peft",
        ray_address=cluster.address, **options,
    )  # fmt: skip
    return nodes.JoinedNodes(ray, config, base_model.prepare("embedded"), Machine.detect())


@pytest.mark.slow
def test_a_node_with_another_version_is_refused_by_name(cluster, tmp_path):
    facts = cluster.folder / "other" / "peft-0.1.0.dist-info"  # on the second node's path alone
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: peft\nVersion: 0.1.0\n")
    try:
        done = trained(cluster, tmp_path)
    finally:
        shutil.rmtree(facts.parent)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2
    assert last.startswith("unslothrl: node ") and "has peft 0.1.0 (the driver: " in last
    assert last.endswith("install the same everywhere") and "loading" not in done.stdout


@pytest.mark.slow
def test_a_run_on_two_nodes(cluster, tmp_path):
    done = trained(cluster, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_node_is_sent_the_files_that_it_lacks(ray, cluster, tmp_path):
    (tmp_path / "mine.py").write_text(REWARD)
    (tmp_path / "beside.py").write_text("VALUE = 0.5\n")
    reward = f"{tmp_path}/mine.py:reward=2"
    found = looked(ray, cluster, number_of_actors=1, reward=(reward,))
    placement = place(found.config, found.resources, base_mb=1)
    (learner,), (actor,) = placement.learners, placement.actors
    assert learner.node != actor.node
    found.facts[actor.node.id]["digests"][f"{tmp_path}/mine.py"] = ""  # as on another machine
    found.prepare(placement)
    assert found.start_of(learner).config.reward == (reward,)
    (sent,) = found.start_of(actor).config.reward
    file = Path(sent.removesuffix(":reward=2"))
    assert sent == f"{file}:reward=2" and file.parent != tmp_path and file.name == "mine.py"
    assert file.read_text() == REWARD
    assert (file.parent / "beside.py").read_text() == "VALUE = 0.5\n"
    assert (found.start_of(actor).base / "model.safetensors").is_file()  # quantised there
    scratch = Path(found.start_of(actor).environment["UNSLOTHRL_SCRATCH"])
    assert scratch in file.parents
    found.close()
    assert not scratch.exists()


@pytest.mark.slow
def test_a_reward_that_lacks_something_on_a_node_is_refused_there(tmp_path):
    """It would earn nothing on that node alone."""
    path, lacks = str(tmp_path / "mine.py"), "No module named 'helpers'"
    (tmp_path / "mine.py").write_text(f"from helpers.words import WORDS\n{REWARD}")
    config = replace(Config(), model=str(BASE), reward=(f"{path}:reward",))
    with pytest.raises(UserError, match=f"reward .*{lacks}"):
        on_node.prepare(config, [path], "session", "job", on_node.content(path))


@pytest.mark.slow
def test_gpus_are_held_one_by_one_and_given_back(ray, cluster):
    """Ray counts four GPUs on a third node, which are not there: their size is not known. An actor
    over two starts by the group of one of them, and the run holds the other's as long."""
    cluster.add("--num-cpus=1", "--num-gpus=4")
    found = looked(ray, cluster, number_of_actors=1, actor_tensor_parallel=2)
    assert found.resources.gpus == (None,) * 4
    placement = place(found.config, found.resources, base_mb=1)
    assert [len(plan.cards) for plan in placement.processes] == [1, 2]
    found.prepare(placement)
    deadline = time.monotonic() + 30
    while ray.available_resources().get("GPU") != 1.0 and time.monotonic() < deadline:
        pass
    assert ray.available_resources()["GPU"] == 1.0
    seen = []
    for plan in placement.processes:
        start = found.start_of(plan)
        task = ray.remote(num_cpus=0)(
            lambda: (os.environ["CUDA_VISIBLE_DEVICES"], ray.get_runtime_context().get_node_id())
        )
        ref = task.options(
            scheduling_strategy=start.strategy, runtime_env={"env_vars": start.environment}
        ).remote()
        visible, node = ray.get(ref)
        assert visible.split(",") == [found.cards[card].visible for card in plan.cards]
        assert node == plan.node.id
        seen += visible.split(",")
    assert len(set(seen)) == 3
    found.close()
