"""What balancing the learners' shares saves, against dealing in turn and in one piece each.

    python bench/learners.py

Lengths with a long tail: prompts of 40 to 350 tokens, each with a difficulty of its own
(log-normal, sigma 0.6), completions around it (sigma 0.7), cut at the longest. "in turn": sorted by
length, then dealt one after the other; "in one piece": as they come, as many samples each.

Computed for 2, 4 and 8 learners, with the costs of a 7B model (`balancing.Costs`), over 20 steps of
30 x 16 samples: the largest share over an equal part of what one learner would compute in all.

Measured: updates of two learners on the embedded base in float32, each in a process that is pinned
to a core of its own, which exchange gradients over gloo; 48 x 8 samples, all deals in each round.
Seconds are those of the slower learner: of its processor, since the machine may be busy with other
things, the median round and the best; and on the clock, waiting included, the median. Writes
bench/results/learners-cpu.json.
"""

import json
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from facts import facts, result_file

from unslothrl.config.options import Config
from unslothrl.records import Batch, Sample
from unslothrl.training.batching import Costs, balanced

STEPS, ROUNDS = 20, 5
Deal = Callable[[Sequence[Sample], int, Costs], list[list[int]]]


def in_turn(samples: Sequence[Sample], learners: int, costs: Costs) -> list[list[int]]:
    order = sorted(
        range(len(samples)), key=lambda i: len(samples[i].prompt_ids) + samples[i].length
    )
    return [order[rank::learners] for rank in range(learners)]


def in_one_piece(samples: Sequence[Sample], learners: int, costs: Costs) -> list[list[int]]:
    size = -(-len(samples) // learners)
    return [list(range(len(samples)))[rank * size : (rank + 1) * size] for rank in range(learners)]


DEALS: dict[str, Deal] = {
    "balanced": balanced,
    "in turn": in_turn,
    "in one piece": in_one_piece,
}


def drawn(prompts: int, candidates: int, seed: int, middle: int, longest: int) -> list[Sample]:
    import numpy as np

    draw, samples = random.Random(seed), []
    for _ in range(prompts):
        prompt = tuple(draw.choices(range(3, 250), k=draw.randint(40, 350) * longest // 1200))
        hard = draw.lognormvariate(0, 0.6)
        for _ in range(candidates):
            length = max(8, min(longest, round(middle * hard * draw.lognormvariate(0, 0.7))))
            ids = tuple(draw.choices(range(3, 250), k=length))
            advantages = np.full(length, draw.uniform(-1, 1), np.float32)
            samples.append(Sample(prompt, ids, (-5.0,) * length, advantages, 0))
    return samples


def computed() -> dict[str, dict[str, dict[str, float]]]:
    """-> learners -> deal -> the largest share over an equal part: the mean and the worst step."""
    costs = Costs.of(Config(backend="peft"))
    steps = [drawn(30, 16, seed, middle=250, longest=1200) for seed in range(STEPS)]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for learners in (2, 4, 8):
        of_deals = found[f"{learners} learners"] = {}
        for name, deal in DEALS.items():
            ratios, started = [], time.process_time()
            for samples in steps:
                shares = deal(samples, learners, costs)
                largest = max(costs.share([samples[i] for i in share]) for share in shares)
                ratios.append(largest * learners / costs.share(samples))
            of_deals[name] = {
                "mean": round(statistics.mean(ratios), 4),
                "worst": round(max(ratios), 4),
                "ms a step": round(1000 * (time.process_time() - started) / STEPS, 1),
            }
    return found


def learner_process(rank: int, pipe, lengths: dict) -> None:
    """Answers each deal's indices by what its update took: (processor seconds, clock seconds)."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    from unslothrl.actors.actor import Actor
    from unslothrl.algorithms import objectives
    from unslothrl.backends import peft
    from unslothrl.embedded import BASE
    from unslothrl.engines.transformers import TransformersEngine
    from unslothrl.learners.learner import Hyperparameters, Learner

    torch.set_num_threads(1)
    samples = drawn(**lengths)
    backend = peft.load(BASE, dtype=torch.float32, rank=16, alpha=32, dropout=0.0, seed=0)
    engine = TransformersEngine(backend, BASE, max_num_seqs=8, has_own_base=False)
    settings = Hyperparameters(
        temperature=1.0, max_new_tokens=lengths["longest"], micro_batch=4, context=512
    )
    actor = Actor(f"learner-{rank}", engine, None)
    learner = Learner(backend, objectives.load("grpo"), actor, settings)
    if rank == 0:
        pipe.send(learner.listen("127.0.0.1"))
    learner.join(rank, 2, pipe.recv())
    whole = Batch(tuple(samples), len(samples), sum(sample.tokens for sample in samples))
    while (share := pipe.recv()) is not None:
        part = replace(whole, samples=tuple(samples[i] for i in share))
        processor, clock = time.process_time(), time.perf_counter()
        learner.update(part, {"lora": 1e-5}, True, 600.0)
        pipe.send((time.process_time() - processor, time.perf_counter() - clock))
    learner.close()


def measured() -> dict[str, object]:
    """-> deal -> the seconds of an update of two learners, the median round."""
    from unslothrl.embedded import EMBEDDED

    lengths = {"prompts": 48, "candidates": 8, "seed": 3, "middle": 80, "longest": 400}
    samples, costs = drawn(**lengths), Costs.of(Config(model=EMBEDDED, backend="peft"))
    context = multiprocessing.get_context("spawn")
    pipes = []
    for rank in range(2):
        ours, theirs = context.Pipe()
        context.Process(target=learner_process, args=(rank, theirs, lengths), daemon=True).start()
        pipes.append(ours)
    address = pipes[0].recv()
    for pipe in pipes:
        pipe.send(address)

    def update(shares: list[list[int]]) -> list[tuple[float, float]]:
        for pipe, share in zip(pipes, shares, strict=True):
            pipe.send(share)
        return [pipe.recv() for pipe in pipes]

    shares = {name: deal(samples, 2, costs) for name, deal in DEALS.items()}
    update(shares["balanced"])
    rounds: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in DEALS}
    for _ in range(ROUNDS):
        for name in DEALS:
            rounds[name].append(update(shares[name]))
    for pipe in pipes:
        pipe.send(None)
    figures: dict[str, object] = {}
    for name, taken in rounds.items():
        each = [costs.share([samples[i] for i in share]) for share in shares[name]]
        figures[name] = {
            "largest share over an equal part": round(2 * max(each) / costs.share(samples), 4),
            "processor seconds, median and best": [
                round(of(max(processor for processor, _ in both) for both in taken), 2)
                for of in (statistics.median, min)
            ],
            "clock seconds": round(
                statistics.median(max(clock for _, clock in both) for both in taken), 2
            ),
        }
    return figures


def main() -> None:
    figures: dict[str, object] = {"largest share over an equal part": computed()}
    figures["an update of two learners"] = measured()
    print(json.dumps(figures, indent=1))
    packages = ("torch", "transformers", "peft")
    result = {**facts(packages), "command": "python bench/learners.py", **figures}
    result_file("learners").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
