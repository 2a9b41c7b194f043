"""One backend's loss and LoRA gradients on a fixed batch, in a process of its own.

    python tests/unsloth_on_cpu.py {peft,unsloth} BASE OUT [--start ADAPTER]

Unsloth patches its process for good, so the two are never in one. Without a card, Triton's
interpreter runs Unsloth's kernels (TRITON_INTERPRET=1), and the few questions that Unsloth asks of
torch.cuda are answered here. Writes OUT.safetensors (gradients, log-probabilities), OUT.json (loss,
call counts, checks) and the LoRA as OUT/v000001.
"""

import argparse
import json
import os
import random
import sys
import types
from pathlib import Path

import numpy as np

TEMPERATURE = 1.3
LENGTHS = [(6, 10), (9, 3), (4, 7)]  # prompt, completion
FUSED = ("LoRA_QKV", "LoRA_MLP", "LoRA_W", "Fast_RMS_Layernorm", "Fast_RoPE_Embedding_QK")


def hide_the_extension_for_avx512() -> None:
    """Unsloth imports that of vLLM's CPU build, to see whether it is broken; this is any CPU."""
    import torch

    if not torch.cpu._is_avx512_bf16_supported():  # else it is what vLLM's engine runs on
        sys.modules["vllm._C"] = types.ModuleType("vllm._C")


def pretend_there_is_a_card() -> list:
    """-> [the current device]: Unsloth wants a device while loading and an index afterwards."""
    import torch
    from torch._dynamo.device_interface import CudaInterface

    card = types.SimpleNamespace(
        name="cpu",
        total_memory=24 << 30,
        major=8,
        minor=0,
        multi_processor_count=2,
        warp_size=32,
        max_threads_per_multi_processor=2048,
    )
    current = [torch.device("cpu", 0)]
    torch.cuda.get_device_properties = lambda *a, **k: card
    CudaInterface.Worker.get_device_properties = staticmethod(lambda *a: card)
    torch.cuda.device_count = lambda: 1
    torch.cuda.is_available = lambda: False  # else libraries put tensors there
    torch.cuda.is_bf16_supported = lambda *a, **k: True
    torch.cuda.max_memory_reserved = lambda *a: 0
    torch.cuda.mem_get_info = lambda *a: (20 << 30, 24 << 30)
    torch.cuda.current_device = lambda: current[0]
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *a, **k: None
    torch._C._cuda_getCurrentRawStream = lambda index: 0
    return current


def teach_the_interpreter_bfloat16() -> None:
    """Triton's interpreter (3.9) stores bfloat16 as integers and computes on those integers.

    Here its operations go through float32 and are rounded to the nearest, as on a card.
    """
    import numpy as np
    import torch
    from triton import language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    plain = {
        name: getattr(InterpreterBuilder, name)
        for name in ("cast_impl", "binary_op", "unary_op", "create_fma")
    }

    def is_bfloat16(handle) -> bool:
        return handle.dtype.scalar == tl.bfloat16

    def widen(handle):
        if not is_bfloat16(handle):
            return handle
        bits = np.asarray(handle.data, dtype=np.uint16).astype(np.uint32) << 16
        return TensorHandle(bits.view(np.float32), tl.float32)

    def narrow(handle):
        values = torch.from_numpy(np.ascontiguousarray(handle.data, dtype=np.float32))
        bits = values.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
        return TensorHandle(bits.reshape(np.shape(handle.data)), tl.bfloat16)

    def cast_impl(self, source, target):
        if is_bfloat16(source) and target.scalar != tl.bfloat16:
            return plain["cast_impl"](self, widen(source), target)
        if target.scalar == tl.bfloat16 and not is_bfloat16(source):
            return narrow(plain["cast_impl"](self, source, tl.float32))
        return plain["cast_impl"](self, source, target)

    def through_float32(name):
        def operate(self, *arguments):
            handles = [a for a in arguments if isinstance(a, TensorHandle)]
            if not any(map(is_bfloat16, handles)):
                return plain[name](self, *arguments)
            wide = [widen(a) if isinstance(a, TensorHandle) else a for a in arguments]
            result = plain[name](self, *wide)
            return result if result.data.dtype == np.bool_ else narrow(result)

        return operate

    InterpreterBuilder.cast_impl = cast_impl
    InterpreterBuilder.create_fp_to_fp = lambda self, source, target, mode: cast_impl(
        self, source, target
    )
    for name in ("binary_op", "unary_op", "create_fma"):
        setattr(InterpreterBuilder, name, through_float32(name))


