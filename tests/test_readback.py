"""Every way in which an engine may hold other weights than those that were published stops it.

The faults are made inside the real engine, and the two versions differ by one step of a learning
rate of 2e-5: log-probabilities cannot tell them apart.
"""

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
from engine_contract import requests
from fakes import FakeEngine
from few_cases import few

from unslothrl import embedded
from unslothrl.actors.actor import Actor
from unslothrl.engines.base import generate
from unslothrl.engines.readback import shard
from unslothrl.engines.transformers import TransformersEngine
from unslothrl.errors import AdapterMismatch
from unslothrl.weights import base_model
from unslothrl.weights.adapter import CONFIG_FILE, WEIGHTS_FILE, Adapter
from unslothrl.weights.published import Published

pytestmark = pytest.mark.real
LR = 2e-5


@pytest.fixture(scope="module")
def backend(bases, make_backend):
    return make_backend(bases["biases"])


@pytest.fixture
def versions(backend):
    """-> a function: the adapter of a version; each differs from the one before by a step of Adam
    at `LR`, which moves a weight by about `LR`."""
    before = {name: p.detach().clone() for name, p in backend.parameters().items()}

    def publish(version: int) -> Adapter:
        torch.manual_seed(version)
        with torch.no_grad():
            for parameter in backend.parameters().values():
                parameter += LR * torch.randn_like(parameter).sign()
        return backend.publish(version)

    yield publish
    with torch.no_grad():
        for name, parameter in backend.parameters().items():
            parameter.copy_(before[name])


@pytest.fixture(autouse=True)
def one_slot(request, monkeypatch):
    """The fixture's engine has room for several versions; here the newest always takes slot 0."""
    if "vllm_engine" in request.fixturenames:
        config = request.getfixturevalue("vllm_engine").slots.manager.lora_config
        monkeypatch.setattr(config, "max_loras", 1)
        monkeypatch.setattr(config, "max_cpu_loras", 1)


def changed(adapter: Adapter, change) -> Adapter:
    """Of the same version and config; `change` gets the tensors by name."""
    tensors = safetensors.torch.load(bytes(adapter.weights))
    change(tensors)
    return Adapter.of(adapter.version, safetensors.torch.save(tensors), adapter.config)


def swap_layers(tensors: dict[str, torch.Tensor]) -> None:
    for name in [name for name in tensors if ".layers.0." in name]:
        other = name.replace(".layers.0.", ".layers.1.")
        tensors[name], tensors[other] = tensors[other], tensors[name]


def leave_out_half(tensors: dict[str, torch.Tensor]) -> None:
    for name in [name for name in tensors if ".layers.1." in name]:
        del tensors[name]


def swap_keys_and_values(tensors: dict[str, torch.Tensor]) -> None:
    for name in [name for name in tensors if ".k_proj." in name]:
        other = name.replace(".k_proj.", ".v_proj.")
        tensors[name], tensors[other] = tensors[other], tensors[name]


def not_a_number(tensors: dict[str, torch.Tensor]) -> None:
    tensors[sorted(tensors)[-1]][0, 0] = math.nan


def one_value(tensors: dict[str, torch.Tensor]) -> None:
    """By the last bit."""
    tensors[sorted(tensors)[0]].view(torch.int16)[0, 0] ^= 1


TENSORS = [swap_layers, leave_out_half, swap_keys_and_values, not_a_number, one_value]


def on_files(engine, monkeypatch, change) -> None:
    """What vLLM reads is changed behind the engine's back: `change` gets the folder."""
    add_lora = engine.llm.llm_engine.add_lora

    def add_changed(request):
        change(Path(request.lora_path))
        return add_lora(request)

    monkeypatch.setattr(engine.llm.llm_engine, "add_lora", add_changed)


def newest_folder(engine) -> Path:
    return Path(engine.loaded[engine.newest].request.lora_path)


def in_files(change):
    def rewrite(folder: Path) -> None:
        tensors = safetensors.torch.load_file(folder / WEIGHTS_FILE)
        change(tensors)
        safetensors.torch.save_file(tensors, folder / WEIGHTS_FILE)

    return rewrite


def config_with(**settings):
    def rewrite(folder: Path) -> None:
        path = folder / CONFIG_FILE
        path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))

    return rewrite


