"""A tiny model of each family, with random weights and the embedded base's tokenizer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from unslothrl import embedded

SIZES: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096,
    "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
VISION = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
          "num_attention_heads": 2}  # fmt: skip
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 512,
           "tie_word_embeddings": True, "head_dim": 32}  # fmt: skip
RECURRENT = {"layer_types": ["linear_attention", "full_attention"], "head_dim": 64,
             "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_conv_kernel_dim": 4,
             "linear_key_head_dim": 128, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32",
             "rope_parameters": {"rope_type": "default", "rope_theta": 1e7,
                                 "partial_rotary_factor": 0.25, "mrope_section": [3, 3, 2],
                                 "mrope_interleaved": True}}  # fmt: skip


def llama() -> Any:
    return transformers.LlamaConfig(**SIZES)


def smollm3() -> Any:
    return transformers.SmolLM3Config(**SIZES, no_rope_layer_interval=2, use_sliding_window=False)


def phi() -> Any:
    """Phi-3, Phi-4 and Phi-4-mini are one kind."""
    return transformers.Phi3Config(**SIZES, original_max_position_embeddings=4096)


def ministral() -> Any:
    text = transformers.Ministral3Config(**SIZES, head_dim=32)
    vision = transformers.PixtralVisionConfig(**VISION, image_size=56, patch_size=14, head_dim=32)
    return transformers.Mistral3Config(
        text_config=text, vision_config=vision, image_token_index=300, tie_word_embeddings=False
    )


def gemma3() -> Any:
    text = transformers.Gemma3TextConfig(**{**SIZES, **WINDOWS}, query_pre_attn_scalar=32)
    vision = transformers.SiglipVisionConfig(
        **VISION, image_size=56, patch_size=14, vision_use_head=False
    )
    return transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=300,
        boi_token_index=301, eoi_token_index=302, tie_word_embeddings=True,
    )  # fmt: skip


def gemma4(*, is_31b: bool = False) -> Any:
    """As E2B and E4B are: heads of two sizes, layers that take another's keys, inputs by layer. Of
    31B, keys that are values as well."""
    sizes = {**SIZES, **WINDOWS, "num_hidden_layers": 4, "layer_types": 2 * WINDOWS["layer_types"],
             "intermediate_size": 4096}  # fmt: skip
    text = transformers.Gemma4TextConfig(
        **sizes, global_head_dim=64, hidden_size_per_layer_input=64, num_kv_shared_layers=2,
        use_double_wide_mlp=True, enable_moe_block=False, attention_k_eq_v=is_31b,
        vocab_size_per_layer_input=320,
    )  # fmt: skip
    return transformers.Gemma4Config(
        text_config=text, audio_config=None, image_token_id=300, audio_token_id=303,
        boi_token_id=301, eoi_token_id=302, boa_token_id=304, eoa_token_id=305, video_token_id=306,
        vision_config={**VISION, "num_key_value_heads": 2, "head_dim": 32, "patch_size": 16},
        tie_word_embeddings=True,
    )  # fmt: skip


def qwen35() -> Any:
    vision = {"depth": 1, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2,
              "patch_size": 16, "out_hidden_size": 128, "spatial_merge_size": 2,
              "temporal_patch_size": 2, "num_position_embeddings": 16}  # fmt: skip
    return transformers.Qwen3_5Config(
        text_config={**SIZES, **RECURRENT}, vision_config=vision, image_token_id=300,
        video_token_id=301, vision_start_token_id=302, vision_end_token_id=303,
        tie_word_embeddings=False,
    )  # fmt: skip


TRAINED: dict[str, Callable[[], Any]] = {
    "Llama": llama, "SmolLM3": smollm3, "Ministral 3": ministral, "Gemma 3": gemma3,
    "Gemma 4": gemma4, "Phi-4": phi, "Qwen3.5": qwen35,
}  # fmt: skip


EXPERTS = {"num_experts_per_tok": 2}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {  # and what is said of it
    "Qwen3-MoE": (
        lambda: transformers.Qwen3MoeConfig(
            **SIZES, **EXPERTS, moe_intermediate_size=64, num_experts=8
        ),
        "not covered: experts.gate_up_proj",
    ),
    "gpt-oss": (
        lambda: transformers.GptOssConfig(
            **SIZES, **EXPERTS, num_local_experts=8, head_dim=32, layer_types=["full_attention"] * 2
        ),
        "not covered: experts.gate_up_proj",
    ),
    "LFM2": (
        lambda: transformers.Lfm2Config(
            **SIZES, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False
        ),
        "vLLM's LFM2 reads conv_dim",
    ),
    "Gemma 4 31B": (lambda: gemma4(is_31b=True), "some of its keys are values too"),
    "Falcon-H1": (
        lambda: transformers.FalconH1Config(**SIZES),
        "its recurrent layers are not known",
    ),
}


def built(config: Any, seed: int = 0) -> Any:
    """The whole model, its vision part too if the configuration has one, in bfloat16. Its weights
    are larger than usual, so that what it says depends on what it is told."""
    torch.manual_seed(seed)
    whole = config.__class__.__name__.replace("Config", "ForConditionalGeneration")
    causal = transformers.AutoModelForCausalLM.from_config
    model = getattr(transformers, whole, causal)(config).to(torch.bfloat16)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2 and "embed" not in name and "conv" not in name:
                weight.mul_(4)
    return model


def saved(folder: Path, model: Any) -> Path:
    """The folder, with the model as a checkpoint."""
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_bytes((embedded.BASE / name).read_bytes())
    stops = {"eos_token_id": [2], "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(stops))
    return folder
