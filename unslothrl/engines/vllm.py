"""vLLM over the 4-bit base, in the actor's own process, with the adapter of the current version.

Each version is loaded under a new name, id and path: under an old name vLLM would go on serving
cached prefixes of the old weights.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unslothrl.engines.base import Finished, Progress, ignore, longest_first
from unslothrl.memory import peak_memory_mb
from unslothrl.planning.engine_memory import EngineMemory
from unslothrl.types import Adapter, Completion, Request
from unslothrl.variables import SCRATCH
from unslothrl.weights import base_model
from unslothrl.weights.adapter import write_adapter

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM takes as max_lora_rank

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the actor is the process; another one is 30 s of start
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # two engines bound to the same cores starve each other
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # compiles at run time, and has no seed per request
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def start(
    base: Path,
    *,
    dtype: Any,
    context: int,
    rank: int,
    max_num_seqs: int,
    seed: int,
    memory: EngineMemory,
    takes_turns: bool = False,
    float32_head: bool | None = None,
) -> "VllmEngine":
    """Loads `base` into a vLLM of this process. The arguments are those of `options`, but for
    `float32_head`, which is on where there is a card unless it is given.

    `takes_turns` with another process on a card: see `VllmEngine`.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    name_allocator_settings()
    import torch
    from vllm import LLM

    on_gpu = torch.cuda.is_available()
    chosen = options(
        base,
        dtype=dtype,
        context=context,
        rank=rank,
        max_num_seqs=max_num_seqs,
        seed=seed,
        memory=memory,
        takes_turns=takes_turns,
        float32_head=on_gpu if float32_head is None else float32_head,
        on_gpu=on_gpu,
    )
    return VllmEngine(LLM(**chosen), base, takes_turns and on_gpu)


def name_allocator_settings() -> None:
    """Repeats PYTORCH_ALLOC_CONF under its old name, by which alone vLLM 0.26 knows it.

    What sleeps cannot lie in expandable segments: PyTorch refuses ("MemPool doesn't currently
    support expandable_segments"). vLLM turns them off while it allocates, if it finds them under
    that name (device_allocator/cumem.py:330); from PyTorch 2.10 on users set the new one, and
    importing Unsloth moves both there.
    """
    settings = os.environ.get("PYTORCH_ALLOC_CONF")
    if settings:
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", settings)


def options(
    base: Path,
    *,
    dtype: Any,
    context: int,
    rank: int,
    max_num_seqs: int,
    seed: int,
    memory: EngineMemory,
    takes_turns: bool,
    float32_head: bool,
    on_gpu: bool,
) -> dict[str, Any]:
    """The keywords of vLLM's `LLM`.

    `float32_head`: logits in float32. vLLM 0.26 samples on a card by its new model runner, which
    divides logits by the temperature in the head's own type (v1/worker/gpu/sample/sampler.py:162):
    in bfloat16 the reported log-probabilities would be off by 0.01 a token. Honoured with LoRA too
    (lora/layers/logits_processor.py:156).
    """
    return {
        "model": str(base),
        "dtype": dtype,
        "max_model_len": context,
        "max_num_seqs": max_num_seqs,
        "enforce_eager": not on_gpu,
        "enable_lora": True,
        "max_lora_rank": next(allowed for allowed in RANKS if allowed >= rank),
        "max_loras": 1,
        "logprobs_mode": "processed_logprobs",
        "skip_tokenizer_init": True,  # token ids in, token ids out
        "generation_config": "vllm",  # the model's own top-k or penalties would bias the ratio
        "seed": seed % 2**31,
        "kv_cache_memory_bytes": memory.kv_cache_mb * 2**20 if memory.kv_cache_mb else None,
        "enable_sleep_mode": takes_turns and on_gpu,
        **({"hf_overrides": {"head_dtype": "float32"}} if float32_head else {}),
        **(on_card(memory) if on_gpu else on_cpu(memory, context)),
    }


