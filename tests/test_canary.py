"""A random adapter with a large effect shows whether requests are drawn under what is loaded.

The faults are made in the real engines, behind what is read back: every tensor is where it belongs.
"""

import contextlib

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
def backend(bases, make_backend):
    return make_backend(bases["biases"])


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


@pytest.fixture(params=["vllm", "transformers", "transformers with its own base"])
def engine(request, bases, backend, make_backend):
    if request.param == "vllm":
        return request.getfixturevalue("on_vllm")
    if request.param == "transformers":
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


def test_vllm_that_computes_without_the_adapter(on_vllm, shape, monkeypatch):
    for layer in on_vllm.slots.manager.modules.values():
        monkeypatch.setattr(layer, "_apply_lora_to_output", lambda x, output: output)
    with pytest.raises(AdapterMismatch, match="with a large random adapter they are as without"):
        on_vllm.canary(shape)
    assert on_vllm.version == -1 and not on_vllm.loaded


def test_vllm_that_computes_later_tokens_without_the_adapter(on_vllm, shape, monkeypatch):
    """As a graph of CUDA would that was captured without it: one token of each request."""
    for layer in on_vllm.slots.manager.modules.values():
        apply = layer._apply_lora_to_output

        def skip(x, output, apply=apply):
            return output if len(x) <= canary.PROMPTS else apply(x, output)

        monkeypatch.setattr(layer, "_apply_lora_to_output", skip)
    with pytest.raises(AdapterMismatch, match="only the first tokens were drawn under it"):
        on_vllm.canary(shape)


@pytest.mark.parametrize(
    ("stuck", "problem"),
    [
        (canary.SECOND, "when another adapter was loaded they stayed those of the first"),
        (canary.NONE_AGAIN, "with an adapter of zeros they are not as before"),
    ],
)
def test_vllm_whose_slot_stays_as_it_was(stuck, problem, on_vllm, shape, monkeypatch):
    monkeypatch.setattr(Slots, "_compare", lambda *_: None)
    load = on_vllm.load

    def load_or_not(adapter):
        if adapter.version == stuck:
            for layer in on_vllm.slots.manager.modules.values():
                monkeypatch.setattr(layer, "set_lora", lambda *_: None)
        load(adapter)

    monkeypatch.setattr(on_vllm, "load", load_or_not)
    with pytest.raises(AdapterMismatch, match=problem):
        on_vllm.canary(shape)


def test_vllm_that_forgets_a_requests_adapter(on_vllm, shape, monkeypatch):
    add_request = on_vllm.llm.llm_engine.add_request
    monkeypatch.setattr(
        on_vllm.llm.llm_engine, "add_request", lambda *given, lora_request: add_request(*given)
    )
    with pytest.raises(AdapterMismatch, match="drawn without an adapter"):
        on_vllm.canary(shape)
    assert on_vllm.is_finished()


@pytest.mark.parametrize("has_own_base", few([False, True]))
def test_transformers_that_generates_without_the_adapter(
    has_own_base, bases, backend, make_backend, shape, monkeypatch
):
    if has_own_base:
        backend = make_backend(bases["biases"], trained=False, seed=3)
    engine = TransformersEngine(
        backend, bases["biases"], max_num_seqs=16, has_own_base=has_own_base
    )
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
    assert engine.has_own_base == has_own_base and engine.version == -1


def test_random_adapters(shape):
    first = Published(canary.adapter_of(shape, canary.FIRST, 8.0))
    second = Published(canary.adapter_of(shape, canary.SECOND, 8.0))
    zeros = Published(canary.adapter_of(shape, canary.NONE, 0.0))
    assert [(name, tuple(t.shape)) for name, t in first.tensors.items()] == list(shape.tensors)
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
