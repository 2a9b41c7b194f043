"""vLLM whose layers are divided among two workers, on a CPU: it draws as one does, over the same
4-bit base, and proves of each stage what it holds."""

from functools import partial

import numpy as np
import pytest
import torch
from engine_contract import requests
from few_cases import few
from test_split_engine import OPTIONS, own_gpu, process_id, wait_for_end

from unslothrl import embedded
from unslothrl.engines import vllm, vllm_internals, vllm_split
from unslothrl.engines.base import generate
from unslothrl.errors import AdapterMismatch, RunError
from unslothrl.weights import base_model
from unslothrl.weights.published import Published

pytestmark = [pytest.mark.real, pytest.mark.slow]

STAGES = 2


@pytest.fixture(scope="module")
def base():
    return base_model.prepare(embedded.EMBEDDED)


@pytest.fixture(scope="module")
def engine(base):
    built = vllm_split.start(base, base, 1, stages=STAGES, on_gpu=False, **OPTIONS)
    pids = built.in_workers(process_id)
    assert len(set(pids)) == STAGES
    yield built
    built.close()
    wait_for_end(pids)


@pytest.fixture(scope="module")
def backend(make_backend, base):
    return make_backend(base)


def test_it_draws_what_one_worker_does(engine, base, backend):
    """One request at a time to the bit, by as many threads; of many at once both batch differently,
    and rounding in bfloat16 decides a few tokens."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // STAGES))
    alone = vllm.start(base, **OPTIONS)
    adapter, asked = backend.publish(1), requests(48)
    one_by_one, at_once = [], []
    for each in (engine, alone):
        each.load(adapter)
        one_by_one.append([generate(each, [request])[0] for request in asked[:12]])
        at_once.append(generate(each, asked))
    alone.close()
    torch.set_num_threads(threads)
    for one, other in zip(*one_by_one, strict=True):
        assert list(one.token_ids) == list(other.token_ids)
        assert list(one.logprobs) == list(other.logprobs)
    first = [
        (one.token_ids[0] == other.token_ids[0], abs(one.logprobs[0] - other.logprobs[0]))
        for one, other in zip(*at_once, strict=True)
    ]
    assert sum(same for same, _ in first) >= 0.9 * len(first)
    assert np.mean([gap for same, gap in first if same]) < 0.03
    assert engine.fingerprint() == backend.fingerprint() != ""
    assert len(engine.last_layers) == STAGES


def spoil(change: str, stage: int, id: int, model) -> None:
    """Runs in each worker, and changes what one of them holds of the adapter of that id."""
    if own_gpu() != stage:
        return
    slot = model.lora_manager.lora_index_to_id.index(id)
    layer = model.model.end_layer - 1
    down = model.lora_manager.modules[f"model.layers.{layer}.mlp.down_proj"]
    a, b = down.lora_a_stacked[0][slot, 0], down.lora_b_stacked[0][slot, 0]
    if change == "bit":
        a.view(torch.int16)[0, 0] ^= 1
    elif change == "zero":
        b.zero_()
    elif change == "rank":
        a[:] = a.roll(1, dims=0)
    else:
        b *= 2


def turn_bit(stage: int, model) -> None:
    """Runs in each worker, and changes a 4-bit value of one."""
    if own_gpu() == stage:
        layer = model.get_submodule(f"model.layers.{model.model.start_layer}.self_attn.o_proj")
        getattr(layer, "base_layer", layer).weight.data[-1] ^= 1


def scale(stage: int, factor: float, model) -> None:
    for number, (_, _, state, _) in enumerate(vllm_internals.quantised_in(model)):
        if own_gpu() == stage and number == 0:
            state.absmax *= factor


@pytest.mark.parametrize("stage", range(STAGES))
@pytest.mark.parametrize("change", few(["bit", "zero", "rank", "doubled"], 4))
def test_a_wrong_adapter_in_one_stage_is_named(change, stage, engine, backend, monkeypatch):
    add_lora = engine.llm.llm_engine.add_lora

    def add(request):
        added = add_lora(request)
        engine.in_workers(partial(spoil, change, stage, request.lora_int_id))
        return added

    adapter = backend.publish(10)
    with monkeypatch.context() as patch:
        patch.setattr(engine.llm.llm_engine, "add_lora", add)
        with pytest.raises(AdapterMismatch, match=rf"on GPU {stage} of 2, in slot \d, model"):
            engine.load(adapter)
    engine.load(adapter)  # as it is


@pytest.mark.parametrize("stage", range(STAGES))
def test_another_base_in_one_stage_is_named(stage, engine):
    engine.in_workers(partial(turn_bit, stage))
    with pytest.raises(RunError, match=f"o_proj has other 4-bit .* on GPU {stage} than"):
        engine.fingerprint()
    engine.in_workers(partial(turn_bit, stage))
    engine.in_workers(partial(scale, stage, 1.01))
    with pytest.raises(RunError, match=f"has other scales on GPU {stage} than"):
        engine.fingerprint()
    engine.in_workers(partial(vllm_split.base_problem, engine.base, True))
    assert engine.fingerprint()


def test_the_canary_sees_every_stage(engine, backend, monkeypatch):
    for loaded in list(engine.loaded):
        engine._remove_lora(engine.loaded.pop(loaded))
    shape = Published(backend.publish(30)).shape()
    engine.canary(shape)
    assert not engine.loaded
