"""`check-model` passes what is right, and names each fault that is planted."""

import json

import families
import pytest
import torch
from few_cases import few

from unslothrl import embedded
from unslothrl.backends import packing, peft
from unslothrl.commands import check_model, cli
from unslothrl.engines.transformers import TransformersEngine
from unslothrl.export import merging
from unslothrl.weights import base_model, decoder

pytestmark = pytest.mark.real


def test_the_embedded_base_passes_every_check(capsys):
    assert cli.main(["check-model", "embedded", "--engine", "transformers", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found if each["passed"]] == [
        "stop tokens", "base compared between processes", "4-bit copy", "LoRA", "micro-batches",
        "gradients", "tensors with a gradient", "slopes", "resume", "merged export",
        "base of the engine", "adapter in the engine", "sampler gap",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", families.TRAINED)
def test_a_family_passes_every_check(tmp_path, capsys, name, own_cache):
    folder = families.saved(tmp_path / "base", families.built(families.TRAINED[name]()))
    found = list(check_model.examine(base_model.prepare(str(folder)), "transformers", folder))
    assert [each for each in found if each.passed is False] == []


def stop_token_is_another(monkeypatch):
    monkeypatch.setattr(base_model, "stop_token_ids", lambda base: [5])


def target_is_missed(monkeypatch):
    whole = decoder.targets
    monkeypatch.setattr(decoder, "targets", lambda model: whole(model)[:-1])


def state_leaks(monkeypatch):
    monkeypatch.setattr(packing, "can_pack", lambda model: True)


def micro_batch_is_dropped(monkeypatch):
    whole = check_model.gradient
    monkeypatch.setattr(check_model, "gradient", lambda backend, parts: whole(backend, parts[:5]))


def tensor_is_frozen(monkeypatch):
    whole = peft.in_training

    def frozen(model):
        next(p for n, p in model.named_parameters() if "lora_A" in n).requires_grad = False
        return whole(model)

    monkeypatch.setattr(peft, "in_training", frozen)


def temperature_is_forgotten(monkeypatch):
    whole = check_model.Sampling
    monkeypatch.setattr(
        check_model, "Sampling", lambda **given: whole(**{**given, "temperature": 2})
    )


def export_is_the_base(monkeypatch):
    for kind in ("layer.Linear", "bnb.Linear4bit"):
        delta = f"peft.tuners.lora.{kind}.get_delta_weight"
        monkeypatch.setattr(delta, lambda self, name: torch.zeros(()))


def halves_are_swapped_in_the_copy(monkeypatch):
    whole = merging.dequantised

    def swapped(linear):
        weight = whole(linear)
        is_fused = linear.out_features == 2 * families.SIZES["intermediate_size"]
        return torch.cat(weight.chunk(2)[::-1]) if is_fused else weight

    monkeypatch.setattr(merging, "dequantised", swapped)


def export_forgets_alpha(monkeypatch):
    for kind in ("layer.Linear", "bnb.Linear4bit"):
        monkeypatch.setattr(
            f"peft.tuners.lora.{kind}.get_delta_weight",
            lambda self, name: self.lora_B[name].weight @ self.lora_A[name].weight,
        )


def engine_keeps_its_first_adapter(monkeypatch):
    monkeypatch.setattr(TransformersEngine, "load", lambda self, adapter: None)


FAULTS = {  # -> the check that names it, the family
    stop_token_is_another: ("stop tokens", "embedded"),
    target_is_missed: ("LoRA", "embedded"),
    state_leaks: ("micro-batches", "Qwen3.5"),
    micro_batch_is_dropped: ("gradients", "embedded"),
    tensor_is_frozen: ("tensors with a gradient", "embedded"),
    temperature_is_forgotten: ("sampler gap", "embedded"),
    halves_are_swapped_in_the_copy: ("4-bit copy", "Phi-4"),
    export_forgets_alpha: ("merged export", "embedded"),
    engine_keeps_its_first_adapter: ("adapter in the engine", "embedded"),
    export_is_the_base: ("merged export", "embedded"),
}


@pytest.mark.parametrize("fault", few(FAULTS, 2))
def test_a_fault_is_named(tmp_path, monkeypatch, fault):
    check, name = FAULTS[fault]
    folder = embedded.BASE
    if name != "embedded":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        folder = families.saved(tmp_path / "base", families.built(families.TRAINED[name]()))
    base = base_model.prepare(str(folder))
    fault(monkeypatch)
    found = check_model.examine(base, "transformers", folder)
    assert next(each for each in found if each.name == check).passed is False
