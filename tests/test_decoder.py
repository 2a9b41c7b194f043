"""Models that would be trained in part, or quantised in part, are refused before they are."""

import json
from pathlib import Path

import families
import pytest
import torch
import transformers
from few_cases import few
from python_process import python

from unslothrl.backends import peft
from unslothrl.commands import cli
from unslothrl.config.offline_options import RmOptions
from unslothrl.errors import UserError
from unslothrl.records import LORA_TARGETS
from unslothrl.weights import base_model, decoder, shapes

pytestmark = pytest.mark.real


def built(kind: str, **settings):
    return families.built(getattr(transformers, kind)(**{**families.SIZES, **settings}))


@pytest.mark.parametrize("name", few(families.REFUSED))
def test_a_model_that_a_lora_would_not_cover_ends_in_a_line(
    tmp_path, monkeypatch, capsys, name, own_cache
):
    """Before anything is quantised or a run has begun."""
    monkeypatch.chdir(tmp_path)
    config, reason = families.REFUSED[name]
    folder = families.saved(tmp_path / "base", families.built(config()))
    rows = [{"problem": f"{i} + 1?", "answer": str(i + 1)} for i in range(30)]
    Path("problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = "train --learner grpo --cluster local --engine transformers --dataset problems.jsonl"
    assert cli.main([*words.split(), "--model", str(folder)]) == 2
    *others, line = capsys.readouterr().err.splitlines()
    assert f"model {folder}: " in line and reason in line
    assert not [each for each in others if "quantising" not in each]
    assert not Path("runs").exists() or not list(Path("runs").iterdir())
    assert [*(tmp_path / "cache/unslothrl/nf4").glob("[!.]*")] == []


FOUR_BIT = """
import sys, torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers import BitsAndBytesConfig
settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                              bnb_4bit_use_double_quant=True)
is_text = not hasattr(AutoConfig.from_pretrained(sys.argv[1]), "text_config")
kind = AutoModelForCausalLM if is_text else AutoModelForImageTextToText
model = kind.from_pretrained(
    sys.argv[1], quantization_config=settings, device_map="cpu", dtype=torch.bfloat16)
model.save_pretrained(sys.argv[2])
"""


@pytest.mark.slow
def test_a_four_bit_checkpoint_is_refused_when_it_is_loaded(tmp_path):
    from unslothrl.offline import models

    config, reason = families.REFUSED["Qwen3-MoE"]
    folder = tmp_path / "four_bit"
    python("-c", FOUR_BIT, families.saved(tmp_path / "whole", families.built(config())), folder)
    assert base_model.prepare(str(folder)) == folder
    options = {"dtype": torch.bfloat16, "rank": 4, "alpha": 4, "dropout": 0.0, "seed": 0}
    with pytest.raises(UserError, match=reason) as caught:
        peft.load(folder, **options)
    assert str(caught.value).startswith(f"model {folder}: a LoRA would cover ")
    with pytest.raises(UserError, match=reason):
        models.reward_model(folder, RmOptions(dtype="bfloat16"), None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Gemma 3", "Ministral 3", "Qwen3.5"])
def test_the_text_model_of_a_four_bit_checkpoint_is_taken_as_it_is(tmp_path, name, own_cache):
    """Which is what the 16-bit checkpoint gives when it is quantised."""
    whole = families.saved(tmp_path / "whole", families.built(families.TRAINED[name]()))
    python("-c", FOUR_BIT, whole, tmp_path / "packed")
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / "packed" / file).write_bytes((whole / file).read_bytes())
    folders = [base_model.prepare(str(tmp_path / each)) for each in ("packed", "whole")]
    options = {"dtype": torch.float32, "rank": 4, "alpha": 4, "dropout": 0.0, "seed": 0}
    packed, quantised = (peft.load(folder, **options) for folder in folders)
    assert packed.fingerprint() == quantised.fingerprint() != ""
    ids = torch.randint(3, 300, (1, 20))
    with torch.no_grad():
        assert torch.equal(packed.hidden_states(ids), quantised.hidden_states(ids))


def test_the_share_by_hand():
    """One layer of width 8: q, o 64, k, v 32, gate, up, down 128 make 576 of 576, and of 582 with
    a table of 2 x 3 that no linear layer has."""
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 4,
             "num_attention_heads": 2, "num_key_value_heads": 1}  # fmt: skip
    model = built("LlamaConfig", **sizes)
    found = decoder.linears(model)
    assert sum(each.weight.numel() for each in found.values()) == 576
    assert decoder.targets(model) == list(LORA_TARGETS)
    assert decoder.obstacle(model) is None
    layer = model.model.layers[0]
    layer.other = torch.nn.Linear(8, 9)
    assert decoder.obstacle(model) is None and decoder.targets(model) == [*LORA_TARGETS, "other"]
    del layer.other
    layer.table = torch.nn.Parameter(torch.zeros(1, 5))  # 576 of 581 are 99.1%
    assert decoder.obstacle(model) is None
    layer.table = torch.nn.Parameter(torch.zeros(2, 3))  # 576 of 582: 98.97%
    assert "99.0% of its linear weights" in (decoder.obstacle(model) or "")
    assert "not covered: 0.table" in (decoder.obstacle(model) or "")


def test_the_targets_of_other_families_by_hand():
    named = {name: decoder.targets(decoder.empty(text_of(name))) for name in families.TRAINED}
    assert named["Phi-4"] == ["o_proj", "down_proj", "gate_up_proj", "qkv_proj"]
    recurrent = ["in_proj_a", "in_proj_b", "in_proj_qkv", "in_proj_z", "out_proj"]
    assert named.pop("Qwen3.5") == [*LORA_TARGETS, *recurrent]
    by_layer = ["per_layer_input_gate", "per_layer_projection"]
    assert named.pop("Gemma 4") == [*LORA_TARGETS, *by_layer]
    del named["Phi-4"]
    assert all(targets == list(LORA_TARGETS) for targets in named.values())


def text_of(name: str):
    return decoder.text_of(families.TRAINED[name]().to_dict())


@pytest.mark.parametrize("name", few(families.TRAINED))
def test_the_text_model_of_a_checkpoint_gives_its_logits(tmp_path, name):
    """Those of the whole model, which takes images as well; and what a plan counts is in it."""
    whole = families.built(families.TRAINED[name]())
    folder = families.saved(tmp_path, whole)
    text = decoder.empty(text_of(name)).to_empty(device="cpu").to(torch.bfloat16)
    weights = {decoder.name_in_text(key): value for key, value in whole.state_dict().items()}
    own = text.state_dict().keys()
    text.load_state_dict({key: weights[key] for key in own}, assign=True)
    for key, buffer in whole.named_buffers():  # not in the checkpoint: rotary frequencies
        if (key := decoder.name_in_text(key)) in dict(text.named_buffers()):
            text.get_buffer(key).data = buffer.data
    text.tie_weights()
    ids = torch.randint(3, 300, (2, 20))
    assert torch.equal(text(input_ids=ids).logits, whole(input_ids=ids).logits)
    shape = shapes.shape_of(str(folder))
    assert shape.parameters() == sum(p.numel() for p in text.parameters())
    sizes = {path: (x.in_features, x.out_features) for path, x in decoder.linears(text).items()}
    assert shape.linears() == sizes
