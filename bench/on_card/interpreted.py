"""A whole run with Unsloth's backend on a CPU, its kernels under Triton's interpreter.

    python bench/on_card/interpreted.py --model FOLDER --cluster local ...

Takes the flags of train_distributed.py. Unsloth's 4-bit kernels need CUDA, so the base stays in 16
bits; its vLLM is not started, the learner generates with transformers. The rest is a normal run:
the loop, Unsloth's forward and backward, optimiser, checkpoints, adapters.
Needs the GPU set (`make gpu-set`).
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
os.environ.update(
    TRITON_INTERPRET="1", UNSLOTH_ALLOW_CPU="1", UNSLOTH_COMPILE_DISABLE="1", HF_HUB_OFFLINE="1"
)
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


def main() -> None:
    import torch
    import unsloth_on_cpu

    from unslothrl.cluster import build
    from unslothrl.commands import cli
    from unslothrl.weights import base_model

    def unsloth_backend(config, base: Path):
        options = build.lora_options(config, base)
        for name in ("name", "offload"):
            options.pop(name, None)
        backend = unsloth_on_cpu.build_unsloth(base, **options)
        torch.cuda.is_current_stream_capturing = lambda: False  # AdamW asks a driver otherwise
        print(f"learner: {type(backend).__name__} under Triton's interpreter", flush=True)
        return backend

    base_model.prepare = lambda model, *_, **__: Path(model)  # type: ignore[assignment]
    build.peft_backend = unsloth_backend  # the backend of a run without a GPU
    sys.exit(cli.main())


if __name__ == "__main__":
    main()
