"""The learner's own engine as one GPU has it: Unsloth's vLLM and the model trained on its weights.

    python tests/unsloth_engine_on_cpu.py BASE OUT.json [ATTENTION]

Unsloth's load_vllm starts the CPU build of the GPU set's vLLM (.venv-gpu-set/cpu-vllm) over the
4-bit BASE with its own LoRA manager, and makes of its tensors the model that is trained. What needs
a GPU is replaced: Triton's interpreter runs the kernels, and bitsandbytes' CPU code dequantises in
place of its CUDA kernel. Sleeping, CUDA graphs and the share of memory are not reached.
"""

import json
import sys
from pathlib import Path

import numpy as np
import unsloth_on_cpu
from engine_contract import requests


def load_shared(base: Path, attention: str | None):
    """-> Unsloth's backend with its `llm`."""
    unsloth_on_cpu.teach_the_interpreter_bfloat16()
    current = unsloth_on_cpu.pretend_there_is_a_card()
    import torch

    torch.cuda.is_available = lambda: True  # else it has no vLLM
    torch.cuda.mem_get_info = lambda *device: (3 << 30, 4 << 30)  # its KV cache takes a share
    unsloth_on_cpu.hide_the_extension_for_avx512()
    from unslothrl.backends.unsloth import load

    import unsloth.kernels.fast_lora as fast_lora  # isort: skip
    import unsloth.kernels.utils as kernels  # isort: skip
    from unsloth_zoo import vllm_utils

    unsloth_on_cpu.patch_what_asks_for_a_card()
    vllm_utils.get_target_device = lambda index=0: torch.device("cpu")
    kernels.fast_dequantize = fast_lora.fast_dequantize = dequantize
    chosen = {"attn_implementation": attention} if attention else {}
    backend = load(
        base, dtype=torch.bfloat16, rank=8, alpha=8, dropout=0.0, seed=0, context=64,
        memory_share=0.5, max_num_seqs=8, device_map="cpu", **chosen,
    )  # fmt: skip
    current[0] = 0
    return backend


def dequantize(weight, state=None, out=None, use_global_buffer=False):
    """`weight`: [packed bytes, 1], or transposed, as Unsloth's; -> [out, in], or transposed."""
    import bitsandbytes.functional as bnb

    if state is None:
        return weight
    is_transposed = weight.shape[0] == 1
    found = bnb.dequantize_4bit(weight.reshape(-1, 1), state)
    return found.t() if is_transposed else found


def packed_in(model) -> set[int]:
    return {p.data_ptr() for p in model.parameters() if hasattr(p, "bnb_quant_state")}


def main(base: Path, out: Path, attention: str | None = None) -> None:
    backend = load_shared(base, attention)
    import torch
    from bitsandbytes.nn import Linear4bit

    from unslothrl.engines.base import generate
    from unslothrl.engines.vllm import VllmEngine
    from unslothrl.records import Sample
    from unslothrl.weights.published import Published

    engine = VllmEngine(backend.llm, base)
    found: dict = {"fingerprints": [engine.fingerprint(), backend.fingerprint()]}
    shared = engine.llm.apply_model(packed_in)[0]
    trained = [m.weight for m in backend.model.modules() if isinstance(m, Linear4bit)]
    found["4-bit layers"] = len(trained)
    found["on vLLM's bytes"] = sum(w.untyped_storage().data_ptr() in shared for w in trained)
    engine.canary(Published(backend.publish(0)).shape())
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in backend.parameters().values():
            parameter += 0.05 * torch.randn_like(parameter)
    asked = requests(8)
    drawn = {}
    for version in (1, 2):
        engine.load(backend.publish(version))  # reads it back
        drawn[version] = generate(engine, asked)
    found["as before"] = [tuple(one.token_ids) for one in drawn[1]] == [
        tuple(one.token_ids) for one in drawn[2]
    ]
    samples = [
        Sample(r.prompt_ids, c.token_ids, (), np.zeros(len(c.token_ids), np.float32), 0)
        for r, c in zip(asked, drawn[1], strict=True)
    ]
    logprobs, _ = backend.token_logprobs(samples, 1.0)
    sampled = torch.tensor([value for one in drawn[1] for value in one.logprobs])
    found["gap"] = (sampled - logprobs.detach()).abs().mean().item()
    logprobs.sum().backward()
    parameters = backend.parameters().values()
    found["with a gradient"] = [sum(bool(p.grad.any()) for p in parameters), len(parameters)]
    engine.close()
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
