"""Models that would be trained in part, or quantised in part, are refused before they are."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from conftest import SMALL
from few_cases import few
from python_process import python

from unslothrl import embedded
from unslothrl.commands import cli
from unslothrl.errors import UserError
from unslothrl.records import LORA_TARGETS
from unslothrl.weights import base_model

pytestmark = pytest.mark.real

SPECIAL = {"eos_token_id": 2, "pad_token_id": 0, "bos_token_id": None}
OF_EXPERTS = {"moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2}
LINEAR = {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 1,
          "linear_num_value_heads": 2}  # fmt: skip
CONV = {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
KINDS = {  # model, config, its own settings, a layer that would be left out
    "Qwen3-MoE": ("Qwen3Moe", "Qwen3MoeConfig", OF_EXPERTS, "experts.gate_up_proj"),
    "Phi-3": ("Phi3", "Phi3Config", {}, "qkv_proj"),
    "LFM2": ("Lfm2", "Lfm2Config", CONV, "in_proj"),
    "Qwen3.5": ("Qwen3_5", "Qwen3_5TextConfig", LINEAR, "in_proj_qkv"),
}


def built(kind: str, config: str, **settings):
    values = {**SMALL, "max_position_embeddings": 4096, **SPECIAL, **settings}
    torch.manual_seed(0)
    return getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, config)(**values))


def folder_of(path: Path, model) -> Path:
    model.to(torch.bfloat16).save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (path / name).write_bytes((embedded.BASE / name).read_bytes())
    return path


@pytest.mark.parametrize("name", few(KINDS))
def test_a_model_that_a_lora_would_not_cover_ends_in_a_line(tmp_path, monkeypatch, capsys, name):
    """Before anything is quantised or a run has begun."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kind, config, settings, left_out = KINDS[name]
    folder = folder_of(tmp_path / "base", built(kind, config, **settings))
    rows = [{"problem": f"{i} + 1?", "answer": str(i + 1)} for i in range(30)]
    Path("problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = "train --learner grpo --cluster local --engine transformers --dataset problems.jsonl"
    assert cli.main([*words.split(), "--model", str(folder)]) == 2
    *others, line = capsys.readouterr().err.splitlines()
    assert f"model {folder}: a LoRA would cover " in line and left_out in line
    assert "choose a dense model with q_proj" in line
    assert not [each for each in others if "quantising" not in each]
    assert not Path("runs").exists() or not list(Path("runs").iterdir())
    assert [*(tmp_path / "cache/unslothrl/nf4").glob("[!.]*")] == []


FOUR_BIT = """
import sys, torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
model = AutoModelForCausalLM.from_pretrained(
    sys.argv[1], quantization_config=settings, device_map="cpu", dtype=torch.bfloat16)
model.save_pretrained(sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Phi-3", "Qwen3-MoE"])
def test_a_four_bit_checkpoint_is_refused_when_it_is_loaded(tmp_path, name):
    from unslothrl.backends import peft
    from unslothrl.offline import models

    kind, config, settings, left_out = KINDS[name]
    folder = tmp_path / "four_bit"
    python("-c", FOUR_BIT, folder_of(tmp_path / "whole", built(kind, config, **settings)), folder)
    assert base_model.prepare(str(folder)) == folder
    options = {"dtype": torch.bfloat16, "rank": 4, "alpha": 4, "dropout": 0.0, "seed": 0}
    with pytest.raises(UserError, match=left_out) as caught:
        peft.load(folder, **options)
    assert str(caught.value).startswith(f"model {folder}: a LoRA would cover ")
    with pytest.raises(UserError, match=left_out):
        models.reward_model(folder, models.Shape(**options, start=None))


def test_the_share_by_hand():
    """One layer of width 8: q, o 64, k, v 32, gate, up, down 128 make 576 of 576, and of 576 + 72
    with another layer of 8 x 9."""
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 4,
             "num_attention_heads": 2, "num_key_value_heads": 1}  # fmt: skip
    model = built("Llama", "LlamaConfig", **sizes)
    assert base_model.lora_obstacle(model) is None
    layer = model.model.layers[0]
    linears = [each for name, each in layer.named_modules() if name.endswith(LORA_TARGETS)]
    assert sum(each.weight.numel() for each in linears) == 576
    layer.other = torch.nn.Linear(8, 9)
    said = base_model.lora_obstacle(model)
    assert said and "88.9% of its linear weights" in said and "(not covered: other)" in said
    layer.other = torch.nn.Linear(1, 5, device="meta")  # 576 of 581 are 99.1%
    assert base_model.lora_obstacle(model) is None
    layer.other = torch.nn.Linear(2, 3)  # 576 of 582: 98.97%
    assert "99.0%" in (base_model.lora_obstacle(model) or "")
