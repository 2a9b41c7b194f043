"""`check-model` passes what is right, and names each fault that is planted."""

import json

import families
import pytest
import torch
from few_cases import few

from unslothrl import embedded
from unslothrl.backends import packing, peft
from unslothrl.commands import check_model, cli
from unslothrl.weights import base_model, decoder

pytestmark = pytest.mark.real


def test_the_embedded_base_passes_every_check(capsys):
    assert cli.main(["check-model", "embedded", "--engine", "transformers", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found if each["passed"]] == [
        "stop tokens", "base compared between processes", "LoRA", "micro-batches", "gradients",
        "tensors with a gradient", "resume", "base of the engine", "adapter in the engine",
        "sampler gap", "merged export",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", families.TRAINED)
def test_a_family_passes_every_check(tmp_path, monkeypatch, capsys, name):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = families.saved(tmp_path / "base", families.built(families.TRAINED[name]()))
    found = list(check_model.examine(base_model.prepare(str(folder)), "transformers"))
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


FAULTS = {  # -> the check that names it, the family
    stop_token_is_another: ("stop tokens", "embedded"),
    target_is_missed: ("LoRA", "embedded"),
    state_leaks: ("micro-batches", "Qwen3.5"),
    micro_batch_is_dropped: ("gradients", "embedded"),
    tensor_is_frozen: ("tensors with a gradient", "embedded"),
    temperature_is_forgotten: ("sampler gap", "embedded"),
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
    found = check_model.examine(base, "transformers")
    assert next(each for each in found if each.name == check).passed is False