@pytest.mark.parametrize("change", few(TENSORS, 2))
def test_vllm_with_other_tensors(change, vllm_engine, versions, monkeypatch):
    vllm_engine.load(versions(100))
    on_files(vllm_engine, monkeypatch, in_files(change))
    with pytest.raises(AdapterMismatch, match=r"adapter v101: in slot 0, .*layers\.[01]\."):
        vllm_engine.load(versions(101))
    (drawn,) = generate(vllm_engine, requests(1))
    assert drawn.policy_version == 100  # nothing is drawn under it


@pytest.mark.parametrize(
    "settings", few([{"lora_alpha": 32}, {"lora_alpha": 15}, {"use_rslora": True}]), ids=str
)
def test_vllm_with_another_scaling(settings, vllm_engine, versions, monkeypatch):
    on_files(vllm_engine, monkeypatch, config_with(**settings))
    with pytest.raises(AdapterMismatch, match=r"lora_B differs from the published one in \d+ of"):
        vllm_engine.load(versions(102))


def test_vllm_with_the_version_before(vllm_engine, versions, monkeypatch, tmp_path):
    vllm_engine.load(versions(103))
    before = newest_folder(vllm_engine)
    kept = shutil.copytree(before, tmp_path / "before")
    on_files(vllm_engine, monkeypatch, lambda to: shutil.copytree(kept, to, dirs_exist_ok=True))
    with pytest.raises(AdapterMismatch, match=r"adapter v104: in slot 0, .* differs"):
        vllm_engine.load(versions(104))


def test_vllm_that_loads_nothing(vllm_engine, versions, monkeypatch):
    monkeypatch.setattr(vllm_engine.llm.llm_engine, "add_lora", lambda request: True)
    with pytest.raises(AdapterMismatch, match=r"adapter v105: none of its \d slots is this"):
        vllm_engine.load(versions(105))


def test_vllm_that_leaves_its_slot_as_it_was(vllm_engine, versions, monkeypatch):
    """The layers' tensors are never written to, or set to zero alone."""
    vllm_engine.load(versions(106))
    layers = vllm_engine.slots.manager.modules.values()
    for layer in layers:
        monkeypatch.setattr(layer, "set_lora", lambda *_: None)
    with pytest.raises(AdapterMismatch, match=r"adapter v107: in slot 0, .* differs"):
        vllm_engine.load(versions(107))
    for layer in layers:
        monkeypatch.setattr(layer, "set_lora", lambda slot, *_, layer=layer: layer.reset_lora(slot))
    with pytest.raises(AdapterMismatch, match="is zero, and was not published so"):
        vllm_engine.load(versions(108))


def test_vllm_with_a_layer_that_has_no_lora(vllm_engine, versions, monkeypatch):
    modules = dict(vllm_engine.slots.manager.modules)
    del modules["model.layers.1.mlp.down_proj"]
    monkeypatch.setattr(vllm_engine.slots.manager, "modules", modules)
    with pytest.raises(AdapterMismatch, match=r"no layer with a LoRA for model\.layers\.1\.mlp\.d"):
        vllm_engine.load(versions(109))


def test_what_a_smaller_adapter_leaves_behind(vllm_engine, versions, monkeypatch):
    """An adapter without some layers, or of a lower rank, must not keep another's there."""

    def of_layer_0(tensors):
        for name in [name for name in tensors if ".layers.1." in name]:
            del tensors[name]

    def of_rank_4(tensors):
        for name, tensor in tensors.items():
            tensors[name] = (tensor[:4] if "lora_A" in name else tensor[:, :4]).contiguous()

    for number, change in ((110, of_layer_0), (113, of_rank_4)):
        vllm_engine.load(versions(number))
        smaller = changed(versions(number + 1), change)
        vllm_engine.load(smaller)  # vLLM empties what is not in it
        with monkeypatch.context() as patch:
            for layer in vllm_engine.slots.manager.modules.values():
                patch.setattr(layer, "reset_lora", lambda slot: None)
            vllm_engine.load(versions(number + 2))
            with pytest.raises(AdapterMismatch, match=r"none was published|not zero beyond rank 4"):
                vllm_engine.load(Adapter.of(number + 10, smaller.weights, smaller.config))


