"""What vLLM's interface does not offer: what it has done for a request that is not finished, one
engine at a time that sleeps or wakes on a GPU, and a start that compiles nothing in vain.

What is read of it: `LLMEngine.output_processor.request_states`, and `requests` of the scheduler
(v1/core/sched/scheduler.py), which is in this process (`variables.OF_VLLM`).
"""

import contextlib
import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def has_begun(engine: Any, internal_id: str) -> bool:
    """Whether `engine`, an LLMEngine, has computed anything for the request. One that it knows
    nothing of has begun: it is finished, or its scheduler is in another process."""
    from vllm.v1.request import RequestStatus

    core = getattr(engine.engine_core, "engine_core", None)
    request = core and core.scheduler.requests.get(internal_id)
    return request is None or request.status != RequestStatus.WAITING


def taken_back(engine: Any, internal_id: str) -> Any:
    """Ends the request in `engine`. -> its CompletionOutput so far; None where it has finished in
    a step that was interrupted before it said so."""
    from vllm.v1.engine import FinishReason

    # vLLM's abort gives no output but to a server's queue (v1/engine/output_processor.py).
    state = engine.output_processor.request_states.get(internal_id)
    if state is None:
        return None
    output = state.make_request_output(
        new_token_ids=[], pooling_output=None, finish_reason=FinishReason.ABORT, stop_reason=None
    )
    engine.abort_request([internal_id], internal=True)
    return output.outputs[0]


@contextlib.contextmanager
def sleep_lock(name: str | None, folder: str | None) -> Iterator[None]:
    """Waits until no process of this user and host holds the lock, then holds it; nothing without
    a name.

    vLLM reads the GPU's free memory before and after it goes to sleep and ends its process where
    less is free afterwards ("Memory usage increased after sleeping", v1/worker/gpu_worker.py:220).
    Another engine that wakes in between takes about as much as has been freed.
    `planning/place.py` says who needs the lock.

    A file lock: the kernel releases it when its process ends, however it ends. The folder is one
    that everybody writes to: another user's file of that name could not be opened, and what a link
    leads to is left alone.
    """
    if name is None:
        yield
        return
    path = Path(folder or tempfile.gettempdir()) / f"unslothrl-{os.getuid()}-{name}.lock"
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def hide_flashinfer() -> None:
    """Before vLLM is imported. Where nvcc is, vLLM takes FlashInfer for usable, and on Hopper and
    later tunes it when it starts (model_executor/warmup/kernel_warmup.py:120)."""
    sys.modules.setdefault("flashinfer", None)  # type: ignore[arg-type]


def leave_out_router_kernels() -> None:
    """Before vLLM starts. On Hopper and later it compiles 17 kernels for routers of DeepSeek and
    Inkling, whatever the model, where it finds CuTe (kernel_warmup.py:123): 10 s, kept nowhere."""
    from vllm.model_executor.kernels.linear.cute_dsl import ll_bf16

    ll_bf16._cutedsl_available = False
