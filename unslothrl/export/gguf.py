"""A merged model as one GGUF file, for llama.cpp and Ollama, of the kinds in `FAMILIES`.

Matrices are stored in F16 or Q8_0, everything else in F32. Of the kinds `INTERLEAVED`, queries and
keys are written in the order of llama.cpp's rotary embedding, which turns neighbouring values
instead of the two halves of a head; that of the others is as it is here.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from unslothrl.errors import UserError
from unslothrl.export.gguf_tokenizer import INSTEAD, GgufTokenizer, add_tokenizer

TYPES = {
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}
RECURRENT, WINDOWED, MINISTRAL = "qwen3_5_text", "gemma3_text", "ministral3"
TWO_SIZES = "gemma4_text"  # of heads: of windows, and of what attends to everything
FAMILIES = {  # by config.json's model_type
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    MINISTRAL: gguf.MODEL_ARCH.MISTRAL3,
    WINDOWED: gguf.MODEL_ARCH.GEMMA3,
    TWO_SIZES: gguf.MODEL_ARCH.GEMMA4,
    RECURRENT: gguf.MODEL_ARCH.QWEN35,
}
INTERLEAVED = ("llama", "smollm3", MINISTRAL)
TURN_A_PART = ("phi3", RECURRENT, TWO_SIZES)  # of each head
NOPE_EVERY = 4  # layer of SmolLM3, as llama.cpp has it
WHOLE_EVERY = 6  # layer of Gemma 3, too
ROPE_FACTORS, NEVER = "rope_freqs.weight", 1e30
USUAL_YARN = {"beta_fast": (None, 32), "beta_slow": (None, 1), "attention_factor": (None,),
              "mscale": (None,), "mscale_all_dim": (None,), "truncate": (None, True)}  # fmt: skip
OF_MINISTRAL = {"mscale": (1,), "mscale_all_dim": (1,)}


def check(config: Any) -> None:
    """UserError for a PretrainedConfig that llama.cpp would not compute as transformers does."""
    kind = config.model_type
    if kind not in FAMILIES:
        raise refusal(f"its model_type {kind} is not one of {', '.join(FAMILIES)}")
    if getattr(config, "hidden_act", "silu") != "silu":
        raise refusal(f"its hidden_act {config.hidden_act} is not silu")
    window = getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None)
    if kind in (WINDOWED, TWO_SIZES):
        check_windowed(config)
    elif window and window < config.max_position_embeddings:
        raise refusal("its attention has a sliding window")
    turned = getattr(config, "no_rope_layers", ())
    if any(bool(turns) is not bool((at + 1) % NOPE_EVERY) for at, turns in enumerate(turned)):
        raise refusal(f"layers other than every {NOPE_EVERY}th have no rotary embedding")
    if kind == RECURRENT and interval_of(config) is None:
        raise refusal("its layers with attention are not every so many")
    if getattr(config, "mlp_bias", False):
        raise refusal("its MLP has biases")
    if getattr(config, "attention_bias", False) and kind == "qwen3":
        raise refusal("its attention has biases")
    rope_settings(config)


def check_windowed(config: Any) -> None:
    """As in llama.cpp's src/models/gemma3.cpp and gemma4.cpp."""
    (check_gemma3 if config.model_type == WINDOWED else check_gemma4)(config)
    if config.rope_parameters["sliding_attention"].get("rope_type", "default") != "default":
        raise refusal("the rotary embedding of its windows is scaled")
    if config.hidden_activation != "gelu_pytorch_tanh":
        raise refusal(f"its hidden_activation {config.hidden_activation} is not Gemma's")


