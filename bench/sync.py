"""What a new version costs between the learner and the engines, at the size of a 7B base.

    python bench/sync.py [--actors 4] [--versions 5] [--model FOLDER]

An adapter of rank 32 at Qwen2.5-7B's shapes (28 layers, all seven projections, 161 MB in bfloat16,
alpha 64, random tensors) goes from a process that publishes it to 1 and to all actors at once:
Ray's object store, the real handles, actors, `VllmEngine` and vLLM, each actor in a process of its
own. What is not real is the base: its layers have the shapes of the 7B model, 28 of them, and share
one zero for a weight, since four 7B bases do not fit here; its vocabulary has 512 tokens. Nothing
is drawn. vLLM's LoRA slots, two of rank 32, are whole. On a GPU `--model` is a
real 7B base in 4 bit, for vLLM's CUDA build cannot run the one of zeros.

Seconds, the median of versions and in brackets the slowest; of several actors the slowest one:

pack      the tensors into safetensors (what the learner does), and the checksum
put       into Ray's object store: the wall time of publishing without `pack`
fetch     until the actor's process can read it
verify    the checksum again
files     until the version's files are there: one process writes, the others wait
read      vLLM's reading of the files
scale     vLLM's packing of q, k, v and gate, up; multiplying B by alpha / r
activate  vLLM's copy into its slot
proof     reading the slot back and comparing it
load      all of these, as `sync/load_s` says
wall      from asking the learner to the last actor's answer, as `timing/sync_s` says

Writes bench/results/sync-cpu.json, or -gpu where there is a GPU.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from facts import facts, result_file

from unslothrl import cluster
from unslothrl.actors.actor import Actor, ProgressMeter
from unslothrl.cluster.handles import Cluster
from unslothrl.planning.footprint import CHECK_ONLY, EngineMemory
from unslothrl.planning.placement import ACTOR, LEARNER
from unslothrl.runs.resolve import resolve
from unslothrl.system import variables
from unslothrl.system.machine import Machine
from unslothrl.text import counted
from unslothrl.weights.adapter import Adapter

RANK, ALPHA, LAYERS, HIDDEN, INNER, KEYS, HEADS = 32, 64, 28, 3584, 18_944, 512, 28
SHAPES = {  # target -> (in, out)
    "q_proj": (HIDDEN, HIDDEN),
    "k_proj": (HIDDEN, KEYS),
    "v_proj": (HIDDEN, KEYS),
    "o_proj": (HIDDEN, HIDDEN),
    "gate_proj": (HIDDEN, INNER),
    "up_proj": (HIDDEN, INNER),
    "down_proj": (INNER, HIDDEN),
}
SMALL = 1 << 22  # elements; a larger weight is one zero
STAGES = ("fetch", "verify", "files", "read", "scale", "activate", "proof", "load")


def write_base(folder: Path) -> None:
    """The settings of the base; it has no weights."""
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "torch_dtype": "bfloat16",
        "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KEYS * HEADS // HIDDEN,
        "vocab_size": 512, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
        "hidden_act": "silu", "tie_word_embeddings": False, "rope_theta": 1e6,
        "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def register_loader() -> str:
    """-> the name of vLLM's load format for a model whose large weights are one zero each."""
    import torch
    from torch import nn
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    def zeros(like: torch.Tensor) -> torch.Tensor:
        small = like.numel() <= SMALL
        return torch.zeros(like.shape if small else (), dtype=like.dtype).expand(like.shape)

    def zeros_of(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return x.new_zeros(*x.shape[:-1], len(weight))

    @register_model_loader("zeros")
    class Zeros(BaseModelLoader):
        def download_model(self, model_config):
            pass

        def load_weights(self, model, model_config):
            pass

        def load_model(self, vllm_config, model_config, prefix=""):
            with set_default_torch_dtype(model_config.dtype), torch.device("meta"):
                model = initialize_model(vllm_config, prefix=prefix)
            for module in model.modules():
                for name, parameter in module.named_parameters(recurse=False):
                    setattr(module, name, nn.Parameter(zeros(parameter), requires_grad=False))
                    if parameter.ndim == 2:
                        module.cpu_linear = zeros_of  # nothing is repacked or multiplied
                for name, buffer in module.named_buffers(recurse=False):
                    setattr(module, name, zeros(buffer))
            return model.eval()

    return "zeros"


class Stages:
    """Seconds of the calls that it wraps, by stage, since they were last taken."""

    def __init__(self):
        self.seconds: dict[str, float] = {}

    def wrap(self, stage: str, target: Any, name: str) -> None:
        call = getattr(target, name)

        def timed(*arguments: Any, **keywords: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*arguments, **keywords)
            finally:
                passed = time.perf_counter() - started
                self.seconds[stage] = self.seconds.get(stage, 0.0) + passed

        setattr(target, name, timed)

    def take(self) -> dict[str, float]:
        taken, self.seconds = self.seconds, {}
        return taken


class TimedActor(Actor):
    """The real one, whose engine's stages are timed."""

    def __init__(self, name: str, engine: Any):
        super().__init__(name, engine, SimpleNamespace(decode=str))  # which nothing is drawn for
        self.timed = Stages()
        (manager,) = engine.llm.collective_rpc(lora_manager)
        self.timed.wrap("verify", Adapter, "verify")
        self.timed.wrap("files", engine.files, "hold")
        self.timed.wrap("read", manager, "_load_adapter")
        self.timed.wrap("scale", manager._adapter_manager, "_add_adapter")
        self.timed.wrap("activate", manager._adapter_manager, "activate_adapter")
        self.timed.wrap("proof", engine.slots, "loaded")

    def stages(self) -> dict[str, float]:
        return self.timed.take()


def lora_manager(worker: Any) -> Any:
    return worker.model_runner.lora_manager


class Publisher:
    """What publishes random versions, as `backends.lora.pack_adapter` does."""

    def __init__(self):
        import torch

        draw = torch.Generator().manual_seed(0)
        self.tensors = {
            f"base_model.model.model.layers.{layer}."
            f"{'self_attn' if target[0] in 'qkvo' else 'mlp'}.{target}.lora_{half}.weight": (
                torch.randn(shape, generator=draw) / 64
            )
            for layer in range(LAYERS)
            for target, (inner, outer) in SHAPES.items()
            for half, shape in (("A", (RANK, inner)), ("B", (outer, RANK)))
        }
        self.packed_s = 0.0
        self.progress = ProgressMeter()  # that the cluster asks for

    def publish(self, version: int) -> Adapter:
        import safetensors.torch
        import torch

        for tensor in self.tensors.values():
            tensor.view(-1)[version] += 1.0
        started = time.perf_counter()
        weights = safetensors.torch.save(
            {name: tensor.to(torch.bfloat16) for name, tensor in self.tensors.items()}
        )
        settings = {"r": RANK, "lora_alpha": ALPHA, "target_modules": sorted(SHAPES)}
        adapter = Adapter.of(version, weights, json.dumps({"peft_type": "LORA", **settings}))
        self.packed_s = time.perf_counter() - started
        return adapter

    def stages(self) -> dict[str, float]:
        return {"pack": self.packed_s}

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Workers:
    """What builds the processes; `base` is the folder of the 7B model's settings, or the model."""

    base: Path
    is_real: bool = False

    def build_actor(self, config, base, plan) -> TimedActor:
        if self.is_real:
            return self.build_on_gpu(plan.name)
        for name, value in variables.OF_VLLM.items():
            os.environ.setdefault(name, value)
        from vllm import LLM

        from unslothrl.engines import vllm

        keywords = vllm.options(
            self.base, dtype="bfloat16", context=64, rank=RANK, max_num_seqs=1, max_loras=2, seed=0,
            memory=EngineMemory(64, prefill_tokens=64), takes_turns=False, on_gpu=False,
        )  # fmt: skip
        keywords["load_format"] = register_loader()
        return TimedActor(plan.name, vllm.VllmEngine(LLM(**keywords), self.base))

    def build_on_gpu(self, name: str) -> TimedActor:
        from unslothrl.engines import vllm

        engine = vllm.start(
            self.base, dtype="bfloat16", context=64, rank=RANK, max_num_seqs=1, max_loras=2, seed=0,
            memory=EngineMemory(64, CHECK_ONLY),
        )  # fmt: skip
        return TimedActor(name, engine)

    def build_learner(self, config, base, plan) -> Publisher:
        return Publisher()


def sync(processes: Cluster, version: int, actors: int) -> dict[str, float]:
    """-> seconds of each stage, those of the slowest of so many actors."""
    (learner,), chosen = processes.learners, processes.actors[:actors]
    started = time.perf_counter()
    published = learner.publish(version)
    processes.wait([published])
    put = time.perf_counter()
    loaded = processes.gather([actor.load(published) for actor in chosen])
    wall = time.perf_counter()
    parts: list[dict[str, Any]] = processes.gather(
        [handle.transport.call("stages") for handle in (learner, *chosen)]
    )
    found = {"pack": parts[0]["pack"], "put": put - started - parts[0]["pack"]}
    for each, done in zip(parts[1:], loaded, strict=True):
        each |= {"fetch": done["fetch_s"], "load": done["load_s"]}
    found |= {stage: max(each.get(stage, 0.0) for each in parts[1:]) for stage in STAGES}
    return {**found, "wall": wall - started, "put, fetch and load": wall - started - found["pack"]}


def summary(rows: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """stage -> [median, slowest]."""

    def of(stage: str, choose: Callable[[list[float]], float]) -> float:
        return round(choose([row[stage] for row in rows]), 4)

    return {stage: [of(stage, statistics.median), of(stage, max)] for stage in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--actors", type=int, default=4)
    parser.add_argument("--versions", type=int, default=5)
    parser.add_argument("--model", type=Path, help="a 7B base in 4 bit")
    options = parser.parse_args()
    machine = Machine.detect()
    variables.apply(machine.cpus, bool(machine.gpus))
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # as ours: 15 lower
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # Ray's processes import this
    flags = {
        "model": "embedded", "dataset": "embedded", "learner": "grpo", "cluster": "ray",
        "number_of_actors": options.actors, "number_of_learners": 1,
    }  # fmt: skip
    from unslothrl import embedded

    with tempfile.TemporaryDirectory() as folder:
        write_base(Path(folder))
        workers = Workers(options.model or Path(folder), options.model is not None)
        processes = cluster.start(
            resolve(flags).config, embedded.BASE, machine, lambda stage: print(stage, flush=True),
            builders={ACTOR: workers.build_actor, LEARNER: workers.build_learner},
        )  # fmt: skip
        try:
            sync(processes, 0, options.actors)  # the object store's and the slots' first pages
            taken, version = {}, 0
            for actors in sorted({1, options.actors}):
                rows = []
                for _ in range(options.versions):
                    version += 1
                    rows.append(sync(processes, version, actors))
                taken[counted(actors, "actor")] = summary(rows)
        finally:
            processes.close()
    size = sum(2 * RANK * (a + b) for a, b in SHAPES.values()) * LAYERS
    result = {**facts(), "load average": round(os.getloadavg()[0], 1), "bytes": size, **taken}
    result_file("sync").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
