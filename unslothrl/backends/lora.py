"""A loaded base with a LoRA on it: what both backends can do, whichever library has loaded it."""

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from peft import LoraConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer

from unslothrl.backends import logprobs, packing
from unslothrl.records import Sample
from unslothrl.rewards.model import HEAD_FILE, MEAN, STD, WEIGHT
from unslothrl.sharding.split import Split
from unslothrl.weights import base_model
from unslothrl.weights.adapter import Adapter
from unslothrl.weights.published import Published, difference

SHAPE = ("r", "lora_alpha", "lora_dropout", "target_modules", "use_rslora", "task_type")
POLICY, REFERENCE, CRITIC = "default", "reference", "critic"  # PEFT's names of the adapters
REWARD_MODEL = "reward-model"


@dataclass(eq=False)
class LoraBackend:
    """A 4-bit base, frozen, with one trainable LoRA on it, float32: what a learner asks of it. The
    fields: what a library has loaded, and how its model wants to be called.

    Where the run starts from an adapter, `model` holds that one as the reference too. `offload`:
    "optimizer" lets the driver move the optimiser's state to host memory where the card is full,
    "model" moves the base, or this learner's part of it, there as well between updates.
    """

    model: Any  # a PeftModel
    device: torch.device
    dtype: torch.dtype  # what the base computes in
    name: str  # what published adapters call their base
    has_reference_adapter: bool
    offload: str  # none, optimizer or model
    pack_inputs: Callable[[packing.Pack], dict[str, torch.Tensor]] | None
    """What the decoder gets besides a pack's ids and positions; None: samples are padded."""
    shares_prompts: bool  # whether a prompt is computed once for all its completions in a pack
    for_inference: Callable[[Any], Any]  # puts the model into the mode in which it generates
    for_training: Callable[[Any], Any]
    decoder: Callable[[], Any]
    """What generates in that mode: it is called as a causal model of transformers is."""
    llm: Any = None  # the library's own vLLM over the same weights
    split: Split = field(default_factory=Split)  # what of it is other learners'
    value_head: torch.nn.Linear | None = field(default=None, init=False)
    score_head: dict[str, torch.Tensor] = field(default_factory=dict, init=False)

    def micro_batches(
        self, samples: Sequence[Sample], sequences: int, context: int
    ) -> list[list[int]]:
        """Indices of the samples that go through the model together.

        Padded, `sequences` of like length; packed, as many as fit into the tokens of `sequences`
        whole contexts of `context` tokens.
        """
        if self.pack_inputs is not None:
            return packing.packs(samples, sequences * context, self.shares_prompts)
        return packing.by_length(samples, sequences)

    def token_logprobs(
        self, samples: Sequence[Sample], temperature: float, entropy_gradient: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability and entropy of each sampled token, under logits / temperature.

        Both float32 and flat, [sum of the samples' `tokens`], sample after sample. Gradients flow
        through the log-probabilities into the LoRA if autograd is on, through the entropies only
        with `entropy_gradient`.
        """
        if not samples:
            self.split.idle(head=True)
            none = torch.zeros(0, device=self.device)
            return none, none
        states, targets, places = self.states_before(samples)
        if self.split.is_early:  # a gradient goes back through zeros
            sampler = np.concatenate([sample.sampler_logprobs for sample in samples])
            said = torch.as_tensor(sampler, dtype=torch.float32, device=self.device)
            return said + 0.0 * states.float().sum(), torch.zeros_like(said)
        head = logprobs.Head.of(self.model.get_base_model())
        found = logprobs.token_logprobs(head, states, targets, temperature, entropy_gradient)
        return self._joined(found[0], places, samples), self._joined(found[1], places, samples)

    def token_values(self, samples: Sequence[Sample]) -> torch.Tensor:
        """The critic's value of the state before each sampled token, float32 and flat."""
        assert self.value_head is not None, "this backend has no critic"
        states, _, places = self.states_before(samples)
        weight: torch.Tensor = self.value_head.weight
        bias: torch.Tensor = self.value_head.bias
        tensors = self.split.tensors
        if self.split.is_early or (tensors is not None and tensors.rank):
            weight, bias = weight.detach(), bias.detach()  # another rank has their gradient
        values = torch.nn.functional.linear(states.float(), weight, bias).squeeze(-1)
        return self._joined(values, places, samples)

    def states_before(
        self, samples: Sequence[Sample]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """-> (what the output layer gets before each sampled token [sampled tokens, hidden], these
        tokens [sampled tokens], their places among all), sample after sample. Where learners share
        a row, of this one's tokens; padded rows are not shared, and have no places. Without samples
        it takes part in the passes of those that share its base."""
        if not samples:
            self.split.idle(head=False)
            hidden = self.model.get_base_model().config.hidden_size
            none = torch.zeros(0, dtype=torch.long, device=self.device)
            return torch.zeros(0, hidden, dtype=self.dtype, device=self.device), none, None
        if self.pack_inputs is None:
            ids, places, targets = packing.padded(samples, self.device)
            return self.hidden_states(ids)[tuple(places)], targets, None
        context = self.split.context
        part, parts = (0, 1) if context is None else (context.rank, context.count)
        pack = packing.packed(samples, self.device, self.shares_prompts, part, parts)
        inputs = self.pack_inputs(pack)
        states = self.hidden_states(pack.ids, position_ids=pack.positions, **inputs)
        return states[0, pack.rows], pack.targets, pack.places

    def _joined(
        self, own: torch.Tensor, places: torch.Tensor | None, samples: Sequence[Sample]
    ) -> torch.Tensor:
        """[own sampled tokens] -> [sampled tokens], of all learners that share the row."""
        if self.split.context is None or places is None:
            return own
        count = sum(sample.tokens for sample in samples)
        return self.split.context.joined(own, places, count)

    def hidden_states(self, input_ids: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
        """[rows, tokens] ids -> [rows, tokens, hidden], what the output layer would get."""
        decoder = self.model.get_base_model().model
        with measuring(decoder), lora_precision(self.device.type, self.dtype):
            if self.split.stage is not None:
                return self.split.stage.run(decoder, input_ids, inputs)
            return decoder(input_ids=input_ids, use_cache=False, **inputs).last_hidden_state

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The policy's LoRA parameters by PEFT's adapter name, in a fixed order."""
        return self._lora(POLICY)

    def critic_parameters(self) -> dict[str, torch.nn.Parameter]:
        """The critic's LoRA and value head, in a fixed order; empty without a critic."""
        if self.value_head is None:
            return {}
        return {**self._lora(CRITIC), **dict(self.value_head.named_parameters("value_head"))}

    def _lora(self, adapter: str) -> dict[str, torch.nn.Parameter]:
        named = self.model.named_parameters()
        return {name: parameter for name, parameter in named if f".{adapter}." in name}

    def add_critic(self, seed: int) -> None:
        """A critic on the same base: a LoRA of the policy's shape and a value head, at first 0.

        Call it once, before anything is trained.
        """
        shape = self.model.peft_config[POLICY]
        torch.manual_seed(seed)
        self.model.add_adapter(CRITIC, LoraConfig(**{key: getattr(shape, key) for key in SHAPE}))
        hidden = self.model.get_base_model().config.hidden_size
        self.value_head = torch.nn.Linear(hidden, 1, device=self.device)
        torch.nn.init.zeros_(self.value_head.weight)
        torch.nn.init.zeros_(self.value_head.bias)
        self.model.base_model.set_adapter(POLICY)

    def add_reward_model(self, folder: Path, normalize: bool) -> None:
        """A trained reward model on the same base: its LoRA and its head, as `unslothrl rm` has
        saved them; `normalize`: its scores less their mean, over their deviation."""
        self.model.load_adapter(str(folder), adapter_name=REWARD_MODEL, is_trainable=False)
        head = safetensors.torch.load_file(folder / HEAD_FILE, device=str(self.device))
        if not normalize:
            head |= {MEAN: torch.zeros_like(head[MEAN]), STD: torch.ones_like(head[STD])}
        self.score_head = head
        self.model.base_model.set_adapter(POLICY)
        self.for_training(self.model)  # PEFT has left that

    def reward_model(self) -> contextlib.AbstractContextManager[None]:
        """Where `sequence_scores` is called."""
        return self._adapter(REWARD_MODEL, is_frozen=True)

    def sequence_scores(self, samples: Sequence[Sample]) -> torch.Tensor:
        """[samples] float32: what a reward model's head makes of the state at the last token."""
        head = self.score_head
        longer = [one_longer(sample) for sample in samples]
        states, _, places = self.states_before(longer)
        scores = self._joined(states.float() @ head[WEIGHT][0], places, longer)
        return (scores - head[MEAN]) / head[STD]

    def critic(self) -> contextlib.AbstractContextManager[None]:
        """Where `token_values` is called, and the backward pass of what it returned."""
        return self._adapter(CRITIC)

    def reference(self) -> contextlib.AbstractContextManager[None]:
        """Inside it, `token_logprobs` is that of the base with the adapter off."""
        if self.has_reference_adapter:
            return self._adapter(REFERENCE, is_frozen=True)
        return self.model.disable_adapter()

    @contextlib.contextmanager
    def _adapter(self, name: str, is_frozen: bool = False) -> Iterator[None]:
        """Inside it that adapter is the active one; afterwards it is the policy's."""
        self.model.base_model.set_adapter(name, inference_mode=is_frozen)
        try:
            yield
        finally:
            self.model.base_model.set_adapter(POLICY)

    @contextlib.contextmanager
    def generating(self) -> Iterator[Any]:
        """Inside it, what is yielded generates: it is called as a causal model of transformers is,
        with a cache. Afterwards the model trains as if nothing had been.

        The caller turns gradients off: engines of one process enter and leave in any order.
        """
        self.for_inference(self.model)
        try:
            yield self.decoder()
        finally:
            self.for_training(self.model)

    def optimizer(
        self, parameters: Sequence[torch.nn.Parameter], lr: float, weight_decay: float
    ) -> torch.optim.Optimizer:
        """A fresh optimiser: 8-bit Adam on a GPU, AdamW on a CPU."""
        if self.device.type == "cuda":
            import bitsandbytes.optim as optim

            kind = optim.AdamW8bit if self.offload == "none" else optim.PagedAdamW8bit
            return kind(parameters, lr=lr, weight_decay=weight_decay)
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay)

    def publish(self, version: int) -> Adapter:
        """The LoRA as it is now, as an immutable version in bfloat16."""
        return pack_adapter(self.model, version, self.name)

    def restore_adapter(self, adapter: Adapter, name: str = POLICY) -> None:
        """Puts a published version's weights into a LoRA, in place."""
        set_peft_model_state_dict(self.model, Published(adapter).tensors, adapter_name=name)

    def keep_version(self, key: int, adapter: Adapter) -> None:
        """Holds an older policy version beside the weights as they are, to generate with, until
        `forget_version`; no two that are held have the same `key`."""
        shape = {key: getattr(self.model.peft_config[POLICY], key) for key in SHAPE}
        name = version_name(key)
        with torch.random.fork_rng():  # what is drawn here is overwritten
            self.model.add_adapter(name, LoraConfig(**{**shape, "lora_dropout": 0.0}))
        self.restore_adapter(adapter, name)
        self.model.base_model.set_adapter(POLICY)

    def version(self, key: int) -> contextlib.AbstractContextManager[None]:
        """Inside it, the model is that of a kept version."""
        return self._adapter(version_name(key), is_frozen=True)

    def forget_version(self, key: int) -> None:
        """Frees a kept version."""
        self.model.delete_adapter(version_name(key))
        self.model.base_model.set_adapter(POLICY)

    def adapter_problem(self, adapter: Adapter, *, is_copy: bool, key: int | None) -> str | None:
        """What of the LoRA, or of the version that is kept under `key`, differs from `adapter`
        first, or where another one than the policy's is active; None where nothing is wrong.

        A copy was made from what was published, and equals it cast to its own dtype. What is
        trained was published from here: cast as it was published, it equals that.
        """
        name, published = POLICY if key is None else version_name(key), Published(adapter)
        tensors, scaling = dict(published.tensors), published.scaling
        for path, layer in self.model.named_modules():
            if not isinstance(layer, LoraLayer):
                continue
            if name not in layer.lora_A:
                return f"{path} has no LoRA {name}"
            if not math.isclose(own := layer.scaling[name], scaling, rel_tol=1e-9):
                return f"{path} is scaled by {own:g}, published with alpha / r {scaling:g}"
            if layer.merged:
                return f"{path} is merged into the base"
            if layer.disable_adapters:
                return f"{path} has its LoRA switched off"
            if list(layer.active_adapters) != [POLICY]:
                active = ", ".join(layer.active_adapters) or "of none"
                return f"{path} computes with the LoRA {active}"
            for kind in ("lora_A", "lora_B"):
                expected = tensors.pop(f"{path}.{kind}.weight", None)
                if expected is None:
                    return f"{path}.{kind} was not published"
                held = getattr(layer, kind)[name].weight.detach()
                if is_copy:
                    expected = expected.to(held.dtype)
                else:
                    held = held.to(expected.dtype)
                if problem := difference(f"{path}.{kind}", held, expected):
                    return problem
        if tensors:
            return f"the model has no LoRA for {min(tensors)} and {len(tensors) - 1} others"
        return None

    def fingerprint(self) -> str:
        """A hash of the packed 4-bit weights of the base, comparable with the engines'."""
        return self.split.fingerprint or fingerprint_of(self.model)

    def to_host(self) -> None:
        """Between updates: frees what the card need not hold until `to_device`."""
        if self.offload == "model" and self.split.shards is not None:
            self.split.shards.to_host()
        elif self.offload == "model":
            self.model.to("cpu")
        self.free_cache()

    def to_device(self) -> None:
        """Before anything is computed."""
        if self.offload == "model" and self.split.shards is not None:
            self.split.shards.to_device()
        elif self.offload == "model":
            self.model.to(self.device)

    def free_cache(self) -> None:
        """Gives back to the card what this process no longer uses, for others on it."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def one_longer(sample: Sample) -> Sample:
    """The sample with any token more, the only one that was sampled."""
    ids, zero = np.append(sample.completion_ids, 0), np.zeros(1, np.float32)
    sampled = np.arange(len(ids)) == len(ids) - 1
    return Sample(sample.prompt_ids, ids, zero, zero, sample.policy_version, sampled=sampled)


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


def lora_precision(device_type: str, dtype: torch.dtype) -> contextlib.AbstractContextManager[Any]:
    """Where the LoRA's float32 weights are computed with in bfloat16, on a card.

    PEFT casts the input of every LoRA layer to float32 unless autocast is on (`lora/bnb.py`), which
    takes 12 bytes for each hidden value of a token. With float16 the LoRA stays float32. No weight
    is used twice in a forward, so no cast is kept.
    """
    if device_type != "cuda" or dtype != torch.bfloat16:
        return contextlib.nullcontext()
    return torch.autocast(device_type, dtype, cache_enabled=False)


def version_name(key: int) -> str:
    """PEFT's name of a version that is kept beside the policy."""
    return f"version-{key}"


def pack_adapter(model: PeftModel, version: int, base: str) -> Adapter:
    """The policy's LoRA as an immutable version: bfloat16 safetensors and PEFT's config."""
    state = get_peft_model_state_dict(model, adapter_name=POLICY, save_embedding_layers=False)
    tensors = {
        name: state[name].detach().to("cpu", torch.bfloat16).contiguous()
        for name in sorted(state)
        if ".lora_" in name
    }
    config = model.peft_config[POLICY].to_dict()
    config["target_modules"] = sorted(config["target_modules"])
    config |= {"inference_mode": True, "modules_to_save": None, "task_type": "CAUSAL_LM"}
    config["base_model_name_or_path"] = base
    settings = json.dumps(config, indent=2, sort_keys=True, default=list)
    return Adapter.of(version, safetensors.torch.save(tensors), settings)


def fingerprint_of(model: torch.nn.Module) -> str:
    """See `base_model.fingerprint`."""
    import bitsandbytes

    packed = {
        name: module.weight
        for name, module in model.named_modules()
        if isinstance(module, bitsandbytes.nn.Linear4bit)
    }
    return base_model.fingerprint(packed, packed.__getitem__)
