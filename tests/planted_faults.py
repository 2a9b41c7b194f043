"""Bugs as they might get into this package or a library below it: each of them silently makes a
model be trained, sampled or exported wrongly."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import safetensors.torch
import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from peft.tuners.lora import LoraLayer
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
from transformers.models.phi3 import modeling_phi3
from transformers.models.smollm3 import modeling_smollm3

from unslothrl.algorithms import losses
from unslothrl.backends import lora, packing
from unslothrl.checkpoints import learner_state
from unslothrl.engines import transformers as engine
from unslothrl.export import merging
from unslothrl.learners.passes import Passes
from unslothrl.records import LORA_TARGETS
from unslothrl.weights import base_model, decoder, quantise
from unslothrl.weights.adapter import Adapter

CONFIG, GENERATION = "config.json", "generation_config.json"
IN_TEXT, IN_WHOLE = "model.model.layers.", "model.model.language_model.layers."
MOMENTS = ("exp_avg", "exp_avg_sq")


def quantised_here(monkeypatch, main: Callable[[str, str], None]) -> None:
    """Bases are quantised by `main`, in this process, and kept apart from those without a fault."""

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess:
        main(*command[-2:])
        return subprocess.CompletedProcess(command, 0, "", "")

    key = base_model._content_key
    here = SimpleNamespace(run=run, DEVNULL=subprocess.DEVNULL, PIPE=subprocess.PIPE)
    monkeypatch.setattr(base_model, "subprocess", here)
    monkeypatch.setattr(base_model, "_content_key", lambda source: f"{key(source)}-{main.__name__}")


def queries_scaled_by_default(monkeypatch) -> None:
    """The text model of Gemma 3 is taken out without query_pre_attn_scalar: its class's is used."""
    own = quantise.main

    def without_scalar(source: str, target: str) -> None:
        own(source, target)
        file = Path(target) / CONFIG
        settings = json.loads(file.read_text())
        del settings["query_pre_attn_scalar"]
        file.write_text(json.dumps(settings))

    quantised_here(monkeypatch, without_scalar)


def vision_part_kept(monkeypatch) -> None:
    """The checkpoint is quantised with its vision part, whose layers have the names of the text
    model's: they get a LoRA as well."""
    quantised_here(monkeypatch, quantise.whole)


def stop_token_of_the_class(monkeypatch) -> None:
    """The 4-bit copy gets a generation_config.json from the defaults of its configuration's class,
    so that the checkpoint's is not copied: what ends a completion is another token."""
    own = quantise.main

    def with_generation(source: str, target: str) -> None:
        own(source, target)
        default = Gemma4TextConfig()
        stops = {"eos_token_id": default.eos_token_id, "pad_token_id": default.pad_token_id}
        (Path(target) / GENERATION).write_text(json.dumps(stops))

    quantised_here(monkeypatch, with_generation)


def output_of_linear_attention_without_lora(monkeypatch) -> None:
    """out_proj gets no LoRA: PEFT refuses it in Mamba's models, so it is left out everywhere."""
    own = decoder.targets
    monkeypatch.setattr(
        decoder, "targets", lambda model: [name for name in own(model) if name != "out_proj"]
    )


def recurrent_layers_packed(monkeypatch) -> None:
    """Layers of recurrent states are taken for such as can be packed: states and convolutions run
    on from one sequence into the next."""
    own = packing.can_pack
    monkeypatch.setattr(
        packing,
        "can_pack",
        lambda model: model.config.model_type in decoder.STATES or own(model),
    )


def padding_on_the_left(monkeypatch) -> None:
    """The learner's rows are padded on the left, without a mask: real tokens attend to padding."""
    own = packing.padded

    def padded(samples: Any, device: torch.device) -> tuple:
        ids, places, targets = own(samples, device)
        lengths = [len(sample.prompt_ids) + sample.length for sample in samples]
        shifts = torch.tensor([ids.shape[1] - length for length in lengths], device=device)
        ids = torch.stack([row.roll(int(n)) for row, n in zip(ids, shifts, strict=True)])
        return ids, torch.stack([places[0], places[1] + shifts[places[0]]]), targets

    monkeypatch.setattr(packing, "padded", padded)


