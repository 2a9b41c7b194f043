"""From a base without the form to an exported policy: does every stage of the chain learn?

    python bench/chain.py [--seeds 0 1 2]        # resumable: what is finished is not repeated

The commands as a user types them, over a base that `make_base --plain` makes, which solves its
problems but does not answer in the form that the rewards ask for:

    sft   500 examples in the form                        -> share of answers in it
    dpo   from sft's adapter, 400 pairs                   -> held-out pairs, chosen over rejected
                                                             (0.5 before: all are ties)
    rm    the same pairs                                  -> the same
    RL    from dpo's adapter, accuracy and 0.5 of rm      -> pass@1 on held-out problems
    export

Beside each runs its control, whose labels are shuffled: sft learns the tokens of each example in
another order, dpo and rm pairs of which every second one is the wrong way round, RL rewards that
are shuffled within their group. Writes bench/results/chain-cpu.json.
"""

import argparse
import itertools
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from facts import facts, result_file

from unslothrl.embedded import task

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from make_embedded_base import MIXTURE, TAGS

ROOT = Path(__file__).parents[1]
EXAMPLES, PAIRS, PROBLEMS = 500, 400, 2000
HELD_OUT = 100  # examples, pairs and problems of the test split
TOKENS, CANDIDATES = 64, 4
SFT = "--episodes 1 --lr 2e-3 --eval_every 0"
DPO = "--max_steps 12 --lr 1e-4 --eval_every 12"
RM = "--max_steps 20 --lr 5e-4 --eval_every 20"
RL = (
    "--recipe tiny-cpu --learner grpo --max_steps 8 --eval_every 8 --max_lora_rank 32 "
    f"--eval_problems {HELD_OUT} --eval_candidates {CANDIDATES} --eval_temperature 1 --eval_top_p 1"
)
ALONE = "--cluster local --number_of_actors 0 --engine transformers"
DRAWN = f"--n {CANDIDATES} --max_new_tokens {TOKENS} --eval_temperature 1 --eval_top_p 1"
PIECES = re.compile(f"{'|'.join(TAGS)}|.", re.DOTALL)  # the tokens of an answer
Operands = tuple[int, str, int]


def operands(split: str, draw: random.Random) -> Iterator[Operands]:
    """Problems of a split, without end."""
    while True:
        found = task.draw_operands(draw)
        if task.is_held_out(*found) == (split == "test"):
            yield found


def guess(problem: Operands, draw: random.Random) -> str:
    """A careless answer that has the form."""
    while True:
        text = task.careless_answer(*problem, draw)
        if text.startswith("<think>"):
            return text


def examples(split: str, seed: int, shuffled: bool = False) -> Iterator[dict[str, str]]:
    """Answers in the form, worked or guessed as the base does. `shuffled`: their tokens are."""
    draw = random.Random(f"examples {split} {seed}")
    for problem in operands(split, draw):
        careful = draw.random() < MIXTURE[problem[1]]
        text = task.careful_answer(*problem) if careful else guess(problem, draw)
        if shuffled:
            pieces = PIECES.findall(text)
            draw.shuffle(pieces)
            text = "".join(pieces)
        yield {"prompt": task.text(*problem), "completion": text}


def pairs(split: str, seed: int, shuffled: bool = False) -> Iterator[dict[str, str]]:
    """A right, worked answer over a wrong guess. `shuffled`: every second pair is turned round."""
    draw = random.Random(f"pairs {split} {seed}")
    turned = itertools.cycle((False, shuffled))
    for problem in operands(split, draw):
        right, wrong = task.careful_answer(*problem), guess(problem, draw)
        if f"<answer>{task.result(*problem)}</answer>" in wrong:
            continue
        chosen, rejected = (wrong, right) if next(turned) else (right, wrong)
        yield {"prompt": task.text(*problem), "chosen": chosen, "rejected": rejected}


def write(path: Path, rows: Iterator[dict[str, str]], count: int) -> None:
    lines = (json.dumps(row) + "\n" for row in itertools.islice(rows, count))
    path.write_text("".join(lines))


