"""`unslothrl export`: what is written answers as the adapter over its 4-bit base does."""

import json

import pytest
import torch

from unslothrl.commands import cli
from unslothrl.weights.adapter import write_adapter


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--adapter nowhere --output new", "adapter nowhere"),
        ("--adapter run --output new --to gif", "to must be one of adapter, merged, got 'gif'"),
        ("--adapter run --output run", "output run: it is there already"),
        ("--adapter run --output new", "adapter run: this run has saved none yet"),
    ],
)
def test_what_cannot_be_exported_is_one_line(tmp_path, monkeypatch, capsys, arguments, said):
    (tmp_path / "run" / "adapters").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["export", *arguments.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.fixture(params=["biases", "plain"])
def trained(request, bases, make_backend, tmp_path):
    """-> (a base of Qwen2's or Llama's kind, an adapter over it)"""
    base = bases[request.param]
    return base, write_adapter(make_backend(base).publish(3), tmp_path / "run" / "adapters")


@pytest.mark.real
def test_a_merged_model_computes_the_same_in_float32(trained):
    from unslothrl.export import merging

    base, adapter = trained
    with_adapter, model = merging.merged(base, adapter, torch.float32, torch.device("cpu"))
    prompts = [tuple(range(300, 320)), (5, 6, 7)]
    alike = merging.likeness(with_adapter, model, prompts)
    assert alike.largest < 2e-3 and alike.same_choice == 1
    with with_adapter.disable_adapter():  # so the adapter does make a difference
        assert merging.likeness(with_adapter, model, prompts).largest > 0.1


@pytest.mark.real
def test_the_command_writes_a_model_that_others_load(trained, tmp_path, capsys):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base, _ = trained
    target = tmp_path / "out" / "merged"
    arguments = ["--adapter", str(tmp_path / "run"), "--model", str(base), "--output", str(target)]
    assert cli.main(["export", *arguments]) == 0
    said = capsys.readouterr().out
    assert "largest difference" in said and f"vllm serve {target}" in said
    model = AutoModelForCausalLM.from_pretrained(target)
    assert model.dtype == torch.bfloat16 and not hasattr(model.config, "quantization_config")
    assert AutoTokenizer.from_pretrained(target).chat_template
    assert str(base) in (target / "README.md").read_text()
    assert [path.name for path in target.parent.iterdir()] == ["merged"]  # nothing half-written
    assert cli.main(["export", *arguments]) == 2  # it is there


@pytest.mark.real
def test_an_exported_adapter_has_all_that_it_needs(trained, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base, adapter = trained
    target = tmp_path / "adapter"
    arguments = ["--adapter", str(adapter), "--model", str(base), "--output", str(target)]
    assert cli.main(["export", "--to", "adapter", *arguments]) == 0
    settings = json.loads((target / "adapter_config.json").read_text())
    plain = AutoModelForCausalLM.from_pretrained(settings["base_model_name_or_path"])
    assert PeftModel.from_pretrained(plain, target)
    assert AutoTokenizer.from_pretrained(target).chat_template
    wrong = ["--adapter", str(adapter), "--model", "embedded", "--output", str(tmp_path / "no")]
    assert cli.main(["export", *wrong]) == 2 and not (tmp_path / "no").exists()