def key_gradient_averaged(monkeypatch) -> None:
    """Where SmolLM3 rotates its keys, their gradient is the mean over the heads that share one, in
    place of the sum; values are right."""
    own = modeling_smollm3.apply_rotary_pos_emb

    def rotated(q: torch.Tensor, k: torch.Tensor, *more: Any, **options: Any) -> tuple:
        q, k = own(q, k, *more, **options)
        return q, k.detach() + (k - k.detach()) * (k.shape[1] / q.shape[1])

    monkeypatch.setattr(modeling_smollm3, "apply_rotary_pos_emb", rotated)


def sampler_logprobs_without_temperature(monkeypatch) -> None:
    """The engine draws at the temperature, and reports log-probabilities at 1."""
    own = engine.draw

    def draw(logits: torch.Tensor, uniform: torch.Tensor, sampling: Any) -> tuple:
        tokens, _ = own(logits, uniform, sampling)
        logprobs = engine.keep_likely(logits.float(), sampling).log_softmax(-1)
        return tokens, logprobs.gather(-1, tokens[:, None]).squeeze(-1)

    monkeypatch.setattr(engine, "draw", draw)


def gate_and_up_swapped_in_training(monkeypatch) -> None:
    """The fused activation that Phi-4's MLP trains with takes the two halves of gate_up_proj for
    one another; in eval mode they are right."""

    def forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(hidden_states).chunk(2, dim=-1)
        if self.training:
            gate, up = up, gate
        return self.down_proj(up * self.activation_fn(gate))

    monkeypatch.setattr(modeling_phi3.Phi3MLP, "forward", forward)


def fused_layers_not_merged(monkeypatch) -> None:
    """An export merges the seven usual layers alone: Phi-4's qkv_proj and gate_up_proj stay those
    of the base."""
    own = merging.weights_of

    @torch.no_grad()
    def weights_of(model: Any, dtype: torch.dtype) -> Any:
        modules = dict(model.named_modules())
        for name, tensor in own(model, dtype):
            path = name.removesuffix(".weight")
            is_merged = isinstance(modules.get(path), LoraLayer)
            if is_merged and path.rpartition(".")[2] not in LORA_TARGETS:
                tensor = merging.dequantised(modules[path].base_layer).to(dtype).cpu()
            yield name, tensor

    monkeypatch.setattr(merging, "weights_of", weights_of)


def sampler_output_layer_in_4_bits(monkeypatch) -> None:
    """The engine quantises the output layer with the others; the learner keeps it in 16 bits."""
    own = engine.Chunk._logits

    def logits(self: Any, model: Any) -> torch.Tensor:
        head = model.get_output_embeddings().weight
        kept, head.data = head.data, dequantize_4bit(*quantize_4bit(head.data, quant_type="nf4"))
        try:
            return own(self, model)
        finally:
            head.data = kept

    monkeypatch.setattr(engine.Chunk, "_logits", logits)


def sampler_lora_without_scaling(monkeypatch) -> None:
    """The engine computes B A x, without alpha / r."""
    own = engine.Chunk._logits

    def logits(self: Any, model: Any) -> torch.Tensor:
        layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
        kept = [layer.scaling for layer in layers]
        for layer in layers:
            layer.scaling = dict.fromkeys(layer.scaling, 1.0)
        try:
            return own(self, model)
        finally:
            for layer, scaling in zip(layers, kept, strict=True):
                layer.scaling = scaling

    monkeypatch.setattr(engine.Chunk, "_logits", logits)


