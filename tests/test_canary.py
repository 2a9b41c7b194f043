"""A random adapter with a large effect shows whether requests are drawn under what is loaded.

The faults are made in the real engines, behind what is read back: every tensor is where it belongs.
"""

import contextlib
from functools import partial

import pytest
import torch
from engine_contract import held_by, requests
from few_cases import few

from unslothrl.engines import canary
from unslothrl.engines.base import NO_LOAD, generate
from unslothrl.engines.readback import Slots
from unslothrl.engines.transformers import TransformersEngine
from unslothrl.engines.vllm import VllmEngine
from unslothrl.errors import AdapterMismatch
from unslothrl.weights.published import Published

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def shape(backend):
    return Published(backend.publish(0)).shape()


@pytest.fixture
def on_vllm(vllm_engine, bases, monkeypatch):
    """As it is when an actor starts, with one slot; the fixture's has loaded versions already."""
    engine = VllmEngine(vllm_engine.llm, bases["biases"])
    for name in ("max_loras", "max_cpu_loras"):
        monkeypatch.setattr(engine.slots.manager.lora_config, name, 1)
    yield engine
    engine.close()


VLLM, SHARED, OWN = "vllm", "transformers", "transformers with its own base"


@pytest.fixture(params=[VLLM, SHARED, OWN])
def engine(request, bases, backend, make_backend):
    if request.param == VLLM:
        return request.getfixturevalue("on_vllm")
    if request.param == SHARED:
        return TransformersEngine(backend, bases["biases"], max_num_seqs=16, has_own_base=False)
    own = make_backend(bases["biases"], trained=False, seed=3)
    return TransformersEngine(own, bases["biases"], max_num_seqs=5, has_own_base=True)


def test_it_passes_and_leaves_nothing_behind(engine, shape, backend):
    trained = {name: p.detach().clone() for name, p in backend.parameters().items()}
    state = torch.get_rng_state()
    before = generate(engine, requests(8))
    counts = engine.sampled_tokens, engine.versions_loaded, engine.versions_unloaded
    engine.canary(shape)
    if not isinstance(engine, VllmEngine):  # whose every draw moves it, unused: requests have seeds
        assert torch.equal(torch.get_rng_state(), state)
    assert counts == (engine.sampled_tokens, engine.versions_loaded, engine.versions_unloaded)
    assert engine.version == -1 and held_by(engine) == 0 and engine.is_finished()
    assert generate(engine, requests(8)) == before  # of the base, or of what a learner holds
    for name, parameter in backend.parameters().items():
        assert torch.equal(parameter, trained[name])
    engine.load(backend.publish(0))
    assert {each.policy_version for each in generate(engine, requests(8))} == {0}
    if isinstance(engine, VllmEngine):
        assert len(engine.loaded) == len([*engine.files.folder.iterdir()]) == 1
        assert engine.newest != NO_LOAD
    else:
        assert list(engine.backend.model.peft_config) == ["default"]


def without_adapter(engine, patch):
    for layer in engine.slots.manager.modules.values():
        patch.setattr(layer, "_apply_lora_to_output", lambda x, output: output)


def later_tokens_without_adapter(engine, patch):
    """As a graph of CUDA would that was captured without it: one token of each request."""
    for layer in engine.slots.manager.modules.values():
        apply = layer._apply_lora_to_output

        def skip(x, output, apply=apply):
            return output if len(x) <= canary.PROMPTS else apply(x, output)

        patch.setattr(layer, "_apply_lora_to_output", skip)


def slot_stays(engine, patch, version):
    """As it was before a version came."""
    patch.setattr(Slots, "_compare", lambda *_: None)
    load = engine.load

    def load_or_not(adapter):
        if adapter.version == version:
            for layer in engine.slots.manager.modules.values():
                patch.setattr(layer, "set_lora", lambda *_: None)
        load(adapter)

    patch.setattr(engine, "load", load_or_not)


def requests_without_adapter(engine, patch):
    inner = engine.llm.llm_engine
    add = inner.add_request
    patch.setattr(inner, "add_request", lambda *given, lora_request: add(*given))


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (without_adapter, "with a large random adapter they are as without"),
        (later_tokens_without_adapter, "only the first tokens were drawn under it"),
        (partial(slot_stays, version=canary.SECOND), "they stayed those of the first"),
        (partial(slot_stays, version=canary.NONE_AGAIN), "of zeros they are not as before"),
        (requests_without_adapter, "drawn without an adapter"),
    ],
)
def test_a_fault_of_vllm_is_named(fault, problem, on_vllm, shape, monkeypatch):
    fault(on_vllm, monkeypatch)
    with pytest.raises(AdapterMismatch, match=problem):
        on_vllm.canary(shape)
    assert on_vllm.version == -1 and not on_vllm.loaded and on_vllm.is_finished()


@pytest.mark.parametrize("engine", few([SHARED, OWN]), indirect=True)
def test_transformers_that_generates_without_the_adapter(engine, shape, monkeypatch):
    backend = engine.backend
    before = {name: p.detach().clone() for name, p in backend.parameters().items()}
    generating = backend.generating

    @contextlib.contextmanager
    def without():
        with generating() as model, backend.model.disable_adapter():
            yield model

    monkeypatch.setattr(backend, "generating", without)
    with pytest.raises(AdapterMismatch, match="with a large random adapter they are as without"):
        engine.canary(shape)
    for name, parameter in backend.parameters().items():
        assert torch.equal(parameter, before[name])
    assert engine.version == -1


def test_random_adapters(shape):
    first = Published(canary.adapter_of(shape, canary.FIRST, 8.0))
    second = Published(canary.adapter_of(shape, canary.SECOND, 8.0))
    zeros = Published(canary.adapter_of(shape, canary.NONE, 0.0))
    found = [(name, tuple(tensor.shape)) for name, tensor in first.tensors.items()]
    assert sorted(found) == list(shape.tensors)
    for name, tensor in first.tensors.items():
        assert tensor.dtype == torch.bfloat16 and not zeros.tensors[name].any()
        if ".layers.0." in name:
            assert not tensor.any() and not second.tensors[name].any()
            continue  # the last layer alone: through many, rounding would decide the tokens
        assert not torch.equal(tensor, second.tensors[name])
        rank, inner = 8, tensor.shape[1]  # alpha / r is 2
        expected = inner**-0.5 if ".lora_A." in name else 8 * rank**-0.5 / 2
        assert tensor.float().std().item() == pytest.approx(expected, rel=0.15)
    assert first.shape() == shape
