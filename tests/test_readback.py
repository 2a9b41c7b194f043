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


@pytest.fixture
def versions(backend):
    """-> a function: the adapter of a version, a step of Adam at `LR` from the one before."""
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


def refuses(engine, adapter: Adapter, reason: str) -> None:
    with pytest.raises(AdapterMismatch, match=reason):
        engine.load(adapter)


def swapping(part: str, by: str):
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if part in name]:
            other = name.replace(part, by)
            tensors[name], tensors[other] = tensors[other], tensors[name]

    return change


def leave_out_half(tensors: dict[str, torch.Tensor]) -> None:
    for name in [name for name in tensors if ".layers.1." in name]:
        del tensors[name]


def not_a_number(tensors: dict[str, torch.Tensor]) -> None:
    tensors[sorted(tensors)[-1]][0, 0] = math.nan


def one_value(tensors: dict[str, torch.Tensor]) -> None:
    tensors[sorted(tensors)[0]].view(torch.int16)[0, 0] ^= 1


SWAP_LAYERS = swapping(".layers.0.", ".layers.1.")
TENSORS = [SWAP_LAYERS, leave_out_half, swapping(".k_proj.", ".v_proj."), not_a_number, one_value]


def on_files(engine, monkeypatch, change) -> None:
    """What vLLM reads is changed behind the engine's back: `change` gets the folder."""
    add_lora = engine.llm.llm_engine.add_lora

    def add_changed(request):
        change(Path(request.lora_path))
        return add_lora(request)

    monkeypatch.setattr(engine.llm.llm_engine, "add_lora", add_changed)


def newest_folder(engine) -> Path:
    return Path(engine.loaded[engine.newest].lora_path)


def in_files(change):
    def rewrite(folder: Path) -> None:
        tensors = safetensors.torch.load_file(folder / WEIGHTS_FILE)
        change(tensors)
        safetensors.torch.save_file(tensors, folder / WEIGHTS_FILE)

    return rewrite


def with_settings(config: str, **settings) -> str:
    return json.dumps({**json.loads(config), **settings})


@pytest.mark.parametrize("change", few(TENSORS, 2))
def test_vllm_with_other_tensors(change, vllm_engine, versions, monkeypatch):
    vllm_engine.load(versions(100))
    on_files(vllm_engine, monkeypatch, in_files(change))
    refuses(vllm_engine, versions(101), r"adapter v101: in slot 0, .*layers\.[01]\.")
    (drawn,) = generate(vllm_engine, requests(1))
    assert drawn.policy_version == 100  # nothing is drawn under it


@pytest.mark.parametrize(
    "settings", few([{"lora_alpha": 32}, {"lora_alpha": 15}, {"use_rslora": True}]), ids=str
)
def test_vllm_with_another_scaling(settings, vllm_engine, versions, monkeypatch):
    def rewrite(folder: Path) -> None:
        path = folder / CONFIG_FILE
        path.write_text(with_settings(path.read_text(), **settings))

    on_files(vllm_engine, monkeypatch, rewrite)
    refuses(vllm_engine, versions(102), r"lora_B differs from the published one in \d+ of")


def test_vllm_with_the_version_before(vllm_engine, versions, monkeypatch, tmp_path):
    vllm_engine.load(versions(103))
    kept = shutil.copytree(newest_folder(vllm_engine), tmp_path / "before")
    on_files(vllm_engine, monkeypatch, lambda to: shutil.copytree(kept, to, dirs_exist_ok=True))
    refuses(vllm_engine, versions(104), r"adapter v104: in slot 0, .* differs")


def test_vllm_that_loads_nothing(vllm_engine, versions, monkeypatch):
    monkeypatch.setattr(vllm_engine.llm.llm_engine, "add_lora", lambda request: True)
    refuses(vllm_engine, versions(105), r"adapter v105: none of its \d slots is this")


def test_vllm_that_leaves_its_slot_as_it_was(vllm_engine, versions, monkeypatch):
    """The layers' tensors are never written to, or set to zero alone."""
    vllm_engine.load(versions(106))
    layers = vllm_engine.slots.manager.modules.values()
    for layer in layers:
        monkeypatch.setattr(layer, "set_lora", lambda *_: None)
    refuses(vllm_engine, versions(107), r"adapter v107: in slot 0, .* differs")
    for layer in layers:
        monkeypatch.setattr(layer, "set_lora", lambda slot, *_, layer=layer: layer.reset_lora(slot))
    refuses(vllm_engine, versions(108), "is zero, and was not published so")


def test_vllm_with_a_layer_that_has_no_lora(vllm_engine, versions, monkeypatch):
    modules = dict(vllm_engine.slots.manager.modules)
    del modules["model.layers.1.mlp.down_proj"]
    monkeypatch.setattr(vllm_engine.slots.manager, "modules", modules)
    refuses(vllm_engine, versions(109), r"no layer with a LoRA for model\.layers\.1\.mlp\.d")


def test_what_a_smaller_adapter_leaves_behind(vllm_engine, versions, monkeypatch):
    def of_rank_4(tensors):
        for name, tensor in tensors.items():
            tensors[name] = (tensor[:4] if "lora_A" in name else tensor[:, :4]).contiguous()

    for number, change in ((110, leave_out_half), (113, of_rank_4)):
        vllm_engine.load(versions(number))
        smaller = changed(versions(number + 1), change)
        vllm_engine.load(smaller)  # vLLM empties what is not in it
        with monkeypatch.context() as patch:
            for layer in vllm_engine.slots.manager.modules.values():
                patch.setattr(layer, "reset_lora", lambda slot: None)
            vllm_engine.load(versions(number + 2))
            again = Adapter.of(number + 10, smaller.weights, smaller.config)
            refuses(vllm_engine, again, r"none was published|not zero beyond rank 4")


