"""GGUF files: what is written, what is refused, and that transformers' reader of the format, which
shares no code with ours, computes the same. tests/test_llama_cpp.py asks llama.cpp itself."""

import json
import math
from dataclasses import replace

import pytest
from conftest import SMALL
from few_cases import few

from unslothrl import embedded
from unslothrl.errors import UserError
from unslothrl.export import gguf, gguf_tokenizer

REGEX = next(iter(gguf_tokenizer.SPLITS))[0][0]  # Qwen2's
THREE_DIGITS = REGEX.replace("|\\p{N}|", "|\\p{N}{1,3}|")
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}


def split_by(pattern: str) -> dict:
    part = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [part, {**BYTES, "use_regex": False}]}


def tokenizer_json(pre_tokenizer=None, normalizer=None, merges=("a b",), **model) -> dict:
    vocabulary = {"a": 0, "b": 1, "ab": 2}
    return {
        "model": {"type": "BPE", "vocab": vocabulary, "merges": list(merges), **model},
        "pre_tokenizer": pre_tokenizer or split_by(REGEX),
        "normalizer": normalizer,
        "added_tokens": [
            {"id": 3, "content": "<|end|>", "special": True},
            {"id": 4, "content": "<think>", "special": False},
        ],
    }


MARKS = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}


def sentencepiece_json(*merges: str, vocab=()) -> dict:
    """Of "a b" and these."""
    known = {"a": 0, "b": 1, "ab": 2, "c": 5, "<0x41>": 6, "abc": 7, **dict(vocab)}
    given = {"byte_fallback": True, "vocab": known, "merges": ["a b", *merges]}
    content = tokenizer_json(normalizer=MARKS)
    return {**content, "pre_tokenizer": None, "model": {"type": "BPE", **given}}


def read(folder, content, size=6):
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return gguf_tokenizer.read_tokenizer(folder, size)


def test_a_tokenizer_is_read(tmp_path):
    removed = split_by(REGEX)
    removed["pretokenizers"][0] |= {"behavior": "Removed", "invert": True}  # as Phi-4's
    assert read(tmp_path, tokenizer_json(removed)).pre == "qwen2"
    beyond = tokenizer_json() | {"added_tokens": [{"id": 6, "content": "<image>"}]}
    assert read(tmp_path, beyond).tokens[5] == "[PAD5]"
    found = read(tmp_path, tokenizer_json(merges=[["a", "b"]]))
    assert found.pre == "qwen2" and found.merges == ["a b"]
    assert found.tokens == ["a", "b", "ab", "<|end|>", "<think>", "[PAD5]"]
    assert found.types == [1, 1, 1, 3, 4, 5]


def test_a_tokenizer_of_sentencepiece_is_read(tmp_path):
    found = read(tmp_path, sentencepiece_json("ab c"), size=9)
    assert (found.pre, found.merges) == ("default", [])
    assert found.scores == [-2, -2, 0, -2, -2, -2, -2, -1, -2]  # by what is merged first
    assert found.types == [1, 1, 1, 3, 4, 1, 6, 1, 5]


@pytest.mark.parametrize("merges", [(), ("ab c", "b c"), ("ab c", "b c", "a bc")])
def test_merges_that_are_not_sentencepieces_are_those_of_whole_lines(tmp_path, merges):
    """SentencePiece's would make abc of "ab c" where "bc" goes first here, or nothing."""
    found = read(tmp_path, sentencepiece_json(*merges, vocab={"bc": 4} if merges else ()), size=9)
    assert (found.pre, found.merges, found.scores) == ("gemma4", ["a b", *merges], [])
    assert found.types[6] == gguf_tokenizer.BYTE


def test_the_embedded_tokenizer_merges_nothing():
    found = gguf_tokenizer.read_tokenizer(embedded.BASE, 320)
    assert (found.pre, found.merges, len(found.tokens)) == ("gpt-2", [], 320)
    assert found.tokens[259] == "<think>" and found.types[259] == gguf_tokenizer.USER_DEFINED


DIGITS = {"type": "Digits", "individual_digits": True}