def patch_what_asks_for_a_card() -> None:
    """After Unsloth is imported."""
    import torch

    import unsloth.models._utils as unsloth_utils  # isort: skip
    import unsloth.models.llama as llama  # isort: skip

    unsloth_utils.SUPPORTS_BFLOAT16 = True  # it saw no card at import
    llama.DEVICE_TYPE_TORCH = "cpu"  # where it generates

    def build_rope_cache(self, index):
        size = self.current_rope_size
        self._set_cos_sin_cache(
            seq_len=self._rope_cache_rows(),
            device=torch.device("cpu", 0),
            dtype=self._rope_cache_dtype,
        )
        self.current_rope_size = size
        self._rope_cache_versions[index] = self._rope_cache_version

    llama._PerDeviceRopeCache._build_rope_cache = build_rope_cache


def build_unsloth(base: Path, **options):
    teach_the_interpreter_bfloat16()
    current = pretend_there_is_a_card()
    from unslothrl.backends.unsloth import load  # imports Unsloth, before what it patches

    patch_what_asks_for_a_card()
    backend = load(
        base, context=64, load_in_4bit=False, device_map="cpu", fast_inference=False, **options
    )
    current[0] = 0
    return backend


def count_fused_calls() -> dict[str, int]:
    """Wraps forward and backward of Unsloth's autograd functions; -> the counts, filled later."""
    from unsloth.kernels import fast_lora, rms_layernorm, rope_embedding

    counts: dict[str, int] = {}
    for module in (fast_lora, rms_layernorm, rope_embedding):
        for name in FUSED:
            function = getattr(module, name, None)
            if function is not None and f"{name}.forward" not in counts:
                for step in ("forward", "backward"):
                    counts[f"{name}.{step}"] = 0
                    setattr(function, step, counted(counts, f"{name}.{step}", function, step))
    return counts


def counted(counts: dict[str, int], key: str, function, step: str):
    inner = getattr(function, step)

    def call(*arguments):
        counts[key] += 1
        return inner(*arguments)

    return staticmethod(call)


def batch():
    from unslothrl.records import Sample

    draw = random.Random(0)
    return [
        Sample(
            tuple(draw.choices(range(3, 250), k=prompt)),
            tuple(draw.choices(range(3, 250), k=completion)),
            (),
            np.full(completion, draw.uniform(-2, 2), np.float32),
            0,
        )
        for prompt, completion in LENGTHS
    ]


def gradients(backend):
    """-> (loss, gradient by name) over the batch in two micro-batches.

    On a first update the gradient is grpo's; with its weight outside of the ratio, as in cispo, the
    loss's value depends on the log-probabilities too.
    """
    import torch

    from unslothrl.algorithms.losses import Denominators, Tokens, policy_loss
    from unslothrl.algorithms.objective import Objective

    objective, total = Objective(clip="weight", correction="none"), 0.0
    over = Denominators(len(LENGTHS), sum(n for _, n in LENGTHS), max_new_tokens=10)
    for parameter in backend.parameters().values():
        parameter.grad = None
    for samples in (batch()[:2], batch()[2:]):
        logprobs, entropies = backend.token_logprobs(samples, TEMPERATURE)
        tokens = Tokens(
            lengths=[len(sample.completion_ids) for sample in samples],
            logprobs=logprobs,
            entropies=entropies,
            advantages=torch.from_numpy(np.concatenate([s.advantages for s in samples])),
            sampler=logprobs.detach(),
        )
        loss = policy_loss(objective, tokens, over)
        loss.value.backward()
        total += loss.value.item()
    return total, {
        name: parameter.grad.detach().float().clone()
        for name, parameter in backend.parameters().items()
    }


def logprobs_of(backend) -> dict:
    """The policy's and the reference's log-probabilities of the batch."""
    import torch

    with torch.no_grad():
        policy = backend.token_logprobs(batch(), TEMPERATURE)[0]
        with backend.reference():
            reference = backend.token_logprobs(batch(), TEMPERATURE)[0]
    return {"policy": policy, "reference": reference}