class VllmEngine:
    """See `engines.base.Engine`. Over a vLLM of its own (`start`), or over the one that Unsloth
    lets the learner's weights share: `llm` must report processed log-probabilities.

    One that takes turns sleeps except while it generates, from its start on: its KV cache is freed,
    and what weights are its own lie in host memory, so that the next process on the card finds room
    when it starts. A version that comes meanwhile is loaded when it wakes.
    """

    def __init__(self, llm: Any, base: Path, takes_turns: bool = False):
        self.llm, self.takes_turns = llm, takes_turns
        self.is_asleep = False
        self.coming: Adapter | None = None  # what to load on waking
        self.stop = base_model.stop_token_ids(base)
        self.adapters = Path(tempfile.mkdtemp(prefix="unslothrl-", dir=adapter_room()))
        self.current: Any = None  # the LoRARequest of the version in use
        self.version = -1
        self.sleep()

    def load(self, adapter: Adapter) -> None:
        adapter.verify()
        if self.is_asleep:
            self.coming = adapter
        else:
            self._load(adapter)

    def _load(self, adapter: Adapter) -> None:
        from vllm.lora.request import LoRARequest

        folder = write_adapter(adapter, self.adapters)
        request = LoRARequest(folder.name, adapter.version + 1, str(folder))
        old = self.current
        if old is not None:
            self.llm.llm_engine.remove_lora(old.lora_int_id)
        if not self.llm.llm_engine.add_lora(request):
            raise RuntimeError(f"vLLM did not load adapter v{adapter.version} from {folder}")
        self.current, self.version = request, adapter.version
        if old is not None:
            shutil.rmtree(old.lora_path, ignore_errors=True)

    def generate(
        self,
        requests: Sequence[Request],
        progress: Progress,
        finished: Finished = ignore,
    ) -> list[Completion]:
        self.wake()
        engine = self.llm.llm_engine
        for index in longest_first(requests):
            engine.add_request(
                str(index),
                {"prompt_token_ids": list(requests[index].prompt_ids)},
                self._params(requests[index]),
                lora_request=self.current,
            )
        results: dict[int, Completion] = {}
        tokens = 0
        while engine.has_unfinished_requests():
            for output in engine.step():
                tokens += 0 if not output.finished else len(output.outputs[0].token_ids)
                if output.finished:
                    index = int(output.request_id.split("-")[0])
                    results[index] = self._sampled(output.outputs[0])
                    finished(index, results[index])
            progress(len(results), tokens)
        self.sleep()
        return [results[index] for index in range(len(requests))]

    def sleep(self) -> None:
        if self.takes_turns and not self.is_asleep:
            self.llm.sleep(level=1)
            self.is_asleep = True

    def wake(self) -> None:
        if self.is_asleep:
            self.llm.wake_up()
            self.is_asleep = False
        if self.coming is not None:
            self._load(self.coming)
            self.coming = None

    def _params(self, request: Request):
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=request.sampling.temperature,
            top_p=request.sampling.top_p,
            top_k=request.sampling.top_k or -1,
            max_tokens=request.sampling.max_new_tokens,
            seed=request.seed,
            logprobs=0,
            stop_token_ids=self.stop,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _sampled(self, output) -> Completion:
        ids = tuple(output.token_ids)
        logprobs = tuple(
            step[token].logprob for step, token in zip(output.logprobs, ids, strict=True)
        )
        return Completion.drawn(ids, logprobs, output.finish_reason, self.version)

    def fingerprint(self) -> str:
        self.wake()
        found = base_model.fingerprint(self.llm.apply_model(packed_weights)[0])
        self.sleep()
        return found

    def memory_mb(self) -> float:
        return peak_memory_mb()

    def close(self) -> None:
        shutil.rmtree(self.adapters, ignore_errors=True)


def on_card(memory: EngineMemory) -> dict[str, Any]:
    return {
        "gpu_memory_utilization": memory.utilisation,
        "max_num_batched_tokens": memory.prefill_tokens,
    }


def on_cpu(memory: EngineMemory, context: int) -> dict[str, Any]:
    """vLLM takes a request's random numbers back after a partial prefill, which a CPU's generator
    cannot do ("CPU Generator does not use offset"): prompts are prefilled whole there."""
    return {
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(memory.prefill_tokens, context),
    }


def packed_weights(model) -> list[bytes]:
    """The packed bytes of vLLM's 4-bit layers, in the order of `base_model.fingerprint`."""
    fused = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
    found = {}
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "bnb_quant_state"):
            parts = name.removesuffix(".weight").removesuffix(".base_layer").split(".")
            layer = next(int(part) for part in parts if part.isdigit())
            found[layer, fused.index(parts[-1])] = parameter
    return [found[key].detach().cpu().contiguous().numpy().tobytes() for key in sorted(found)]


def adapter_room() -> str | None:
    """Where versions are written for vLLM to read: memory if it has room, else the disk.

    A driver that may have to kill this process names a folder in SCRATCH and removes it itself.
    """
    scratch = os.environ.get(SCRATCH)
    if scratch:
        Path(scratch).mkdir(parents=True, exist_ok=True)
        return scratch
    shm = Path("/dev/shm")
    if shm.is_dir() and shutil.disk_usage(shm).free > 2**30:
        return str(shm)
    return None