@pytest.mark.parametrize(
    ("pre_tokenizer", "ignores", "name"),
    [
        (BYTES, False, "gpt-2"),
        (split_by(THREE_DIGITS), True, "llama-bpe"),
        (split_by(THREE_DIGITS), False, "dbrx"),
        ({"type": "Sequence", "pretokenizers": [DIGITS, BYTES]}, False, "smollm"),
    ],
)
def test_how_a_text_is_split_has_a_name(tmp_path, pre_tokenizer, ignores, name):
    assert read(tmp_path, tokenizer_json(pre_tokenizer, ignore_merges=ignores)).pre == name


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (tokenizer_json(split_by("x+")), "by a pattern that is not known here: x+"),
        (tokenizer_json({"type": "Metaspace"}), "it splits texts by Metaspace"),
        (tokenizer_json({**BYTES, "add_prefix_space": True}), "a space before every text"),
        (tokenizer_json(normalizer={"type": "Lowercase"}), "rewrites the text first, by Lowercase"),
        (tokenizer_json(byte_fallback=True), "it does more to a text than to mark its spaces"),
        (tokenizer_json(normalizer=MARKS, byte_fallback=True), "it splits texts"),
        (sentencepiece_json("ab c", "ab \n", vocab={"ab\n": 4}), "and go beyond a line"),
        (tokenizer_json(vocab={"a": 9}), "token 9 has no row in the embedding, which has 6"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_llama_cpp_would_read_otherwise_is_refused(tmp_path, content, words):
    with pytest.raises(UserError, match="to gguf: the tokenizer cannot be converted") as caught:
        read(tmp_path, content)
    assert words in str(caught.value) and "\n" not in str(caught.value)


# Each family small, with what is special about it: a head that is not hidden / heads, tied
# embeddings, biases, Llama 3.1's frequencies, YaRN.
SIZES = {**SMALL, "hidden_size": 64, "intermediate_size": 96}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0,
        "original_max_position_embeddings": 128}  # fmt: skip