def test_a_request_without_its_adapter(vllm_engine, versions, monkeypatch):
    vllm_engine.load(versions(130))
    add_request = vllm_engine.llm.llm_engine.add_request
    monkeypatch.setattr(
        vllm_engine.llm.llm_engine,
        "add_request",
        lambda *given, lora_request: add_request(*given),
    )
    vllm_engine.add(requests(1)[0])
    with pytest.raises(AdapterMismatch, match="v130: a request was drawn without an adapter"):
        vllm_engine.step()
    vllm_engine.abort(["0"])


def test_a_version_that_comes_back_into_its_slot_is_compared_again(
    vllm_engine, versions, monkeypatch
):
    """One slot and two versions in flight: vLLM reads the older one from its file again, which is
    damaged here."""
    vllm_engine.load(versions(140))
    first = newest_folder(vllm_engine)
    for request in requests(4):
        vllm_engine.add(request)
    vllm_engine.step()
    vllm_engine.load(versions(141))
    compared = []
    compare = vllm_engine.slots._compare
    monkeypatch.setattr(
        vllm_engine.slots, "_compare", lambda id, p: compared.append(p.version) or compare(id, p)
    )
    vllm_engine.step()
    assert compared == [140]
    vllm_engine.load(versions(142))
    in_files(swap_layers)(first)
    with pytest.raises(
        AdapterMismatch, match=r"v140: in slot 0, model\.layers\.0\.self_attn\.q_pr"
    ):
        vllm_engine.step()
    vllm_engine.abort([request.id for request in requests(4)])


def test_what_woke_up_is_compared(vllm_engine, versions, monkeypatch):
    """Sleeping, made here by hand as vLLM sleeps on a card alone, loses the slots."""
    vllm_engine.load(versions(150))
    (layer, *_) = vllm_engine.slots.manager.modules.values()
    held = layer.lora_b_stacked[0].clone()
    monkeypatch.setattr(vllm_engine, "is_asleep", True)
    monkeypatch.setattr(vllm_engine.llm, "wake_up", lambda: layer.lora_b_stacked[0].zero_())
    with pytest.raises(AdapterMismatch, match=r"v150: in slot 0, .*lora_B is zero"):
        vllm_engine.add(requests(1)[0])
    layer.lora_b_stacked[0].copy_(held)
    generate(vllm_engine, requests(2))


@pytest.fixture
def own(bases, make_backend):
    backend = make_backend(bases["biases"], trained=False, seed=3)
    return TransformersEngine(backend, bases["biases"], max_num_seqs=16, has_own_base=True)


@pytest.mark.parametrize("change", few(TENSORS, 2))
def test_transformers_with_other_tensors(change, own, versions, monkeypatch):
    own.load(versions(200))
    restore = own.backend.restore_adapter
    monkeypatch.setattr(
        own.backend, "restore_adapter", lambda adapter: restore(changed(adapter, change))
    )
    with pytest.raises(AdapterMismatch, match=r"adapter v201: .*layers\.[01]\."):
        own.load(versions(201))


def test_transformers_that_loads_nothing_or_another_scaling(
    own, versions, monkeypatch, bases, make_backend
):
    own.load(versions(202))
    with monkeypatch.context() as patch:
        patch.setattr(own.backend, "restore_adapter", lambda adapter: None)
        with pytest.raises(AdapterMismatch, match=r"v203: .* differs from the published one"):
            own.load(versions(203))
    adapter = versions(204)
    config = json.dumps({**json.loads(adapter.config), "lora_alpha": 17})
    with pytest.raises(AdapterMismatch, match=r"is scaled by 2, published with .* 2\.125"):
        own.load(Adapter.of(204, adapter.weights, config))


def test_transformers_with_its_lora_off(own, versions):
    own.backend.model.base_model.disable_adapter_layers()
    with pytest.raises(AdapterMismatch, match="has its LoRA switched off"):
        own.load(versions(205))
    own.backend.model.base_model.enable_adapter_layers()
    own.backend.keep_version(206, versions(206))
    own.backend.model.base_model.set_adapter("version-206")
    with pytest.raises(AdapterMismatch, match="computes with the LoRA version-206"):
        own.load(versions(207))
    own.backend.forget_version(206)
    own.backend.model.base_model.merge_adapter()
    with pytest.raises(AdapterMismatch, match="is merged into the base"):
        own.load(versions(208))


