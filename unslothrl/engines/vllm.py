"""vLLM over the 4-bit base, in the actor's own process, with the adapters of one or more versions.

Each version is loaded under a new name and id: under an old name vLLM would go on serving cached
prefixes of the old weights.
"""

import contextlib
import os
import tempfile
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unslothrl.engines import canary, vllm_internals
from unslothrl.engines.base import NO_LOAD, NUMBERS, Engine, Finished, InFlight
from unslothrl.engines.readback import Slots
from unslothrl.engines.vllm_internals import options, sleep_lock
from unslothrl.errors import AdapterMismatch
from unslothrl.records import Request
from unslothrl.system.memory import peak_memory_mb
from unslothrl.system.variables import OF_VLLM, SCRATCH, kept
from unslothrl.weights import base_model
from unslothrl.weights.adapter import ROOM, Adapter, AdapterShape, NodeFiles, adapter_room


def start(base: Path, *, takes_turns: bool = False, **chosen: Any) -> "VllmEngine":
    """Loads `base` into a vLLM of this process; the other keywords are those of `options`.
    `takes_turns` with another process on a card."""
    set_variables()
    import torch
    from vllm import LLM

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        vllm_internals.leave_out_router_kernels()
    else:
        vllm_internals.multiply_on_cpu()
    if vllm_internals.is_hybrid(base):
        from unslothrl.engines import vllm_hybrid

        vllm_hybrid.register()
    keywords = options(base, **chosen, takes_turns=takes_turns, on_gpu=on_gpu)
    with kept("LD_PRELOAD"):  # what vLLM has its own workers load, not what we start later
        llm = LLM(**keywords)
    llm.apply_model(partial(vllm_internals.take_scales, base))
    llm.apply_model(vllm_internals.leave_others_alone)
    return VllmEngine(llm, base, takes_turns and on_gpu)


def set_variables() -> None:
    """What vLLM reads when it is imported. PYTORCH_ALLOC_CONF is repeated under its old name, by
    which alone vLLM 0.26 knows it and turns expandable segments off for what sleeps
    (device_allocator/cumem.py:330), which PyTorch refuses in them."""
    for name, value in OF_VLLM.items():
        os.environ.setdefault(name, value)
    if settings := os.environ.get("PYTORCH_ALLOC_CONF"):
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", settings)
    vllm_internals.hide_flashinfer()


