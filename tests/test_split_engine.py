"""vLLM over two workers, on a CPU: it draws as one does, proves what it holds, and leaves nothing.

Real workers in processes of their own, each with half of the embedded base, quantised as it loads.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_contract import requests
from test_readback import SWAP_LAYERS, in_files, with_settings

from unslothrl import embedded
from unslothrl.engines import vllm, vllm_internals, vllm_split
from unslothrl.engines.base import generate
from unslothrl.errors import AdapterMismatch, ProcessLost, RunError
from unslothrl.planning.footprint import EngineMemory
from unslothrl.records import Sample, Sampling
from unslothrl.weights import base_model
from unslothrl.weights.adapter import CONFIG_FILE
from unslothrl.weights.published import Published

pytestmark = [pytest.mark.real, pytest.mark.slow]

WORKERS, RANK = 2, 8
END_S = 20.0  # for processes to be gone
OPTIONS = {"dtype": "bfloat16", "context": 128, "rank": RANK, "max_num_seqs": 16, "seed": 0,
           "memory": EngineMemory(64), "max_loras": 2}  # fmt: skip


def started():
    base = base_model.prepare(embedded.EMBEDDED)
    return vllm_split.start(base, embedded.BASE, WORKERS, on_gpu=False, **OPTIONS)


@pytest.fixture(scope="module")
def engine():
    built = started()
    pids = built.in_workers(process_id)
    yield built
    built.close()
    wait_for_end(pids)


@pytest.fixture(scope="module")
def alone():
    """One worker, over the 4-bit base."""
    built = vllm.start(base_model.prepare(embedded.EMBEDDED), **OPTIONS)
    yield built
    built.close()


@pytest.fixture(scope="module")
def backend(make_backend):
    return make_backend(base_model.prepare(embedded.EMBEDDED))


def process_id(model) -> int:
    """Runs in each worker."""
    return os.getpid()


def step(backend) -> None:
    """Moves each weight by about a learning rate of 2e-5."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in backend.parameters().values():
            parameter += 2e-5 * torch.randn_like(parameter).sign()


def wait_for_end(pids: list[int]) -> None:
    end = time.monotonic() + END_S
    while left := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < end, f"{left} are left"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_it_has_the_learners_base(engine, backend):
    assert engine.fingerprint() == backend.fingerprint() != ""
    assert len(set(engine.in_workers(process_id)) | {os.getpid()}) == WORKERS + 1
    assert engine.memory_mb() > 100


def test_it_draws_what_the_learner_would(engine, alone, backend):
    """The log-probabilities of what it draws are the learner's, and those of an engine of one
    worker, but for rounding: sums over two halves are added in another order."""
    adapter, asked = backend.publish(1), requests(48)
    gaps, drawn = {}, {}
    for name, each in (("split", engine), ("alone", alone)):
        each.load(adapter)
        drawn[name] = generate(each, asked)
        samples = [Sample.of(r.prompt_ids, c) for r, c in zip(asked, drawn[name], strict=True)]
        with torch.no_grad():
            learner, _ = backend.token_logprobs(samples, 1.0)
        sampler = np.concatenate([one.logprobs for one in drawn[name]])
        gaps[name] = float(np.abs(learner.numpy() - sampler).mean())
    first = {
        name: [(one.token_ids[0], one.logprobs[0]) for one in completions]
        for name, completions in drawn.items()
    }
    both = list(zip(first["split"], first["alone"], strict=True))
    same = [abs(a - b) for (token, a), (other, b) in both if token == other]
    assert gaps["split"] < 1.5 * gaps["alone"]
    assert len(same) >= 0.9 * len(both)  # the same random numbers: others where rounding decides
    assert np.mean(same) < 0.03