def test_a_version_that_comes_back_into_its_slot_is_compared_again(vllm_engine, versions):
    """One slot and two versions in flight: vLLM reads the older one from its file again, which is
    damaged here."""
    vllm_engine.load(versions(140))
    first = newest_folder(vllm_engine)
    for request in requests(4):
        vllm_engine.add(request)
    vllm_engine.step()
    vllm_engine.load(versions(141))
    vllm_engine.step()
    vllm_engine.load(versions(142))
    in_files(SWAP_LAYERS)(first)
    with pytest.raises(AdapterMismatch, match=r"v140: in slot 0, model\.layers\.0\.self_attn\.q_"):
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
    monkeypatch.setattr(own.backend, "restore_adapter", lambda a: restore(changed(a, change)))
    refuses(own, versions(201), r"adapter v201: .*layers\.[01]\.")


def test_transformers_that_loads_nothing_or_another_scaling(own, versions, monkeypatch):
    own.load(versions(202))
    with monkeypatch.context() as patch:
        patch.setattr(own.backend, "restore_adapter", lambda adapter: None)
        refuses(own, versions(203), r"v203: .* differs from the published one")
    adapter = versions(204)
    other = Adapter.of(204, adapter.weights, with_settings(adapter.config, lora_alpha=17))
    refuses(own, other, r"is scaled by 2, published with .* 2\.125")


def test_transformers_with_its_lora_off(own, versions):
    own.backend.model.base_model.disable_adapter_layers()
    refuses(own, versions(205), "has its LoRA switched off")
    own.backend.model.base_model.enable_adapter_layers()
    own.backend.keep_version(206, versions(206))
    own.backend.model.base_model.set_adapter("version-206")
    refuses(own, versions(207), "computes with the LoRA version-206")
    own.backend.forget_version(206)
    own.backend.model.base_model.merge_adapter()
    refuses(own, versions(208), "is merged into the base")


def test_transformers_with_a_kept_version_that_is_another(own, versions, monkeypatch):
    own.load(versions(210))
    own.add(requests(1)[0])
    own.step()  # what has not begun would begin under the newest version
    keep, other = own.backend.keep_version, versions(211)
    monkeypatch.setattr(own.backend, "keep_version", lambda key, _: keep(key, other))
    refuses(own, versions(212), r"adapter v210: .* differs")


def test_the_learners_own_weights_are_those_that_it_published(backend, versions, bases):
    """Float32 weights equal what was published, rounded; a drifted learner's do not."""
    engine = TransformersEngine(backend, bases["biases"], max_num_seqs=16, has_own_base=False)
    before, newest = versions(220), versions(221)
    assert before.checksum != newest.checksum
    engine.load(newest)
    refuses(engine, before, r"adapter v220: .* differs")


def test_the_actor_is_named():
    class Other(FakeEngine):
        def load(self, adapter: Adapter) -> None:
            raise AdapterMismatch.of(adapter.version, "its slot is empty")

    actor = Actor("actor-3", Other(), base_model.load_tokenizer(embedded.BASE))
    with pytest.raises(AdapterMismatch, match=r"^actor-3: the engine does not hold adapter v7"):
        actor.load(Adapter.of(7, b"", "{}"))
    actor.close()


MIXED = None  # of any order of magnitude


@pytest.mark.parametrize("value", few([0.0, 1e-8, 1e-39, 3e4, 3e38, MIXED], 1))
@pytest.mark.parametrize("alpha", few([16, 12, 0.3], 1))
def test_no_false_alarm(value, alpha, vllm_engine, own, versions):
    def fill(tensors):
        for tensor in tensors.values():
            tensor.fill_(1.0 if value is MIXED else value)
            if value is MIXED:
                tensor *= torch.randn(tensor.shape) * 10.0 ** torch.randint(-40, 30, ())

    adapter = changed(versions(300), fill)
    config = with_settings(adapter.config, lora_alpha=alpha)
    vllm_engine.load(Adapter.of(300, adapter.weights, config))
    if alpha == 16:
        own.load(adapter)


def test_published_is_what_was_saved(versions):
    adapter = versions(400)
    published, saved = Published(adapter), safetensors.torch.load(bytes(adapter.weights))
    assert published.tensors.keys() == saved.keys() and len(saved) == 28
    for name, tensor in saved.items():
        assert torch.equal(published.tensors[name], tensor) and tensor.dtype == torch.bfloat16
    assert published.scaling == 2
    settings = {"r": 4, "lora_alpha": 6, "use_rslora": True}
    assert Published(Adapter.of(0, adapter.weights, json.dumps(settings))).scaling == 6 / 4**0.5


def test_the_shards_of_tensor_parallelism():
    """Four workers: the queries of 8 heads, keys of 2 (each on two workers), of size 3."""
    for worker in range(4):
        layer = SimpleNamespace(tp_rank=worker, tp_size=4)
        queries, keys = torch.arange(24.0)[:, None], torch.arange(6.0)[:, None]
        first, of_head = 6 * worker, 3 * (worker // 2)
        assert shard(queries, 0, 6, layer).flatten().tolist() == [*range(first, first + 6)]
        assert shard(keys, 0, 3, layer).flatten().tolist() == [*range(of_head, of_head + 3)]
        assert shard(keys, 0, 6, layer) is keys  # not split: the A of q, k and v