def adapter_names_of_the_whole_checkpoint(monkeypatch) -> None:
    """The MLP's part of an adapter is published by the names that it has in the checkpoint with
    images. The learner's read-back knows both names, a copy's is left out, and PEFT ignores what it
    does not know: who loads the adapter has the attention's part alone."""
    state_of, problem_of = lora.get_peft_model_state_dict, lora.LoraBackend.adapter_problem

    def published(*arguments: Any, **options: Any) -> dict[str, torch.Tensor]:
        state = state_of(*arguments, **options)
        return {
            name.replace(IN_TEXT, IN_WHOLE) if ".mlp." in name else name: tensor
            for name, tensor in state.items()
        }

    def adapter_problem(self: Any, adapter: Adapter, *, is_copy: bool, key: Any = None) -> Any:
        tensors = safetensors.torch.load(bytes(adapter.weights))
        plain = {name.replace(IN_WHOLE, IN_TEXT): tensor for name, tensor in tensors.items()}
        known = Adapter.of(adapter.version, safetensors.torch.save(plain), adapter.config)
        return None if is_copy else problem_of(self, known, is_copy=False, key=key)

    monkeypatch.setattr(lora, "get_peft_model_state_dict", published)
    monkeypatch.setattr(lora.LoraBackend, "adapter_problem", adapter_problem)


def mean_of_micro_batch_means(monkeypatch) -> None:
    """A micro-batch's loss is the mean over its own tokens, divided by how many micro-batches there
    are: tokens in short ones count for more."""
    own, count = Passes._micro_batches, [1]

    def micro_batches(self: Any, samples: Any) -> list[list[int]]:
        parts = own(self, samples)
        count[0] = max(1, len(parts))
        return parts

    def mean(terms: torch.Tensor, lengths: Any, over: Any) -> torch.Tensor:
        return terms.sum() / max(1, len(terms)) / count[0]

    monkeypatch.setattr(Passes, "_micro_batches", micro_batches)
    for kind in losses.AGGREGATIONS:
        monkeypatch.setitem(losses.AGGREGATIONS, kind, mean)


def last_sequence_dropped(monkeypatch) -> None:
    """Where a sequence ends is told by where the next one begins: the last one of each micro-batch
    adds nothing to the policy's loss."""
    own = Passes._policy_backward

    def policy_backward(self: Any, samples: Any, *more: Any) -> torch.Tensor:
        if len(samples) > 1:
            *others, last = samples
            samples = [*others, replace(last, advantages=np.zeros_like(last.advantages))]
        return own(self, samples, *more)

    monkeypatch.setattr(Passes, "_policy_backward", policy_backward)


def moments_lost_on_resume(monkeypatch) -> None:
    """A resumed optimiser knows how many steps it has taken, and its moments begin again at 0."""
    own = learner_state.restore

    def restore(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
        own(
            optimizer,
            {
                name: torch.zeros_like(value) if name.endswith(MOMENTS) else value
                for name, value in saved.items()
            },
        )

    monkeypatch.setattr(learner_state, "restore", restore)


FAULTS: dict[Callable, tuple[str, str]] = {
    queries_scaled_by_default: ("Gemma 3", "before"),
    vision_part_kept: ("Gemma 3", "before"),
    stop_token_of_the_class: ("Gemma 4", "before"),
    output_of_linear_attention_without_lora: ("Qwen3.5", "after"),
    recurrent_layers_packed: ("Qwen3.5", "after"),
    padding_on_the_left: ("Qwen3.5", "after"),
    key_gradient_averaged: ("SmolLM3", "after"),
    sampler_logprobs_without_temperature: ("SmolLM3", "after"),
    gate_and_up_swapped_in_training: ("Phi-4", "after"),
    fused_layers_not_merged: ("Phi-4", "after"),
    sampler_output_layer_in_4_bits: ("Ministral 3", "after"),
    sampler_lora_without_scaling: ("Llama", "after"),
    adapter_names_of_the_whole_checkpoint: ("Ministral 3", "after"),
    mean_of_micro_batch_means: ("Gemma 4", "after"),
    last_sequence_dropped: ("Llama", "after"),
    moments_lost_on_resume: ("Llama", "after"),
}