def test_every_wrong_adapter_is_named(engine, backend, monkeypatch, tmp_path):
    """In the files, in one worker's slots, or not loaded at all; neighbours in training."""
    engine.load(backend.publish(10))
    before = Path(engine.loaded[engine.newest].lora_path)
    older = shutil.copytree(before, tmp_path / "older")
    step(backend)
    adapter = backend.publish(11)
    add_lora = engine.llm.llm_engine.add_lora

    def in_folder(change):
        return lambda request: change(Path(request.lora_path)) or add_lora(request)

    def in_worker(change):
        def add(request):
            added = add_lora(request)
            engine.in_workers(partial(spoil, change, request.lora_int_id))
            return added

        return add

    def alpha(folder: Path) -> None:
        path = folder / CONFIG_FILE
        path.write_text(with_settings(path.read_text(), lora_alpha=15))

    def version_before(folder: Path) -> None:
        shutil.copytree(older, folder, dirs_exist_ok=True)

    for wrong, message in (
        (lambda request: True, r"on GPU 0 of 2, none of its 2 slots"),  # it is not loaded
        (in_folder(alpha), r"on GPU 0 of 2, in slot \d, .*lora_B differs"),
        (in_folder(version_before), r"what vLLM reads it from is not what was published"),
        (in_folder(in_files(SWAP_LAYERS)), r"what vLLM reads it from is not what was published"),
        (in_worker("layers"), r"on GPU 1 of 2, in slot \d, model\.layers\.0\..* differs"),
        (in_worker("bit"), r"on GPU 1 of 2, in slot \d, .* in 1 of \d+ values"),
        (in_worker("half"), r"on GPU 1 of 2, in slot \d, .* differs"),
        (in_worker("zero"), r"on GPU 1 of 2, in slot \d, .* is zero"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(engine.llm.llm_engine, "add_lora", wrong)
            with pytest.raises(AdapterMismatch, match=rf"does not hold adapter v11: .*{message}"):
                engine.load(adapter)
    engine.load(adapter)  # as it is
    assert generate(engine, requests(2))[0].policy_version == 11


def own_gpu() -> int:
    """The worker's number among all of its engine."""
    from vllm.distributed import get_world_group

    return get_world_group().rank


def spoil(change: str, id: int, model) -> None:
    """Runs in each worker, and changes what the second holds of the adapter of that id."""
    if own_gpu() == 0:
        return
    slot = model.lora_manager.lora_index_to_id.index(id)
    down = [model.lora_manager.modules[f"model.layers.{i}.mlp.down_proj"] for i in (0, 1)]
    a, b = (each.lora_a_stacked[0][slot, 0] for each in down)
    if change == "layers":
        a[:], b[:] = b.clone(), a.clone()
    elif change == "bit":
        a.view(torch.int16)[0, 0] ^= 1
    elif change == "half":  # the other worker's part
        a[:] = a.roll(1, dims=1)
    else:
        a.zero_()


def test_a_batch_without_its_adapter_is_noticed(engine, backend, monkeypatch):
    engine.load(backend.publish(20))
    add_request = engine.llm.llm_engine.add_request
    monkeypatch.setattr(
        engine.llm.llm_engine, "add_request", lambda *given, lora_request: add_request(*given)
    )
    for request in requests(4, sampling=Sampling(1.0, 1.0, 0, 64)):
        engine.add(request)
    with pytest.raises(AdapterMismatch, match="v20: a request was drawn without an adapter"):
        for _ in range(2 * vllm_split.LOOK_EVERY):
            engine.step()
    engine.abort([str(index) for index in range(4)])


def turn_bit(model) -> None:
    """Runs in each worker; in the second it changes a 4-bit value."""
    if own_gpu() == 1:
        layer = model.get_submodule("model.layers.2.self_attn.o_proj")
        getattr(layer, "base_layer", layer).weight.data[-1] ^= 1


def scale(factor: float, model) -> None:
    for name, _, state, _ in vllm_internals.quantised_in(model):
        if own_gpu() == 1 and name == "model.layers.1.mlp.up_proj":
            state.absmax *= factor


def test_another_base_in_one_worker_is_named(engine):
    engine.in_workers(turn_bit)
    with pytest.raises(RunError, match=r"\.2\.self_attn\.o_proj has other 4-bit .* on GPU 1"):
        engine.fingerprint()
    engine.in_workers(turn_bit)
    assert engine.fingerprint()
    engine.in_workers(partial(scale, 1.01))
    with pytest.raises(RunError, match=r"\.1\.mlp\.up_proj has other scales on GPU 1"):
        engine.fingerprint()
    engine.in_workers(partial(vllm_split.base_problem, engine.base, True))
    assert engine.fingerprint()


def test_the_canary(engine, backend):
    for loaded in list(engine.loaded):
        engine._remove_lora(engine.loaded.pop(loaded))
    engine.canary(Published(backend.publish(30)).shape())
    assert not engine.loaded


def test_without_its_actor_no_worker_is_left(tmp_path):
    log = (tmp_path / "log").open("w")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    actor = subprocess.Popen(
        [sys.executable, __file__], stdout=subprocess.PIPE, stderr=log, env=environment
    )
    pids: list[int] = []
    try:
        line = actor.stdout.readline()
        assert line, (tmp_path / "log").read_text()
        pids = json.loads(line)
        assert len(pids) == WORKERS and all(map(is_alive, pids))
        actor.kill()
        actor.wait()
        wait_for_end(pids)
    finally:
        actor.kill()
        for pid in filter(is_alive, pids):
            os.kill(pid, signal.SIGKILL)


def test_a_worker_that_dies_ends_its_actor():
    engine = started()
    pids = engine.in_workers(process_id)
    try:
        for request in requests(4):
            engine.add(request)
        engine.step()
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(ProcessLost, match="has lost vLLM's worker"):
            for _ in range(1000):
                engine.step()
    finally:
        engine.close()
    wait_for_end(pids)


if __name__ == "__main__":
    held = started()  # or its workers end with it
    print(json.dumps(held.in_workers(process_id)), flush=True)
    signal.pause()
