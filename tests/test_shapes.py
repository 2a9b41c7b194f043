"""Sizes of models: published ones, those of transformers, and what a folder or a name says."""

import json
from dataclasses import replace

import count_models
import pytest
from few_cases import few

from unslothrl.commands.cli import main
from unslothrl.weights import shapes
from unslothrl.weights.shapes import KNOWN, Shape

TOTALS = {  # parameters, as the models' cards and files have them
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
}
SEVEN = KNOWN["qwen2.5-7b"]


@pytest.mark.parametrize("name", TOTALS)
def test_parameters_are_those_that_were_published(name):
    assert KNOWN[name].parameters() == TOTALS[name]


@pytest.mark.real
@pytest.mark.parametrize("name", few(sorted(count_models.MODELS)))
def test_the_layers_of_other_kinds_are_those_of_transformers(name):
    written = json.loads(shapes.COUNTS.read_text())
    assert written[name] == shapes.by_transformers(json.dumps(count_models.MODELS[name]))
    assert written.keys() == count_models.MODELS.keys()


@pytest.mark.real
@pytest.mark.parametrize("name", few(sorted(KNOWN), 2))
def test_parameters_are_those_of_transformers(name):
    """The same sizes built by transformers, without memory for the weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = KNOWN[name]
    sizes = {
        "num_hidden_layers": shape.layers, "hidden_size": shape.hidden,
        "intermediate_size": shape.inner, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "head_dim": shape.head,
        "vocab_size": shape.vocabulary, "tie_word_embeddings": shape.tied,
    }  # fmt: skip
    kind = "qwen2" if shape.biases else "qwen3" if shape.head_norms else "llama"
    config = AutoConfig.for_model(kind, **sizes)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(p.numel() for p in model.parameters()) == shape.parameters()
    assert shapes.read({**config.to_dict(), "max_position_embeddings": shape.context}) == shape


def test_bytes_by_hand():
    small = Shape(layers=2, hidden=8, inner=16, heads=2, kv_heads=1, head=4, vocabulary=10,
                  tied=False)  # fmt: skip
    # q and o 8 x 8, k and v 8 x 4, three of 8 x 16
    assert small.linear_weights() == 2 * (2 * 64 + 2 * 32 + 3 * 128)
    assert small.other_weights() == 2 * 80 + 2 * 16 + 8
    assert small.weight_bytes() == pytest.approx(1152 * (0.5 + 1 / 64 + 1 / 4096) + 200 * 2)
    assert small.lora_weights(4) == 2 * 4 * (16 + 12 + 12 + 16 + 24 + 24 + 24)
    assert small.kv_bytes(3) == 3 * 2 * 2 * 4 * 2
    assert SEVEN.kv_bytes(1) == 57_344 and KNOWN["llama-3.1-8b"].kv_bytes(1) == 131_072


def test_layers_that_stay_in_16_bits_are_counted_as_such():
    """As Unsloth's dynamic checkpoints have them: a layer's MLP, and all outputs of attention."""
    sizes = {"num_hidden_layers": 11, "hidden_size": 8, "intermediate_size": 16, "vocab_size": 10,
             "num_attention_heads": 2, "num_key_value_heads": 1}  # fmt: skip
    kept = ["lm_head", "model.layers.3.mlp", "o_proj"]
    plain = shapes.read({**sizes, "quantization_config": {"llm_int8_skip_modules": ["lm_head"]}})
    shape = shapes.read({**sizes, "quantization_config": {"llm_int8_skip_modules": kept}})
    assert plain == shapes.read(sizes)
    assert shape.unquantised == 3 * 8 * 16 + 11 * 8 * 8
    saved = 2 - (1 / 2 + 1 / 64 + 1 / 4096)  # bytes a weight
    assert shape.weight_bytes() - plain.weight_bytes() == pytest.approx(1088 * saved)
    assert shape.engine_bytes() - plain.engine_bytes() == pytest.approx(1088 * (2 - 9 / 16))
    assert shape.parameters() == plain.parameters() and shape.shard(2).unquantised == 544


def test_known_models_are_known_by_name():
    for name, known in {
        "unsloth/Qwen2.5-7B-Instruct-bnb-4bit": SEVEN,
        "unsloth/Qwen2.5-0.5B-Instruct-bnb-4bit": KNOWN["qwen2.5-0.5b"],
        "unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit": KNOWN["llama-3.1-8b"],
        "Qwen/Qwen3-4B": KNOWN["qwen3-4b"],
        "Qwen/Qwen2.5-Math-7B-Instruct": replace(SEVEN, context=4096),
        "unsloth/Qwen2.5-Coder-7B-Instruct-bnb-4bit": SEVEN,
        "Qwen/Qwen3-4B-Base": replace(KNOWN["qwen3-4b"], context=32_768),
    }.items():
        assert shapes.shape_of(name) == known, name


@pytest.mark.parametrize(
    "name",
    [
        "someone/thing-3b", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen2.5-Omni-3B",
        "unsloth/Qwen2.5-VL-3B-Instruct-bnb-4bit", "Qwen/Qwen2.5-3B-Instruct-AWQ",
        "Qwen/Qwen3-Embedding-0.6B", "meta-llama/Llama-3.1-405B", "Qwen/Qwen2.5-3.5B",
    ],
)  # fmt: skip
def test_what_is_not_known_gets_no_sizes(name, capsys):
    assert shapes.shape_of(name) is None
    assert main(["plan", "--model", name, "--card", "24"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"unslothrl: model {name}: ")
    assert "size" in said.err or "weights: give a 16-bit" in said.err


FOLDER = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 320,
          "num_attention_heads": 4, "model_type": "llama"}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "it is not JSON"),
        ({**FOLDER, "num_experts": 8}, "(a mixture of experts)"),
        ({**FOLDER, "quantization_config": {"quant_method": "awq"}}, "(quantised by awq)"),
        ({**FOLDER, "hidden_size": "64"}, "(hidden_size is '64')"),
        ({**FOLDER, "num_attention_heads": 0}, "(num_attention_heads is 0)"),
        ({"text_config": FOLDER}, "(its config.json has no model_type)"),
    ],
)
def test_a_folder_that_cannot_be_planned_says_why(config, words, tmp_path, capsys):
    text = config if isinstance(config, str) else json.dumps(config)
    (tmp_path / "config.json").write_text(text)
    assert main(["plan", "--model", str(tmp_path), "--card", "8"]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.real
@pytest.mark.parametrize("kind", ["qwen2_vl", "new"])
def test_a_kind_without_a_text_model_is_refused(kind, tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({**FOLDER, "model_type": kind}))
    assert main(["plan", "--model", str(tmp_path), "--card", "8"]) == 2
    assert f"(transformers has no text model of the kind {kind})" in capsys.readouterr().err


@pytest.mark.real
def test_another_kind_of_model_is_a_guess_and_says_so(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({**FOLDER, "model_type": "gemma2"}))
    small = ["--max_prompt_tokens", "100", "--max_new_tokens", "100"]
    assert main(["plan", "--model", str(tmp_path), "--card", "8", *small]) == 0
    assert "is that of a Llama of the same size, a guess" in capsys.readouterr().out


def test_a_model_of_the_hubs_cache_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--owner--some-3b"
    for part in ("refs", "snapshots/abc"):
        (folder / part).mkdir(parents=True)
    (folder / "refs/main").write_text("abc")
    assert shapes.shape_of("owner/some-3b") is None
    (folder / "snapshots/abc/config.json").write_text(json.dumps(FOLDER))
    assert shapes.shape_of("owner/some-3b").layers == 2


@pytest.mark.real
def test_other_models_are_counted_as_transformers_builds_them():
    """Qwen3.5-4B by hand: 8 of 32 layers have attention, whose q is doubled by a gate; the others
    keep a state of 32 heads of 128 x 128 in float32, and 3 inputs of a convolution."""
    shape = shapes.shape_of("Qwen/Qwen3.5-4B")
    mlp = 3 * 2560 * 9216
    attention = 2560 * (2 * 16 * 256) + 2 * 2560 * 4 * 256 + 16 * 256 * 2560
    recurrent = 2560 * (2 * 16 * 128 + 32 * 128) + 2560 * 4096 + 2 * 2560 * 32 + 4096 * 2560
    assert shape.linear_weights() == 32 * mlp + 8 * attention + 24 * recurrent
    state = 4 * 32 * 128 * 128 + 2 * 3 * (2 * 16 * 128 + 32 * 128)  # in a page of 528 tokens
    keys = 2 * 4 * 256 * 2  # of a token and layer, and values
    assert 512 * keys < state < 528 * keys
    assert shape.kv_bytes(100, 2) == 2 * (8 + 24) * 528 * keys
    assert shape.kv_bytes(2 * 529, 2) == 2 * (2 * 8 + 24) * 528 * keys
    assert shapes.shape_of("google/gemma-3-4b-it").parameters() == pytest.approx(3.88e9, rel=0.01)


@pytest.mark.real
def test_a_window_bounds_what_a_layer_keeps():
    """Gemma 3 4B: 5 of 34 layers see everything, 29 the last 1,024 tokens; vLLM deals these in
    groups of 5, of which the last is padded. A token has 4 heads of 256 keys, and values."""
    shape, each = shapes.shape_of("google/gemma-3-4b-it"), 2 * 4 * 256 * 2
    assert shape.kv_bytes(3 * 512, 3) == 3 * 512 * 35 * each
    assert shape.kv_bytes(3 * 8192, 3) == 3 * (8192 * 5 + (1024 + 16) * 30) * each