def critic_of(backend) -> dict:
    """A critic's values of the batch, and the gradients of half their squares."""
    import torch

    backend.add_critic(seed=3)
    generator = torch.Generator().manual_seed(9)
    parameters = backend.critic_parameters()
    with torch.no_grad():
        for _, parameter in sorted(parameters.items()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    with backend.critic():
        values = backend.token_values(batch())
        (values.square().sum() / 2).backward()
    grads = {name: p.grad.detach().float().clone() for name, p in parameters.items()}
    return {"values": values.detach(), **grads}


def sampler_gap(backend, base: Path) -> float:
    """Samples with the weights that train; -> the mean |sampler - learner| log-probability, which
    bfloat16 makes 0.005 here for PEFT, with single tokens at 0.02."""
    import torch

    from unslothrl.engines.base import generate
    from unslothrl.engines.transformers import TransformersEngine
    from unslothrl.records import Request, Sample, Sampling

    prompts = [sample.prompt_ids for sample in batch() for _ in range(2)]
    sampling = Sampling(temperature=TEMPERATURE, top_p=1.0, top_k=0, max_new_tokens=4)
    engine = TransformersEngine(backend, base, max_num_seqs=64, has_own_base=False)
    requests = [  # in two chunks that run beside each other
        Request(str(i), prompt, i, sampling, follows_newest=i % 4 > 1)
        for i, prompt in enumerate(prompts)
    ]
    drawn = generate(engine, requests)
    samples = [
        Sample(prompt, sampled.token_ids, sampled.logprobs, np.zeros(len(sampled.token_ids)), 0)
        for prompt, sampled in zip(prompts, drawn, strict=True)
    ]
    with torch.no_grad():
        learner = backend.token_logprobs(samples, TEMPERATURE)[0]
    sampler = torch.tensor([logprob for sampled in drawn for logprob in sampled.logprobs])
    return (learner - sampler).abs().mean().item()


def checkpointed_layers(backend) -> dict[str, int]:
    """How many decoder layers are checkpointed in a forward with gradients, and in one without."""
    import torch

    counts = []

    def checkpoint(layer, *inputs):
        counts[-1] += 1
        return layer(*inputs)

    layers = backend.model.get_base_model().model.layers
    for layer in layers:
        layer.gradient_checkpointing, layer._gradient_checkpointing_func = True, checkpoint
    for is_on in (True, False):
        counts.append(0)
        with torch.set_grad_enabled(is_on):
            backend.token_logprobs(batch(), TEMPERATURE)
    for layer in layers:
        layer.gradient_checkpointing = False
    return {"training": counts[0], "measuring": counts[1]}


def build(arguments):
    """-> (backend, calls of fused functions); the LoRA is a seeded one, not zero."""
    import torch

    options = {"dtype": torch.bfloat16, "rank": 8, "alpha": 16, "dropout": 0.0, "seed": 0}
    options["start"] = arguments.start
    counts: dict[str, int] = {}
    if arguments.kind == "unsloth":
        if arguments.attention:
            options["attn_implementation"] = arguments.attention
        backend = build_unsloth(arguments.base, **options)
        counts = count_fused_calls()
    else:
        from unslothrl.backends import peft

        backend = peft.load(arguments.base, **options)
    generator = torch.Generator().manual_seed(7 if arguments.start is None else 8)
    with torch.no_grad():
        for _, parameter in sorted(backend.parameters().items()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return backend, counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["peft", "unsloth"])
    parser.add_argument("base", type=Path)
    parser.add_argument("out")
    parser.add_argument("--start", type=Path)
    parser.add_argument("--attention", help="instead of the one that Unsloth chooses")
    arguments = parser.parse_args()
    os.environ.update(UNSLOTH_ALLOW_CPU="1", UNSLOTH_COMPILE_DISABLE="1", HF_HUB_OFFLINE="1")
    backend, counts = build(arguments)
    import safetensors.torch
    import torch

    from unslothrl.weights.adapter import write_adapter

    loss, found = gradients(backend)

    def as_before() -> bool:
        again, after = gradients(backend)
        return again == loss and all(torch.equal(found[name], after[name]) for name in found)

    facts = {"loss": loss, "counts": dict(counts)}
    tensors = {**found, **logprobs_of(backend)}
    facts["sampler_gap"] = sampler_gap(backend, arguments.base)
    facts["undisturbed"] = as_before()
    critic = critic_of(backend)
    facts["undisturbed by the critic"] = as_before()
    facts["checkpointed"] = checkpointed_layers(backend)
    parameters = backend.parameters()
    facts["dtypes"] = sorted({str(parameter.dtype) for parameter in parameters.values()})
    write_adapter(backend.publish(1), Path(arguments.out))
    safetensors.torch.save_file(tensors, f"{arguments.out}.safetensors")
    safetensors.torch.save_file(critic, f"{arguments.out}-critic.safetensors")
    Path(f"{arguments.out}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