def check_gemma3(config: Any) -> None:
    """Which takes 62 layers for the model of 27B."""
    is_27b = config.num_hidden_layers == 62
    scalar = config.hidden_size / config.num_attention_heads if is_27b else head_size(config)
    if config.query_pre_attn_scalar != scalar:
        raise refusal(f"its query_pre_attn_scalar {config.query_pre_attn_scalar} is not {scalar}")
    if interval_of(config) != WHOLE_EVERY:
        raise refusal(f"layers other than every {WHOLE_EVERY}th attend to everything")
    caps = config.attn_logit_softcapping, config.final_logit_softcapping
    if any(caps) or config.use_bidirectional_attention:
        raise refusal("its logits are capped, or its attention looks ahead")


def check_gemma4(config: Any) -> None:
    """Whose last layers take the keys of the last two that have their own, one of each kind."""
    own = config.num_hidden_layers - config.num_kv_shared_layers
    if config.num_kv_shared_layers and has_window(config)[max(0, own - 2) : own] != [True, False]:
        raise refusal("its last layers take the keys of others than the two before them")
    if config.enable_moe_block or config.attention_bias:
        raise refusal("it has experts, or its attention biases")
    if config.use_bidirectional_attention == "all":
        raise refusal("its attention looks ahead")
    if (
        config.hidden_size_per_layer_input
        and config.vocab_size_per_layer_input != config.vocab_size
    ):
        raise refusal("its layers have inputs of their own for another number of tokens")
    if rope_settings(config)["rope_type"] != "proportional":
        raise refusal("its rotary embedding is not proportional")


def refusal(why: str) -> UserError:
    return UserError(f"to gguf: llama.cpp cannot compute this base ({why}): {INSTEAD}")


def rope_settings(config: Any) -> dict[str, Any]:
    """The rotary embedding's settings. UserError for a kind that GGUF has no fields for."""
    found = getattr(config, "rope_parameters", None) or {}
    settings = {"rope_type": "default", **found.get("full_attention", found)}
    kind = settings["rope_type"]
    of_one = {"phi3": "longrope", TWO_SIZES: "proportional"}.get(config.model_type)
    if kind not in ("default", "linear", "yarn", "llama3", of_one):
        raise refusal(f"its rope_type {kind} is not known")
    is_whole = settings.get("partial_rotary_factor") in (None, 1)
    if not is_whole and config.model_type not in TURN_A_PART:
        raise refusal("it turns a part of each head only")
    if kind == "proportional" and settings.get("factor", 1) != 1:
        raise refusal("its proportional rotary embedding is scaled")
    if kind != "yarn" and settings.get("llama_4_scaling_beta"):
        raise refusal("it scales queries by their place without YaRN")
    if kind == "yarn":
        usual = USUAL_YARN | (OF_MINISTRAL if config.model_type == MINISTRAL else {})
        unusual = [name for name, values in usual.items() if settings.get(name) not in values]
        if unusual:
            raise refusal(f"its YaRN sets {', '.join(unusual)}")
    return settings


