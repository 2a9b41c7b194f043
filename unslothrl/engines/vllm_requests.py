"""What vLLM has done for a request that it has not finished, which its interface does not say.

What is read of it: `LLMEngine.output_processor.request_states`, and `requests` of the scheduler
(v1/core/sched/scheduler.py), which is in this process (`variables.OF_VLLM`).
"""

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