def write_data(folder: Path, seed: int) -> None:
    """The files of a seed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make, count in (("examples", examples, EXAMPLES), ("pairs", pairs, PAIRS)):
        write(folder / f"{name}.jsonl", make("train", seed), count)
        write(folder / f"{name}-shuffled.jsonl", make("train", seed, shuffled=True), count)
        write(folder / f"{name}-test.jsonl", make("test", seed), HELD_OUT)
    write(folder / "problems.jsonl", task.problems("train", seed), PROBLEMS)
    write(folder / "problems-test.jsonl", task.problems("test", seed), HELD_OUT)


class Chain:
    """The runs of a seed. Each method runs a stage and its control at once, if they have not
    finished before, and gives their figures."""

    def __init__(self, base: Path, folder: Path, seed: int) -> None:
        self.base, self.folder, self.seed = base, folder, seed
        write_data(folder, seed)

    def figures(self) -> dict[str, dict[str, Any]]:
        """Stage -> what it measures before, after, and after its control; and what was exported."""
        started = time.monotonic()
        found = {
            "sft": self.sft(),
            "dpo": self.of_pairs("dpo", f"{DPO} --adapter {self.run('sft')}"),
            "rm": self.of_pairs("rm", RM),
            "RL": self.rl(),
            "export": self.export(),
        }
        return found | {"seconds": round(time.monotonic() - started)}

    def sft(self) -> dict[str, Any]:
        self.at_once(
            [
                f"sft --run_name sft {SFT} {self.data('examples')}",
                f"sft --run_name sft-shuffled {SFT} {self.data('examples', '-shuffled')}",
            ]
        )
        names = ("sft", "sft-shuffled")
        flags = f"{DRAWN} {ALONE} --dataset {self.folder / 'problems-test.jsonl'}"
        self.at_once(
            [
                f"eval --adapter {self.run(name)} --output {self.drawn(name)} {flags}"
                + (" --no_base" if name == "sft-shuffled" else "")
                for name in names
                if not self.drawn(name).exists()
            ]
        )
        after, control = (self.in_form(self.drawn(name), "adapter") for name in names)
        before = self.in_form(self.drawn("sft"), "base")
        return {"measure": "answers in the form", **steps(before, after, control)}

    def of_pairs(self, stage: str, flags: str) -> dict[str, Any]:
        self.at_once(
            [
                f"{stage} --run_name {stage} {flags} {self.data('pairs')}",
                f"{stage} --run_name {stage}-shuffled {flags} {self.data('pairs', '-shuffled')}",
            ]
        )
        key = "eval/pairs-test/accuracy"
        before, after = self.evaluations(stage, key)
        return {
            "measure": "held-out pairs, chosen over rejected",
            **steps(before, after, self.evaluations(f"{stage}-shuffled", key)[-1]),
        }

    def rl(self) -> dict[str, Any]:
        run = (
            f"--adapter {self.run('dpo')} --reward accuracy --reward rm:{self.run('rm')}=0.5 {RL} "
            f"{ALONE} {self.data('problems')}"
        )
        self.at_once(
            [f"train --run_name rl {run}", f"train --run_name rl-shuffled {run} --shuffle_rewards"]
        )
        key = "eval/problems-test/pass@1"
        before, after = self.evaluations("rl", key)
        return {
            "measure": "pass@1",
            **steps(before, after, self.evaluations("rl-shuffled", key)[-1]),
        }

    def export(self) -> dict[str, Any]:
        out, drawn = self.folder / "exported", self.drawn("exported")
        if not out.exists():
            self.at_once([f"export --adapter {self.run('rl')} --to adapter --output {out}"])
        if not drawn.exists():
            self.at_once(
                [
                    f"eval --adapter {out} --output {drawn} --no_base {DRAWN} {ALONE} --dataset "
                    f"{self.folder / 'problems-test.jsonl'}"
                ]
            )
        rows = [json.loads(line) for line in drawn.read_text().splitlines()]
        return {
            "measure": "pass@1 of what was exported",
            "after": sum(row["score"] for row in rows) / len(rows),
            "answers in the form": self.in_form(drawn, "adapter"),
        }

    # Parts

    def run(self, name: str) -> Path:
        return self.folder / "runs" / name

    def drawn(self, name: str) -> Path:
        return self.folder / f"{name}-drawn.jsonl"

    def data(self, name: str, kind: str = "") -> str:
        files = f"--dataset {self.folder / f'{name}{kind}.jsonl'}"
        return f"{files} --eval_dataset {self.folder / f'{name}-test.jsonl'}"

    def at_once(self, commands: Sequence[str]) -> None:
        """Runs commands side by side, each on one core, but those whose run has finished."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(self.command, commands))

    def command(self, text: str) -> None:
        words = text.split()
        if "--run_name" in words:
            run = self.run(words[words.index("--run_name") + 1])
            if (run / "summary.json").exists():
                return
            subprocess.run(["rm", "-rf", str(run)], check=True)
            words += ["--model", str(self.base), "--output_dir", str(self.folder / "runs")]
            words += ["--seed", str(self.seed)]
        done = subprocess.run(
            [sys.executable, "-m", "unslothrl", *words],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"unslothrl {text}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")

    def in_form(self, drawn: Path, policy: str) -> float:
        """The share of a policy's answers that have the form."""
        rows = [json.loads(line) for line in drawn.read_text().splitlines()]
        earned = [row["rewards"]["format"] for row in rows if row["policy"] == policy]
        return sum(value > 0 for value in earned) / len(earned)

    def evaluations(self, run: str, key: str) -> list[float]:
        """Of a run: before its first step, and after its last."""
        lines = (self.run(run) / "metrics.jsonl").read_text().splitlines()
        values = [row[key] for row in map(json.loads, lines) if key in row]
        return [values[0], values[-1]]


def steps(before: float, after: float, control: float) -> dict[str, float]:
    return {"before": before, "after": after, "after its control": control}


def make_base(folder: Path) -> Path:
    """The base that lacks the form, made once."""
    if not folder.exists():
        command = [sys.executable, "tools/make_embedded_base.py", "--plain"]
        subprocess.run([*command, "--out", str(folder)], cwd=ROOT, check=True, capture_output=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "bench-chain")
    arguments = parser.parse_args()
    output = arguments.output.absolute()
    base = make_base(output / "base")
    seeds = {seed: Chain(base, output / f"seed-{seed}", seed).figures() for seed in arguments.seeds}
    result = {"command": "python bench/chain.py", **facts(("torch", "trl")), "seeds": seeds}
    result_file("chain").write_text(json.dumps(result, indent=2) + "\n")
    for seed, found in seeds.items():
        for stage, figures in found.items():
            print(seed, stage, json.dumps(figures))


if __name__ == "__main__":
    main()