def write(model: Any, tokenizer: GgufTokenizer, path: Path, kind: str, name: str) -> None:
    """Writes a causal model whose weights lie on the host, a tensor at a time."""
    config = model.config
    check(config)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[FAMILIES[config.model_type]])
    try:
        add_settings(writer, config, kind, name)
        add_tokenizer(writer, tokenizer)
        for tensor, values, stored in tensors(model, kind):
            block, block_bytes = gguf.GGML_QUANT_SIZES[stored]
            size = values.numel() // block * block_bytes
            shape, dtype = list(values.shape), np.dtype(np.float32)  # what is packed
            writer.add_tensor_info(tensor, shape, dtype, size, raw_dtype=stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor, values, stored in tensors(model, kind):
            numbers = as_numpy(values)
            if not np.isfinite(numbers).all():
                raise refusal(f"{tensor} has a weight over float16's {np.finfo(np.float16).max}")
            writer.write_tensor_data(gguf.quantize(numbers, stored))
    finally:
        writer.close()


def add_settings(writer: Any, config: Any, kind: str, name: str) -> None:
    head = head_size(config)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_file_type(TYPES[kind][1])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    if config.model_type == TWO_SIZES:
        add_sizes_by_layer(writer, config)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    rope = rope_settings(config)
    turned = 1 if rope["rope_type"] == "proportional" else rope.get("partial_rotary_factor") or 1
    writer.add_rope_dimension_count(int(head * turned))
    writer.add_rope_freq_base(rope.get("rope_theta", 10_000.0))
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "longrope":
        writer.add_rope_scaling_attn_factors(turning(config)[1])
    if rope["rope_type"] in ("longrope", "yarn"):
        original = rope.get("original_max_position_embeddings") or config.max_position_embeddings
        writer.add_rope_scaling_orig_ctx_len(original)
    if config.model_type == "phi3":
        writer.add_sliding_window(0)
    if config.model_type == MINISTRAL and rope["rope_type"] == "yarn":
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope.get("llama_4_scaling_beta", 0.0))
    if config.model_type in (WINDOWED, TWO_SIZES):
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    if config.model_type == RECURRENT:
        writer.add_rope_dimension_sections([*rope.get("mrope_section", (11, 11, 10)), 0])
        writer.add_full_attention_interval(interval_of(config))
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_ssm_state_size(config.linear_key_head_dim)
        writer.add_ssm_group_count(config.linear_num_key_heads)
        writer.add_ssm_time_step_rank(config.linear_num_value_heads)
        writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)


def add_sizes_by_layer(writer: Any, config: Any) -> None:
    shared, layers = config.num_kv_shared_layers, range(config.num_hidden_layers)
    wider = [config.use_double_wide_mlp and at >= len(layers) - shared for at in layers]
    writer.add_feed_forward_length([config.intermediate_size * (1 + wide) for wide in wider])
    heads = [config.per_layer_config[at].num_key_value_heads for at in layers]
    writer.add_head_count_kv(heads)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input or 0)
    writer.add_sliding_window_pattern(has_window(config))
    for add in (writer.add_key_length_swa, writer.add_value_length_swa,
                writer.add_rope_dimension_count_swa):  # fmt: skip
        add(layer_of(config, "sliding_attention").head_dim)
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def layer_of(config: Any, kind: str) -> Any:
    """The settings of the first layer of a kind."""
    return config.per_layer_config[config.layer_types.index(kind)]


def has_window(config: Any) -> list[bool]:
    """[layers]"""
    return [kind == "sliding_attention" for kind in config.layer_types]


def interval_of(config: Any) -> int | None:
    """Every how many layers one has attention; None where they lie otherwise."""
    kinds = config.layer_types
    every = kinds.index("full_attention") + 1 if "full_attention" in kinds else 0
    regular = [(at + 1) % (every or 1) > 0 for at in range(len(kinds))]
    return every if every and regular == [kind != "full_attention" for kind in kinds] else None


def tensors(model: Any, kind: str) -> Iterator[tuple[str, torch.Tensor, Any]]:
    """-> (llama.cpp's name, values, the type that they are stored in), in a fixed order."""
    config = model.config
    for name, factors in rope_factors(config).items():
        yield name, torch.as_tensor(factors, dtype=torch.float32), gguf.GGMLQuantizationType.F32
    names = gguf.get_tensor_name_map(FAMILIES[config.model_type], config.num_hidden_layers)
    for name, values in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        known_as = name.replace(".dt_bias", ".dt_proj.bias")
        known_as = known_as.replace(".layer_scalar", ".layer_scalar.weight")
        stored_as = names.get_name(known_as, try_suffixes=(".weight", ".bias"))
        if stored_as is None:
            raise refusal(f"it has {name}")
        yield stored_as, in_order(name, values, config), type_of(name, values, kind)


def in_order(name: str, values: torch.Tensor, config: Any) -> torch.Tensor:
    """q and k of `INTERLEAVED`: value i of each half of a head beside value i of the other."""
    if config.model_type == RECURRENT:
        return of_recurrent(name, values, config)
    if config.model_type == WINDOWED and name.endswith("norm.weight"):
        return values.float() + 1
    part = name.split(".")[-2]
    if config.model_type not in INTERLEAVED or part not in ("q_proj", "k_proj"):
        return values
    heads = config.num_attention_heads if part == "q_proj" else config.num_key_value_heads
    halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
    return halves.transpose(1, 2).reshape(values.shape)


