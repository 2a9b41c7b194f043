"""The portable backend: PEFT's LoRA over a bitsandbytes 4-bit base, on a CPU or a GPU."""

import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from peft import (
    LoraConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from transformers import AutoModelForCausalLM

from unslothrl import base_model
from unslothrl.memory import peak_memory_mb
from unslothrl.types import LORA_TARGETS, Adapter, Sample

REFERENCE = "reference"


class PeftBackend:
    """See `backends.base.Backend`. Trains float32 LoRA weights over the frozen base.

    `base` is a checkpoint folder, 4-bit or not; `dtype` what the base computes in; `start` a PEFT
    folder to start from, which is then the reference policy as well; `name` what published adapters
    call their base, where that is not the folder.
    """

    def __init__(
        self,
        base: Path,
        *,
        dtype: torch.dtype,
        rank: int,
        alpha: int,
        dropout: float,
        seed: int,
        start: Path | None = None,
        name: str | None = None,
    ):
        self.name = name or str(base)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, device_map=self.device)
        _keep_4bit_weights_packed(model, dtype)
        self.model: Any = add_lora(model, rank, alpha, dropout, seed, start)
        self.has_reference_adapter = start is not None
        if self.device.type == "cuda":
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
            self.model.enable_input_require_grads()
        self.model.train()

    def token_logprobs(
        self, samples: Sequence[Sample], temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Pads on the right: under causal attention no real token sees a padding token."""
        prompts = [len(sample.prompt_ids) for sample in samples]
        rows = [sample.prompt_ids + sample.completion_ids for sample in samples]
        width = max(map(len, rows))
        ids = torch.tensor([row + (0,) * (width - len(row)) for row in rows], device=self.device)
        keep = width - min(prompts) + 1
        logits = self.model(input_ids=ids, use_cache=False, logits_to_keep=keep).logits
        shift = width - keep + 1  # the logits at position p - 1 are those of token p
        where = [
            (row, position - shift)
            for row, prompt in enumerate(prompts)
            for position in range(prompt, len(rows[row]))
        ]
        row, column = torch.tensor(where, device=self.device).T
        targets = ids[row, column + shift]
        return gather_logprobs(logits[row, column], targets, temperature)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        named = self.model.named_parameters()
        return {name: parameter for name, parameter in named if parameter.requires_grad}

    @contextlib.contextmanager
    def reference(self) -> Iterator[None]:
        if not self.has_reference_adapter:
            with self.model.disable_adapter():
                yield
            return
        self.model.base_model.set_adapter(REFERENCE, inference_mode=True)
        try:
            yield
        finally:
            self.model.base_model.set_adapter("default")

    @contextlib.contextmanager
    def generating(self) -> Iterator[Any]:
        self.model.eval()
        try:
            with torch.no_grad():
                yield self.model
        finally:
            self.model.train()

    def optimizer(self, lr: float) -> torch.optim.Optimizer:
        parameters = list(self.parameters().values())
        if self.device.type == "cuda":
            import bitsandbytes

            return bitsandbytes.optim.AdamW8bit(parameters, lr=lr, weight_decay=0.0)
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0)

    def publish(self, version: int) -> Adapter:
        return pack_adapter(self.model, version, self.name)

    def restore_adapter(self, adapter: Adapter) -> None:
        """Puts a published version's weights into the LoRA, in place."""
        set_peft_model_state_dict(
            self.model, safetensors.torch.load(adapter.weights), adapter_name="default"
        )

    def fingerprint(self) -> str:
        return base_model.fingerprint(packed_weights(self.model))

    def memory_mb(self) -> float:
        return peak_memory_mb()


def add_lora(
    model: torch.nn.Module, rank: int, alpha: int, dropout: float, seed: int, start: Path | None
) -> PeftModel:
    """The model with a trainable LoRA on the seven targets: a fresh, seeded one or `start`."""
    if start is not None:
        wrapped = PeftModel.from_pretrained(model, str(start), is_trainable=True)
        wrapped.load_adapter(str(start), adapter_name=REFERENCE, is_trainable=False)
        return wrapped
    torch.manual_seed(seed)
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=list(LORA_TARGETS),
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)


def gather_logprobs(
    logits: torch.Tensor,  # [tokens, vocabulary]
    targets: torch.Tensor,  # [tokens]
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> float32 (log-probabilities of the targets, entropies without gradient), each [tokens]."""
    logprobs = (logits.float() / temperature).log_softmax(-1)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(-1, targets[:, None]).squeeze(-1), entropy


def pack_adapter(model: PeftModel, version: int, base: str) -> Adapter:
    """The default LoRA as an immutable version: bfloat16 safetensors and PEFT's config."""
    state = get_peft_model_state_dict(model, adapter_name="default")
    weights = safetensors.torch.save(
        {
            name: state[name].detach().to("cpu", torch.bfloat16).contiguous()
            for name in sorted(state)
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        model.peft_config["default"].save_pretrained(folder)
        config = json.loads((Path(folder) / "adapter_config.json").read_text())
    config["target_modules"] = sorted(config["target_modules"])
    config["inference_mode"] = True
    config["base_model_name_or_path"] = base
    return Adapter.of(version, weights, json.dumps(config, indent=2, sort_keys=True))


def packed_weights(model: torch.nn.Module) -> Iterator[bytes]:
    """The packed bytes of every 4-bit linear layer, in the order of `base_model.fingerprint`."""
    import bitsandbytes

    linears = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, bitsandbytes.nn.Linear4bit)
    }
    for name in sorted(linears, key=_layer_order):
        yield linears[name].weight.detach().cpu().contiguous().numpy().tobytes()


def _layer_order(name: str) -> tuple[int, int]:
    parts = name.removesuffix(".base_layer").split(".")
    layer = next(int(part) for part in parts if part.isdigit())
    return layer, LORA_TARGETS.index(parts[-1])


def _keep_4bit_weights_packed(model: torch.nn.Module, dtype: torch.dtype) -> None:
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
