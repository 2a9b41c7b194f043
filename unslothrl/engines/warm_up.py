"""Leaves out what vLLM would compile or tune at every start and never use here."""

import sys


def hide_flashinfer() -> None:
    """Before vLLM is imported. Where nvcc is, vLLM takes FlashInfer for usable, and on Hopper and
    later tunes it when it starts (model_executor/warmup/kernel_warmup.py:120)."""
    sys.modules.setdefault("flashinfer", None)  # type: ignore[arg-type]


def leave_out_router_kernels() -> None:
    """Before vLLM starts. On Hopper and later it compiles 17 kernels for routers of DeepSeek and
    Inkling, whatever the model, where it finds CuTe (kernel_warmup.py:123): 10 s, kept nowhere."""
    from vllm.model_executor.kernels.linear.cute_dsl import ll_bf16

    ll_bf16._cutedsl_available = False
