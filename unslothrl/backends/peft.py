"""The portable backend: PEFT's LoRA over a bitsandbytes 4-bit base, on a CPU or a GPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from unslothrl.backends import packing
from unslothrl.backends.lora import REFERENCE, LoraBackend, fingerprint_of
from unslothrl.errors import UserError
from unslothrl.sharding.split import Rank, Split
from unslothrl.system.cpu_products import multiply_in_float32
from unslothrl.system.memory import limit_card_memory
from unslothrl.weights import decoder
from unslothrl.weights.base_model import read_config
from unslothrl.weights.shapes import COUNTED

LIKE_LLAMA = {"learner_tensor_parallel", "pipeline_stages"}  # what they divide
# What a base's own configuration may ask for, and the sampler does not have.
DROPOUTS = ("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop")


def load(
    base: Path,
    *,
    dtype: torch.dtype,
    rank: int,
    alpha: int,
    dropout: float,
    seed: int,
    start: Path | None = None,
    name: str | None = None,
    packs: bool = True,
    offload: str = "none",
    ranks: Mapping[str, Rank] | None = None,
) -> LoraBackend:
    """Loads `base`, a checkpoint folder, 4-bit or not, and puts a LoRA on it.

    `dtype` is what the base computes in; `start` a PEFT folder to start from, which is then the
    reference policy as well; `name` what published adapters call their base, where that is not the
    folder. `packs=False` pads, for comparisons. `offload`: see `LoraBackend`. `ranks`: this
    learner's among those that share its work, by the option's name, see `sharding.split`.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    plain = load_base(AutoModelForCausalLM, base, dtype, device="cpu" if ranks else device)
    packs = packs and packing.can_pack(plain)
    if packs:
        plain.set_attn_implementation(packing.ATTENTION)
    split = Split()
    if ranks:
        if "context_parallel" in ranks and not packs:
            raise UserError(
                f"context_parallel: not all layers of {base} are plain attention: leave it out"
            )
        if LIKE_LLAMA & ranks.keys() and plain.config.model_type not in COUNTED:
            raise UserError(
                f"{', '.join(sorted(LIKE_LLAMA & ranks.keys()))}: the layers of {base} are not "
                "those of Llama or Qwen: set --learner_shards instead"
            )
        leaves, own = offload == "model", fingerprint_of(plain)
        split = Split.of(plain, ranks, device, own, packing.attend, leaves)
    model = in_training(add_lora(plain, rank, alpha, dropout, seed, start))
    if split.tensors is not None:
        split.tensors.attach(model)
    return LoraBackend(
        model=model,
        device=model.device,
        dtype=dtype,
        name=name or str(base),
        has_reference_adapter=start is not None,
        offload=offload,
        pack_inputs=packing.pack_inputs if packs else None,
        shares_prompts=packs,
        for_inference=torch.nn.Module.eval,
        for_training=torch.nn.Module.train,
        decoder=model.get_base_model,
        split=split,
    )


def load_base(
    kind: Any, base: Path, dtype: torch.dtype, device: torch.device | str | None = None, **more: Any
) -> Any:
    """A checkpoint as a model of transformers' class `kind`, without a LoRA, on `device`, by
    default the GPU where there is one."""
    limit_card_memory()
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    more |= {name: 0.0 for name in DROPOUTS if read_config(base).get(name)}
    if torch.device(device).type == "cpu":
        multiply_in_float32()
    model = kind.from_pretrained(
        base, dtype=dtype, device_map=device, trust_remote_code=False, **more
    )
    decoder.check(model, base)
    keep_4bit_weights_packed(model, dtype)
    return model


def in_training(model: PeftModel) -> PeftModel:
    """The model in training mode, with checkpointing on a card."""
    if model.device.type == "cuda":
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    return model.train()


def add_lora(
    model: torch.nn.Module, rank: int, alpha: int, dropout: float, seed: int, start: Path | None
) -> PeftModel:
    """The model with a trainable LoRA on all linear layers: a fresh, seeded one or `start`."""
    if start is not None:
        wrapped = PeftModel.from_pretrained(model, str(start), is_trainable=True)
        wrapped.load_adapter(str(start), adapter_name=REFERENCE, is_trainable=False)
        return wrapped
    torch.manual_seed(seed)
    options = {"target_modules": decoder.targets(model), **lora_options(rank, alpha, dropout)}
    return get_peft_model(model, LoraConfig(**options, task_type="CAUSAL_LM"))


def lora_options(
    rank: int, alpha: float, dropout: float, start: Path | None = None
) -> dict[str, Any]:
    """A LoRA's settings by PEFT's names: as given, on all linear layers, which are not among them;
    or those of the adapter to start from."""
    if start is None:
        return {"r": rank, "lora_alpha": alpha, "lora_dropout": dropout}
    saved = LoraConfig.from_pretrained(str(start))
    names = ("r", "lora_alpha", "lora_dropout", "target_modules", "use_rslora")
    lora = {key: getattr(saved, key) for key in names}
    return {**lora, "target_modules": sorted(lora["target_modules"])}


def keep_4bit_weights_packed(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Stops bitsandbytes' AVX512-BF16 path and sets what 4-bit layers compute in.

    On such a CPU the first forward in eval mode without gradients repacks NF4 weights for good, and
    the gradients of every later training step are wrong (bitsandbytes 0.50.2).
    """
    import bitsandbytes

    for module in model.modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            module.support_avx512bf16_for_cpu = False
            module.compute_dtype = dtype
            module.compute_type_is_set = True