def test_transformers_with_a_kept_version_that_is_another(own, versions, monkeypatch):
    own.load(versions(210))
    own.add(requests(1)[0])
    own.step()  # what has not begun would begin under the newest version
    keep, other = own.backend.keep_version, versions(211)
    monkeypatch.setattr(
        own.backend,
        "keep_version",
        lambda key, _: keep(key, other),
    )
    with pytest.raises(AdapterMismatch, match=r"adapter v210: .* differs"):
        own.load(versions(212))


def test_the_learners_own_weights_are_those_that_it_published(backend, versions, bases):
    """Float32 weights equal what was published of them, rounded; others, a learner that has
    drifted from learner 0, do not."""
    engine = TransformersEngine(backend, bases["biases"], max_num_seqs=16, has_own_base=False)
    before, newest = versions(220), versions(221)
    assert before.checksum != newest.checksum
    engine.load(newest)
    with pytest.raises(AdapterMismatch, match=r"adapter v220: .* differs"):
        engine.load(before)


def test_the_actor_is_named():
    class Other(FakeEngine):
        def load(self, adapter: Adapter) -> None:
            raise AdapterMismatch.of(adapter.version, "its slot is empty")

    actor = Actor("actor-3", Other(), base_model.load_tokenizer(embedded.BASE))
    with pytest.raises(AdapterMismatch, match=r"^actor-3: the engine does not hold adapter v7"):
        actor.load(Adapter.of(7, b"", "{}"))
    actor.close()


def mixed(tensor: torch.Tensor) -> torch.Tensor:
    """Of any order of magnitude."""
    return (torch.randn(tensor.shape) * 10.0 ** torch.randint(-40, 30, ())).to(tensor)


EXTREME = {
    "zero": torch.zeros_like,
    "tiny": lambda tensor: torch.full_like(tensor, 1e-8),
    "denormal": lambda tensor: torch.full_like(tensor, 1e-39),
    "large": lambda tensor: torch.full_like(tensor, 3e4),
    "infinite when scaled": lambda tensor: torch.full_like(tensor, 3e38),
    "mixed": mixed,
}


@pytest.mark.parametrize("kind", few(EXTREME, 1))
@pytest.mark.parametrize("alpha", few([16, 12, 0.3], 1))
def test_no_false_alarm(kind, alpha, vllm_engine, own, versions):
    adapter = versions(300)

    def fill(tensors):
        for name in tensors:
            tensors[name] = EXTREME[kind](tensors[name])

    adapter = changed(adapter, fill)
    settings = {**json.loads(adapter.config), "lora_alpha": alpha}
    vllm_engine.load(Adapter.of(300, adapter.weights, json.dumps(settings)))
    if alpha == 16:
        own.load(adapter)


def test_published_is_what_was_saved(versions):
    adapter = versions(400)
    published, saved = Published(adapter), safetensors.torch.load(bytes(adapter.weights))
    assert published.tensors.keys() == saved.keys() and len(saved) == 28
    for name, tensor in saved.items():
        assert torch.equal(published.tensors[name], tensor)
        assert published.tensors[name].dtype == torch.bfloat16
    assert published.scaling == 2
    settings = {"r": 4, "lora_alpha": 6, "use_rslora": True}
    assert Published(Adapter.of(0, adapter.weights, json.dumps(settings))).scaling == 6 / 4**0.5


def test_the_shards_of_tensor_parallelism():
    """Four workers: the queries of 8 heads, keys of 2 (each on two workers), of size 3."""
    for worker in range(4):
        layer = SimpleNamespace(tp_rank=worker, tp_size=4)
        queries, keys = torch.arange(24.0)[:, None], torch.arange(6.0)[:, None]
        assert shard(queries, 0, 6, layer).flatten().tolist() == [
            *range(6 * worker, 6 * worker + 6)
        ]
        of_head = worker // 2
        assert shard(keys, 0, 3, layer).flatten().tolist() == [*range(3 * of_head, 3 * of_head + 3)]
        assert shard(keys, 0, 6, layer) is keys  # not split: the A of q, k and v