class VllmEngine(Engine):
    """Over a vLLM of its own (`start`), or over the one that Unsloth lets the learner's weights
    share: `llm` must report processed log-probabilities.

    One that takes turns sleeps from its start until something is added: its KV cache is freed, and
    what weights are its own lie in host memory, so that the next process on the card finds room
    when it starts. A version that comes meanwhile is loaded when it wakes. Engines of one card
    sleep and wake one at a time.

    With `max_loras` versions on the card, requests of further versions wait until one of those has
    no running request: with 1 all that an older version has begun ends before the newer one's
    requests start (vLLM's v1/core/sched/scheduler.py). A request that follows the newest version,
    or that vLLM has not begun, is ended there and added again (`InFlight`), in the order in which
    all were added.

    What vLLM holds in its slots is read back and compared with what was published: see `readback`.
    """

    slots_of: type[Slots] = Slots

    def __init__(self, llm: Any, base: Path, takes_turns: bool = False):
        self.llm, self.takes_turns = llm, takes_turns
        self.slots = self.slots_of(llm)
        self.is_asleep = False
        self.coming: Adapter | None = None  # what to load on waking
        self.stop = base_model.stop_token_ids(base)
        room = adapter_room()  # that all processes of a run on this node share, or a new one
        shared = os.environ.get(SCRATCH) and room
        self.files = NodeFiles(Path(shared or tempfile.mkdtemp(prefix=ROOM, dir=room)))
        self.loaded: dict[int, Any] = {}  # LoRARequests, by the number of the load
        self.newest = NO_LOAD
        self.version = -1  # the newest load's
        self.versions_loaded = self.versions_unloaded = 0
        self.in_flight: dict[str, InFlight] = {}
        self.internal_ids: dict[str, str] = {}  # vLLM's, of what is in flight
        self.sampled_tokens = 0  # of what vLLM has finished
        self.sleep()

    def load(self, adapter: Adapter) -> None:
        adapter.verify()
        if self.is_asleep:
            self.coming = adapter
        else:
            self._load(adapter)

    def _load(self, adapter: Adapter) -> None:
        try:
            request = self._add_files(adapter)
        except Exception:  # from new files: the first may be damaged
            request = self._add_files(adapter)
        number = request.lora_int_id
        self.loaded[number] = request
        self.versions_loaded += 1
        self.newest, self.version = number, adapter.version
        following = [
            id
            for id, flight in self.in_flight.items()
            if flight.request.follows_newest
            or not vllm_internals.has_begun(self.llm.llm_engine, self.internal_ids[id])
        ]
        self._take_back(following)
        for id in following:
            self.in_flight[id].go_on(number, adapter.version)
            self._submit(self.in_flight[id])
        self._unload_unused()

    def _add_files(self, adapter: Adapter) -> Any:
        """-> its LoRARequest, under a name and an id that no other load has."""
        from vllm.lora.request import LoRARequest

        number, files = next(NUMBERS), self.files.hold(adapter)
        request = LoRARequest(f"v{adapter.version:06d}-{number}", number, str(files))
        with contextlib.ExitStack() as on_error:
            on_error.callback(self.files.release, files)
            on_error.callback(self.llm.llm_engine.remove_lora, number)
            if not self.llm.llm_engine.add_lora(request):
                raise RuntimeError(f"vLLM did not load adapter v{adapter.version}")
            self.slots.loaded(number, adapter, files)
            on_error.pop_all()
        return request

    def canary(self, shape: AdapterShape) -> int:
        assert not self.loaded, "an engine that has a version would have to load it again"
        counts = self.sampled_tokens, self.versions_loaded, self.versions_unloaded
        try:
            return canary.check(self, shape)
        finally:
            self.abort(list(self.in_flight))
            for number in list(self.loaded):
                self._remove_lora(self.loaded.pop(number))
            self.newest, self.version, self.coming = NO_LOAD, -1, None
            self.sampled_tokens, self.versions_loaded, self.versions_unloaded = counts

    def _unload_unused(self) -> None:
        """The older versions that no request in flight is drawn under."""
        if self.loaded.keys() == {self.newest}:
            return
        used = {flight.load for flight in self.in_flight.values()} | {self.newest}
        for number in self.loaded.keys() - used:
            self._remove_lora(self.loaded.pop(number))
            self.versions_unloaded += 1

    def _remove_lora(self, request: Any) -> None:
        self.llm.llm_engine.remove_lora(request.lora_int_id)
        self.slots.unloaded(request.lora_int_id)
        self.files.release(Path(request.lora_path))

    def add(self, request: Request) -> None:
        if request.id in self.in_flight:
            raise ValueError(f"request {request.id!r} is in flight already: give each its own id")
        self.wake()
        flight = InFlight(request, self.newest, self.version)
        self._submit(flight)
        self.in_flight[request.id] = flight

    def _submit(self, flight: InFlight) -> None:
        left, loaded = flight.left(), self.loaded.get(flight.load)
        if loaded is None and flight.load != NO_LOAD:
            raise AdapterMismatch.of(flight.version, "it is unloaded already")
        self.internal_ids[flight.request.id] = self.llm.llm_engine.add_request(
            left.id,
            {"prompt_token_ids": list(left.prompt_ids)},
            self.sampling_params(left),
            lora_request=loaded,
        )

    def step(self) -> list[Finished]:
        finished = []
        outputs = self.llm.llm_engine.step()
        if self.loaded:
            self.slots.check_step()
        for output in outputs:
            if output.finished:
                flight = self._pop(output.request_id)
                self._extend(flight, output.outputs[0])
                completion = flight.completion(output.outputs[0].finish_reason)
                finished.append(Finished(flight.request.id, completion))
        self._unload_unused()
        return finished

    def _extend(self, flight: InFlight, output: Any) -> None:
        """By what a request to vLLM has drawn, its `CompletionOutput`."""
        ids = tuple(output.token_ids)
        steps = zip(output.logprobs, ids, strict=True)
        flight.extend(ids, tuple(step[token].logprob for step, token in steps))
        self.sampled_tokens += len(ids)

    def _pop(self, id: str) -> InFlight:
        del self.internal_ids[id]
        return self.in_flight.pop(id)

    def abort(self, ids: Collection[str]) -> list[Finished]:
        known = [id for id in ids if id in self.in_flight]
        self._take_back(known)
        finished = [Finished(id, self._pop(id).completion("abort")) for id in known]
        self._unload_unused()
        return finished

    def _take_back(self, ids: Sequence[str]) -> None:
        """Ends these requests in vLLM and keeps what they have drawn."""
        for id in ids:
            output = vllm_internals.taken_back(self.llm.llm_engine, self.internal_ids[id])
            if output is not None:
                self._extend(self.in_flight[id], output)

    def sleep(self) -> None:
        """Stays awake while requests are in flight, whose keys and values would be lost."""
        if self.takes_turns and not self.is_asleep and not self.in_flight:
            peak_memory_mb()  # what it has awake
            with sleep_lock(adapter_room()):
                self.llm.sleep(level=1)
            self.is_asleep = True

    def wake(self) -> None:
        if self.is_asleep:
            with sleep_lock(adapter_room()):
                self.llm.wake_up()
            self.is_asleep = False
            if self.loaded:
                self.slots.compare_all()
        if self.coming is not None:
            self._load(self.coming)
            self.coming = None

    def sampling_params(self, request: Request) -> Any:
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

    def fingerprint(self) -> str:
        self.wake()
        fingerprint = self.llm.apply_model(fingerprint_of)[0]
        self.sleep()
        return fingerprint

    def close(self) -> None:
        try:
            self.abort(list(self.in_flight))
        finally:
            self.files.close()


def fingerprint_of(model: Any) -> str:
    packed = {name: data for name, data, _, _ in vllm_internals.quantised_in(model)}
    return base_model.fingerprint(packed, packed.__getitem__)