MINISTRAL = YARN | {"original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 1.0,
                    "llama_4_scaling_beta": 0.1}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 64, "short_factor": [1.0] * 6,
    "long_factor": [1.0 + n for n in range(6)],
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
GEMMA = {
    "num_hidden_layers": 7, "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 32,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}  # fmt: skip
KINDS = ["sliding_attention", "full_attention"]
GEMMA4 = {
    "num_hidden_layers": 7, "head_dim": 32, "global_head_dim": 64, "sliding_window": 32,
    "layer_types": ["sliding_attention", *KINDS, *KINDS, *KINDS], "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True, "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": SMALL["vocab_size"], "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
}  # fmt: skip
RECURRENT = {
    "num_hidden_layers": 5, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
    "linear_key_head_dim": 32, "linear_value_head_dim": 32,
}  # fmt: skip
MODELS = {
    "llama": ("llama", {"rope_parameters": LLAMA3, "head_dim": 32}),
    "llama-biases": ("llama", {"attention_bias": True, "tie_word_embeddings": True}),
    "llama-linear": ("llama", {"rope_parameters": LINEAR}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied-yarn": ("qwen2", {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen3": ("qwen3", {"head_dim": 128, "tie_word_embeddings": True}),
    "smollm3": ("smollm3", {"num_hidden_layers": 5}),
    "phi3": ("phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                                          "partial_rotary_factor": 0.75}}),
    "phi3-longrope": ("phi3", {"rope_parameters": LONGROPE}),
    "ministral3": ("ministral3", {"head_dim": 32, "rope_parameters": MINISTRAL}),
    "gemma3": ("gemma3_text", GEMMA),
    "gemma4": ("gemma4_text", GEMMA4),
    "gemma4-31b": ("gemma4_text", GEMMA4 | {
        "attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0}),
    "qwen3.5": ("qwen3_5_text", RECURRENT),
}  # fmt: skip
READ_BACK = ("llama", "llama-linear", "qwen2", "qwen2-tied-yarn", "qwen3")  # by transformers


def small_model(kind: str):
    """A random model, float16 weights, whose attention is far from uniform."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    family, more = MODELS[kind]
    torch.manual_seed(3)
    config = AutoConfig.for_model(family, **{**SIZES, **more}, eos_token_id=2, pad_token_id=0)
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():  # not the rotary embedding's frequencies
        is_norm = parameter.dim() == 1 and not name.endswith("bias")
        torch.nn.init.normal_(parameter, float(is_norm), 0.2 if parameter.dim() == 1 else 0.15)
        parameter.data = parameter.data.half()
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):
            buffer.fill_(0.75)
    return model.eval()


def write(model, path, kind: str = "f16") -> None:
    found = gguf_tokenizer.read_tokenizer(embedded.BASE, model.config.vocab_size)
    tokenizer = replace(found, special={"eos": 2, "pad": 0}, chat_template="{{ messages }}")
    gguf.write(model, tokenizer, path, kind, "x")


@pytest.mark.real
def test_llamas_heads_are_interleaved_by_hand():
    import torch

    config = small_model("llama").config
    config.num_attention_heads, config.num_key_value_heads = 2, 1
    q, k = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.bias"
    rows = torch.arange(8.0)  # two heads of four: halves (0 1)(2 3) and (4 5)(6 7)
    assert gguf.in_order(q, rows[:, None], config)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert gguf.in_order(k, rows[:4], config).tolist() == [0, 2, 1, 3]
    assert gguf.in_order(q.replace("q_proj", "v_proj"), rows, config) is rows
    config.model_type = "qwen2"
    assert gguf.in_order(q, rows, config) is rows


@pytest.mark.real
def test_value_heads_of_recurrent_layers_by_hand():
    """Two key heads of size 1 with two value heads of size 2 each: 0 and 1, 2 and 3."""
    import torch

    config = small_model("qwen3.5").config
    config.linear_num_key_heads, config.linear_num_value_heads = 2, 4
    config.linear_key_head_dim = 1
    layer, rows = "model.layers.0.linear_attn.", torch.arange(8.0)
    order = [0, 1, 4, 5, 2, 3, 6, 7]
    of_queries_too = torch.cat([torch.arange(-4.0, 0), rows])
    found = gguf.in_order(f"{layer}in_proj_qkv.weight", of_queries_too[:, None], config)
    assert found[:, 0].tolist() == [-4, -3, -2, -1, *order]
    assert gguf.in_order(f"{layer}out_proj.weight", rows[None], config)[0].tolist() == order
    assert gguf.in_order(f"{layer}dt_bias", rows[:4], config).tolist() == [0, 2, 1, 3]
    decays = gguf.in_order(f"{layer}A_log", torch.zeros(4), config)
    assert decays.tolist() == [-1] * 4
    assert gguf.in_order("model.norm.weight", rows, config).tolist() == (rows + 1).tolist()
    assert gguf.in_order(f"{layer}norm.weight", rows, config) is rows


@pytest.mark.real
def test_llama_3_1s_frequencies_by_hand():
    factors = gguf.rope_factors(small_model("llama").config)[gguf.ROPE_FACTORS]
    assert len(factors) == 16 and factors[0] == 1  # turns once in 6 tokens: as it is
    assert factors[-1] == 8  # in 2.7 million: divided by the factor
    turns = 64 / (2 * math.pi * 500_000 ** (2 / 32))  # the second: 4.5 times in 64, over 4
    assert turns > 4 and factors[1] == 1
    turns = 64 / (2 * math.pi * 500_000 ** (4 / 32))  # the third: 1.98, in between
    share = (turns - 1) / 3
    assert float(factors[2]) == pytest.approx(1 / ((1 - share) / 8 + share))
    assert gguf.rope_factors(small_model("qwen2").config) == {}


@pytest.mark.real
@pytest.mark.parametrize(
    ("kind", "more", "words"),
    few(
        [
            ("qwen2", {"model_type": "gemma2"}, "model_type gemma2 is not one of llama"),
            ("gemma3", {"query_pre_attn_scalar": 16}, "query_pre_attn_scalar 16 is not 32"),
            (
                "gemma3",
                {"rope_parameters": {**GEMMA["rope_parameters"], "sliding_attention": LINEAR}},
                "of its windows is scaled",
            ),
            ("gemma3", {"final_logit_softcapping": 30.0}, "its logits are capped"),
            ("gemma3", {"layer_types": ["full_attention"] * 7}, "other than every 6th attend"),
            ("gemma4", {"num_kv_shared_layers": 1}, "keys of others than the two before"),
            ("gemma4", {"enable_moe_block": True}, "it has experts"),
            ("gemma4", {"vocab_size_per_layer_input": 9}, "for another number of tokens"),
            ("ministral3", {"rope_parameters": YARN}, "its YaRN sets mscale, mscale_all_dim"),
            ("llama", {"mlp_bias": True}, "its MLP has biases"),
            ("qwen3", {"attention_bias": True}, "its attention has biases"),
            ("llama", {"hidden_act": "gelu"}, "hidden_act gelu is not silu"),
            ("qwen2", {"rope_parameters": {"rope_type": "dynamic"}}, "rope_type dynamic"),
            ("qwen2", {"use_sliding_window": True, "sliding_window": 9}, "has a sliding window"),
            ("phi3", {"sliding_window": 9}, "has a sliding window"),
            ("smollm3", {"no_rope_layers": [1, 0, 1]}, "other than every 4th have no rotary"),
            (
                "qwen3.5",
                {"layer_types": ["full_attention"] * 2 + ["linear_attention"]},
                "not every so many",
            ),
        ],
        2,
    ),
)
def test_a_model_that_llama_cpp_computes_otherwise_is_refused(kind, more, words):
    config = small_model(kind).config
    config.__dict__.update(more)
    with pytest.raises(UserError, match=words):
        gguf.check(config)


@pytest.mark.real
def test_a_weight_that_float16_lacks_is_refused(tmp_path):
    model = small_model("qwen2")
    model.model.norm.weight.data[3] = float("inf")
    with pytest.raises(UserError, match=r"output_norm\.weight has a weight over float16's 65504"):
        write(model, tmp_path / "x.gguf")


@pytest.mark.real
@pytest.mark.parametrize("kind", few(READ_BACK))
def test_transformers_reads_the_same_model_back(tmp_path, kind):
    """Its reader undoes the names and the order of Llama's heads, but not that of their biases."""
    import torch
    from transformers import AutoModelForCausalLM

    from unslothrl.export import merging

    model = small_model(kind)
    write(model, tmp_path / "x.gguf")
    read_back = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="x.gguf", dtype=torch.float32
    )
    if model.config.rope_parameters["rope_type"] != "default":
        read_back.config.rope_parameters = model.config.rope_parameters  # it reads no scaling
        read_back.model.rotary_emb = type(read_back.model.rotary_emb)(read_back.config)
    alike = merging.likeness(model.float(), read_back.eval(), [tuple(range(4, 100))])
    assert alike.largest < 1e-4 and alike.same_choice == 1


@pytest.mark.real
def test_q8_0_keeps_weights_to_half_a_step_of_their_block(tmp_path):
    import gguf as library
    import numpy as np

    model = small_model("qwen3")
    write(model, tmp_path / "x.gguf", "q8_0")
    stored = {each.name: each for each in library.GGUFReader(tmp_path / "x.gguf").tensors}
    assert "output.weight" not in stored  # tied
    names = library.get_tensor_name_map(library.MODEL_ARCH.QWEN3, 2)
    for name, values in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        tensor = stored[names.get_name(name, try_suffixes=(".weight", ".bias"))]
        found = library.dequantize(tensor.data, tensor.tensor_type)
        expected = values.float().numpy()
        if values.dim() == 1:
            assert tensor.tensor_type == library.GGMLQuantizationType.F32
            assert np.array_equal(found, expected)
        else:
            assert tensor.tensor_type == library.GGMLQuantizationType.Q8_0
            blocks = np.abs(expected.reshape(-1, 32)).max(-1, keepdims=True)
            error = np.abs(found - expected).reshape(-1, 32)
            # half of 1/127, and the rounding of the block's scale to float16
            assert (error <= blocks / 225).all() and error.max() > 0
    gguf.round_as_stored(model, "q8_0")
    tensor = stored["blk.0.ffn_up.weight"]
    rounded = library.dequantize(tensor.data, tensor.tensor_type).astype(np.float16)
    assert np.array_equal(model.state_dict()["model.layers.0.mlp.up_proj.weight"].numpy(), rounded)
