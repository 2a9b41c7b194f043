"""Unsloth's kernels under the same Backend: the one to train with on an NVIDIA GPU.

Has not run on a card yet. On a CPU its real code runs under Triton's interpreter, slowly, which is
how `tests/test_unsloth.py` compares it with PEFT.

What one must know of Unsloth (2026.10.7):
- it must be imported before transformers, peft and trl: it patches them for the whole process, and
  only warns when it comes late. This module is therefore imported in the learner's process alone.
- a 16-bit name makes it load another checkpoint (its dynamic 4-bit sibling): it is given the folder
  that everybody loads, and `use_exact_model_name`.
- rows beyond `max_seq_length` are cut silently: it is the run's whole context here.
- its forward returns logits, and gradients through them, when `logits_to_keep` is a number and no
  labels are passed; attention masks are ignored in training, so padding stands on the right.
- parts of it are AGPL-3.0 and LGPL-3.0: imported, never copied. Who passes on, or serves over a
  network, a program combined with it must meet those terms; `--backend peft` runs without it.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unslothrl.base_model import cache_folder

# Where it writes the code it generates; without this, into whatever folder one stands in.
os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(cache_folder().parent / "unsloth"))

import unsloth  # isort: skip  (before everything that it patches)
import safetensors.torch
import torch
from peft import PeftConfig, set_peft_model_state_dict

from unslothrl.adapter import WEIGHTS_FILE
from unslothrl.backends.peft import REFERENCE, PeftBackend
from unslothrl.types import LORA_TARGETS


class UnslothBackend(PeftBackend):
    """See `backends.base.Backend`.

    With `memory_share` Unsloth starts a vLLM that holds the base once for both, within that share
    of the card; it is then `llm`. `four_bit=False` and a `device_map` are for a 16-bit base.
    """

    def __init__(
        self,
        base: Path,
        *,
        dtype: torch.dtype,
        rank: int,
        alpha: float,
        dropout: float,
        seed: int,
        context: int,
        start: Path | None = None,
        name: str | None = None,
        memory_share: float | None = None,
        max_num_seqs: int = 256,
        four_bit: bool = True,
        **loading: Any,
    ):
        self.name = name or str(base)
        self.has_reference_adapter = start is not None
        lora = PeftConfig.from_pretrained(str(start)) if start else None
        rank, alpha = (lora.r, lora.lora_alpha) if lora else (rank, alpha)
        if memory_share is not None:
            loading |= {
                "fast_inference": True,
                "gpu_memory_utilization": memory_share,
                "max_lora_rank": rank,
                "max_num_seqs": max_num_seqs,
            }
        model, _ = unsloth.FastLanguageModel.from_pretrained(
            str(base),
            max_seq_length=context,
            dtype=dtype,
            load_in_4bit=four_bit,
            use_exact_model_name=True,
            random_state=seed,
            **loading,
        )
        self.llm = getattr(model, "vllm_engine", None)
        self.device = next(model.parameters()).device
        self.model = unsloth.FastLanguageModel.get_peft_model(
            model,
            r=rank,
            lora_alpha=alpha,
            lora_dropout=dropout,
            target_modules=list(LORA_TARGETS),
            use_gradient_checkpointing="unsloth" if self.device.type == "cuda" else False,
            random_state=seed,
        )
        if start is not None:
            weights = safetensors.torch.load_file(start / WEIGHTS_FILE)
            set_peft_model_state_dict(self.model, weights, adapter_name="default")
            self.model.load_adapter(str(start), adapter_name=REFERENCE, is_trainable=False)
        unsloth.FastLanguageModel.for_training(self.model)

    @contextlib.contextmanager
    def generating(self) -> Iterator[Any]:
        unsloth.FastLanguageModel.for_inference(self.model)
        try:
            with torch.no_grad():
                yield self.model
        finally:
            unsloth.FastLanguageModel.for_training(self.model)
