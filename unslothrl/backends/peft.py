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

from unslothrl.backends import attention, logprobs, packing
from unslothrl.memory import peak_memory_mb, prepare_card
from unslothrl.types import LORA_TARGETS, Adapter, Sample
from unslothrl.weights import base_model

SHAPE = ("r", "lora_alpha", "lora_dropout", "target_modules", "use_rslora", "task_type")
POLICY, REFERENCE, CRITIC = "default", "reference", "critic"  # PEFT's names of the adapters


class PeftBackend:
    """See `backends.base.Backend`. Trains float32 LoRA weights over the frozen base.

    `base` is a checkpoint folder, 4-bit or not; `dtype` what the base computes in; `start` a PEFT
    folder to start from, which is then the reference policy as well; `name` what published adapters
    call their base, where that is not the folder. `packs=False` pads, for comparisons. `offload`:
    "optimizer" lets the driver move the optimiser's state to host memory where the card is full,
    "model" moves the base there as well whenever `to_host` says so.
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
        packs: bool = True,
        offload: str = "none",
    ):
        prepare_card()
        self.offload, self.dtype = offload, dtype
        self.name = name or str(base)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, device_map=self.device)
        _keep_4bit_weights_packed(model, dtype)
        self.packs = self.shares_prompts = packs and packing.can_pack(model.config)
        if self.packs:
            model.set_attn_implementation(attention.ATTENTION)
        self.model: Any = add_lora(model, rank, alpha, dropout, seed, start)
        self.has_reference_adapter = start is not None
        self.value_head: torch.nn.Linear | None = None
        if self.device.type == "cuda":
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
            self.model.enable_input_require_grads()
        self.model.train()

    def token_logprobs(
        self, samples: Sequence[Sample], temperature: float, entropy_gradient: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        states, targets = self.states_before(samples)
        head = logprobs.Head.of(self.model.get_base_model())
        return logprobs.token_logprobs(head, states, targets, temperature, entropy_gradient)

    def states_before(self, samples: Sequence[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
        """-> (what the output layer gets before every completion token [tokens, hidden], the
        tokens)."""
        if self.packs:
            pack = packing.packed(samples, self.device, self.shares_prompts)
            return self.pack_states(pack)[0, pack.rows], pack.targets
        ids, row, position = completion_tokens(samples, self.device)
        return self.hidden_states(ids)[row, position - 1], ids[row, position]

    def pack_states(self, pack: packing.Pack) -> torch.Tensor:
        """[1, tokens, hidden]"""
        where = torch.tensor(pack.spans, dtype=torch.int32)[None, None]  # read on the host
        return self.hidden_states(pack.ids, position_ids=pack.positions, attention_mask=where)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return self._lora(POLICY)

    def _lora(self, adapter: str) -> dict[str, torch.nn.Parameter]:
        named = self.model.named_parameters()
        return {name: parameter for name, parameter in named if f".{adapter}." in name}

    def add_critic(self, seed: int) -> None:
        shape = self.model.peft_config[POLICY]
        torch.manual_seed(seed)
        self.model.add_adapter(CRITIC, LoraConfig(**{key: getattr(shape, key) for key in SHAPE}))
        hidden = self.model.get_base_model().config.hidden_size
        self.value_head = torch.nn.Linear(hidden, 1, device=self.device)
        torch.nn.init.zeros_(self.value_head.weight)
        torch.nn.init.zeros_(self.value_head.bias)
        self.model.base_model.set_adapter(POLICY)

    def critic(self) -> contextlib.AbstractContextManager[None]:
        return self._adapter(CRITIC)

    def token_values(self, samples: Sequence[Sample]) -> torch.Tensor:
        if self.value_head is None:
            raise ValueError("this backend has no critic: call add_critic first")
        states, _ = self.states_before(samples)
        return self.value_head(states.float()).squeeze(-1)

    def hidden_states(self, input_ids: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
        """[rows, tokens] ids -> [rows, tokens, hidden], what the output layer would get."""
        decoder = self.model.get_base_model().model
        with measuring(decoder), self._precision():
            return decoder(input_ids=input_ids, use_cache=False, **inputs).last_hidden_state

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        return lora_precision(self.device.type, self.dtype)

    def critic_parameters(self) -> dict[str, torch.nn.Parameter]:
        if self.value_head is None:
            return {}
        head = {f"value_head.{name}": p for name, p in self.value_head.named_parameters()}
        return {**self._lora(CRITIC), **head}

    @contextlib.contextmanager
    def reference(self) -> Iterator[None]:
        if self.has_reference_adapter:
            with self._adapter(REFERENCE):
                yield
        else:
            with self.model.disable_adapter():
                yield

    @contextlib.contextmanager
    def _adapter(self, name: str) -> Iterator[None]:
        """Inside it that adapter is the active one; afterwards it is the policy's."""
        self.model.base_model.set_adapter(name, inference_mode=name == REFERENCE)
        try:
            yield
        finally:
            self.model.base_model.set_adapter(POLICY)

    @contextlib.contextmanager
    def generating(self) -> Iterator[Any]:
        self.model.eval()
        try:
            yield self.model
        finally:
            self.model.train()

    def optimizer(
        self, parameters: Sequence[torch.nn.Parameter], lr: float, weight_decay: float
    ) -> torch.optim.Optimizer:
        if self.device.type == "cuda":
            import bitsandbytes.optim as optim

            kind = optim.AdamW8bit if self.offload == "none" else optim.PagedAdamW8bit
            return kind(parameters, lr=lr, weight_decay=weight_decay)
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay)

    def publish(self, version: int) -> Adapter:
        return pack_adapter(self.model, version, self.name)

    def restore_adapter(self, adapter: Adapter) -> None:
        """Puts a published version's weights into the LoRA, in place."""
        set_peft_model_state_dict(
            self.model, safetensors.torch.load(adapter.weights), adapter_name=POLICY
        )

    def keep_version(self, adapter: Adapter) -> None:
        """Holds an older policy version beside the weights as they are, to generate with."""
        name = version_name(adapter.version)
        shape = {key: getattr(self.model.peft_config[POLICY], key) for key in SHAPE}
        with torch.random.fork_rng():  # what is drawn here is overwritten
            self.model.add_adapter(name, LoraConfig(**{**shape, "lora_dropout": 0.0}))
        set_peft_model_state_dict(
            self.model, safetensors.torch.load(adapter.weights), adapter_name=name
        )
        self.model.base_model.set_adapter(POLICY)

    @contextlib.contextmanager
    def version(self, version: int) -> Iterator[None]:
        """Inside it the model is that of a kept version."""
        self.model.base_model.set_adapter(version_name(version), inference_mode=True)
        try:
            yield
        finally:
            self.model.base_model.set_adapter(POLICY)

    def forget_version(self, version: int) -> None:
        self.model.delete_adapter(version_name(version))
        self.model.base_model.set_adapter(POLICY)

    def fingerprint(self) -> str:
        return base_model.fingerprint(packed_weights(self.model))

    def to_host(self) -> None:
        if self.offload == "model":
            self.model.to("cpu")
        self.free_cache()

    def to_device(self) -> None:
        if self.offload == "model":
            self.model.to(self.device)

    def free_cache(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def memory_mb(self) -> float:
        return peak_memory_mb()


@contextlib.contextmanager
def measuring(decoder: torch.nn.Module) -> Iterator[None]:
    """Without gradients a training decoder is in eval mode, and back in training afterwards.

    What is measured has no dropout, and Unsloth's checkpointing, which would keep a host buffer for
    every such forward until the next backward, is off (`unsloth_zoo/gradient_checkpointing.py`).
    """
    if torch.is_grad_enabled() or not decoder.training:
        yield
        return
    training = [module for module in decoder.modules() if module.training]
    decoder.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def version_name(version: int) -> str:
    """PEFT's name of a version that is kept beside the policy."""
    return f"version-{version}"


def lora_precision(device_type: str, dtype: torch.dtype) -> contextlib.AbstractContextManager[Any]:
    """Where the LoRA's float32 weights are computed with in bfloat16, on a card.

    PEFT casts the input of every LoRA layer to float32 unless autocast is on (`lora/bnb.py`), which
    takes 12 bytes for each hidden value of a token. float16 has no loss scaler here, so its LoRA
    stays float32. No weight is used twice in a forward, so no cast is kept.
    """
    if device_type != "cuda" or dtype != torch.bfloat16:
        return contextlib.nullcontext()
    return torch.autocast(device_type, dtype, cache_enabled=False)


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


def completion_tokens(
    samples: Sequence[Sample], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> (ids [samples, longest], row and position of every completion token, each [tokens]).

    Pads on the right: under causal attention no real token sees a padding token.
    """
    rows = [sample.prompt_ids + sample.completion_ids for sample in samples]
    width = max(map(len, rows))
    ids = torch.tensor([row + (0,) * (width - len(row)) for row in rows], device=device)
    where = [
        (index, position)
        for index, sample in enumerate(samples)
        for position in range(len(sample.prompt_ids), len(rows[index]))
    ]
    row, position = torch.tensor(where, dtype=torch.long, device=device).reshape(-1, 2).T
    return ids, row, position


def pack_adapter(model: PeftModel, version: int, base: str) -> Adapter:
    """The default LoRA as an immutable version: bfloat16 safetensors and PEFT's config."""
    state = get_peft_model_state_dict(model, adapter_name=POLICY)
    weights = safetensors.torch.save(
        {
            name: state[name].detach().to("cpu", torch.bfloat16).contiguous()
            for name in sorted(state)
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        model.peft_config[POLICY].save_pretrained(folder)
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