def of_recurrent(name: str, values: torch.Tensor, config: Any) -> torch.Tensor:
    """Norms as what they multiply by and decays as rates. Value heads lie by their key head here;
    there the first of every key head comes first, then the second of each."""
    is_norm, is_recurrent = name.endswith("norm.weight"), "linear_attn" in name
    if is_norm or not is_recurrent:
        return values.float() + 1 if is_norm and not is_recurrent else values
    if name.endswith("A_log"):
        values = -values.float().exp()
    part, keys = name.split(".")[-2], config.linear_num_key_heads
    if part == "conv1d":
        values = values.squeeze(1)
    has_keys, dim = part in ("in_proj_qkv", "conv1d"), int(part == "out_proj")
    kept = 2 * keys * config.linear_key_head_dim if has_keys else 0  # queries and keys come first
    by_key = torch.arange(kept, values.shape[dim])
    by_key = by_key.reshape(keys, config.linear_num_value_heads // keys, -1).transpose(0, 1)
    return values.index_select(dim, torch.cat([torch.arange(kept), by_key.flatten()]))


def type_of(name: str, values: torch.Tensor, kind: str) -> Any:
    """F32 for vectors; matrices whose rows are no whole blocks of Q8_0 stay in F16."""
    if values.dim() < 2 or "conv1d" in name:
        return gguf.GGMLQuantizationType.F32
    wanted = TYPES[kind][0]
    block, _ = gguf.GGML_QUANT_SIZES[wanted]
    return wanted if values.shape[-1] % block == 0 else gguf.GGMLQuantizationType.F16


def rope_factors(config: Any) -> dict[str, Any]:
    """Name -> [turned part of a head / 2]: what each frequency of the rotary embedding is divided
    by. Of Llama 3.1's nothing where it turns often within the original context, `factor` where it
    hardly turns; of LongRoPE's as it says, where llama.cpp has room for more than the original
    context or not. Of Gemma 4's what lets the rest of a head, by which nothing is turned, stand."""
    rope = rope_settings(config)
    if rope["rope_type"] == "longrope":
        return {f"rope_factors_{each}.weight": rope[f"{each}_factor"] for each in ("long", "short")}
    head = head_size(config)
    if rope["rope_type"] == "proportional":
        turned = int(rope.get("partial_rotary_factor", 1) * head // 2)
        return {ROPE_FACTORS: [1.0] * turned + [NEVER] * (head // 2 - turned)}
    if rope["rope_type"] != "llama3":
        return {}
    plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, head, 2).float() / head)
    return {ROPE_FACTORS: plain / turning(config)[0]}


def turning(config: Any) -> tuple[torch.Tensor, float]:
    """-> (frequencies of a head, [turned part / 2]; a factor of attention), of transformers."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    return ROPE_INIT_FUNCTIONS[rope_settings(config)["rope_type"]](config)


def head_size(config: Any) -> int:
    """Of layers that attend to everything."""
    if config.model_type == TWO_SIZES:
        return layer_of(config, "full_attention").head_dim
    found = getattr(config, "head_dim", None)
    return found or config.hidden_size // config.num_attention_heads


def as_numpy(values: torch.Tensor) -> np.ndarray:
    return values.detach().float().contiguous().numpy()


@torch.no_grad()
def round_as_stored(model: Any, kind: str) -> None:
    """Gives the weights the values that they have in the file, as far as their type has them."""
    for name, values in model.state_dict().items():
        stored = type_of(name, values, kind)
        packed = gguf.quantize(as_numpy(values), stored)
        values.copy_(torch.from_numpy(gguf.dequantize(packed, stored)))
