"""A task for two hours on two cores: word problems, from an empty model to RL.

    python bench/words.py                   # resumable: what has been made is not made again

1. A Qwen2 of 2.8M parameters reads generated word problems with worked solutions, first with one
   or two happenings, at last with three; and GSM8K's training questions and answers (`--gsm8k`,
   without which it reads the generated ones alone).
2. `unslothrl sft` teaches it to answer questions of a chat, on 1,000 examples.
3. `unslothrl grpo` with three seeds, and a control with shuffled rewards, on problems of two and
   three happenings, whose answers alone it is told; as many runs at once as there are CPUs. A tenth
   of all problems, by a hash, is held out of all three parts.

Writes bench/results/words-cpu.json: pass@1 on 300 held-out problems by step.
"""

import argparse
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, NamedTuple

from facts import facts

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "bench" / "results" / "words-cpu.json"
NAMES = (
    "Mia", "Tom", "Ana", "Ben", "Lea", "Max", "Ida", "Leo", "Eva", "Sam", "Zoe", "Jan", "Amy",
    "Kai", "Nora", "Finn", "Lily", "Omar", "Ruth", "Paul",
)  # fmt: skip
ITEMS = (
    "apples", "books", "coins", "stamps", "cards", "shells", "pens", "eggs", "balls", "cakes",
)  # fmt: skip
MOST = 100  # no number is larger
EASY, READ, ASKED = (1, 2), (1, 3), (2, 3)  # happenings of a story: read first and then, RL's
EASY_SHARE = 0.82  # of the time that the base takes
GSM8K_SHARE = 0.02  # of the documents that it reads; of what it learns about a fifth
LENGTH, BATCH = 160, 64  # tokens of a packed row; rows
VOCABULARY = 1024
EXAMPLES, PROBLEMS, HELD_OUT = 1_000, 4_000, 300
RL_STEPS, EVAL_EVERY = 200, 25
ONE_PROCESS = ["--cluster", "local", "--number_of_actors", "0", "--engine", "transformers"]
RL = [
    "--learner", "grpo", *ONE_PROCESS, "--batch_size", "16", "--num_candidates", "8", "--topk", "8",
    "--temperature", "1", "--max_prompt_tokens", "200", "--max_new_tokens", "64", "--lr", "5e-4",
    "--max_lora_rank", "32", "--lora_alpha", "64", "--learner_chunk_size", "8",
    "--eval_every", str(EVAL_EVERY), "--eval_problems", str(HELD_OUT), "--eval_candidates", "1",
    "--eval_temperature", "1", "--eval_top_p", "1",
    "--save_every", str(EVAL_EVERY), "--max_steps", str(RL_STEPS),
]  # fmt: skip


REWARD_FILE = """import re


def right(completion, answer):
    found = re.findall(r"#### (\\d+)", completion)
    return float(bool(found) and found[-1] == answer)
"""


class Problem(NamedTuple):
    """A story with its worked steps and its answer."""

    text: str
    steps: str
    answer: int

    @property
    def is_held_out(self) -> bool:
        digest = hashlib.sha256(self.text.encode()).digest()
        return int.from_bytes(digest[:4], "big") < 0.1 * 2**32

    @property
    def completion(self) -> str:
        return f"{self.steps}\n#### {self.answer}"


class Story:
    """A person with some items, to whom things happen."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.who, self.other = draw.sample(NAMES, 2)
        self.items = draw.choice(ITEMS)
        self.count = draw.randint(2, 40)
        first = f"{self.who} has {self.count} {self.items}."
        self.sentences = [draw.choice((first, f"There are {self.count} {self.items} in a box."))]
        self.steps: list[str] = []

    def reckon(self, sign: str, by: int) -> None:
        after = {"+": self.count + by, "-": self.count - by, "*": self.count * by}.get(sign)
        after = self.count // by if after is None else after
        self.steps.append(f"{self.count}{sign}{by}={after}")
        self.count = after

    def more(self) -> None:
        by = self.draw.randint(2, 40)
        self.sentences.append(
            self.draw.choice(
                (
                    f"{self.who} buys {by} more.",
                    f"{self.other} brings {by} more.",
                    f"Then {self.who} finds {by} {self.items}.",
                )
            )
        )
        self.reckon("+", by)

    def bags(self) -> None:
        bags, each = self.draw.randint(2, 9), self.draw.randint(2, 9)
        pack = self.draw.choice(("bags", "boxes"))
        self.sentences.append(f"{self.who} buys {bags} {pack} with {each} {self.items} each.")
        self.steps.append(f"{bags}*{each}={bags * each}")
        self.reckon("+", bags * each)

    def fewer(self) -> None:
        if self.count < 4:
            return
        by = self.draw.randint(1, min(50, self.count - 1))
        self.sentences.append(
            self.draw.choice(
                (
                    f"{self.who} gives {by} to {self.other}.",
                    f"{self.who} loses {by} of them.",
                    f"{self.other} takes {by} {self.items} away.",
                )
            )
        )
        self.reckon("-", by)

    def half(self) -> None:
        if self.count % 2 or self.count < 4:
            return
        self.sentences.append(f"{self.who} gives half of them to {self.other}.")
        self.reckon("/", 2)

    def twice(self) -> None:
        times = self.draw.choice((2, 3))
        if self.count * times > MOST:
            return
        word = {2: "twice", 3: "three times"}[times]
        self.sentences.append(f"After a week there are {word} as many.")
        self.reckon("*", times)

    def end(self) -> str:
        friends = [n for n in range(3, 10) if self.count % n == 0 and self.count > n]
        price = self.draw.randint(2, 5)
        kind = self.draw.random()
        if friends and kind < 0.3:
            n = self.draw.choice(friends)
            self.reckon("/", n)
            return f"{n} children share them equally. How many does each get?"
        if kind < 0.45 and self.count * price <= MOST:
            self.reckon("*", price)
            return f"{self.who} sells them for ${price} each. How many dollars is that?"
        return f"How many {self.items} are there now?"


def problems(split: str, seed: str, happenings: tuple[int, int]) -> Iterator[Problem]:
    """Without end, of "train" or "test", with at least and at most so many happenings."""
    draw = random.Random(f"{split} {seed}")
    while True:
        story = Story(draw)
        happen = [story.more, story.bags, story.fewer, story.half, story.twice]
        wanted = draw.randint(*happenings)
        while len(story.sentences) < 1 + wanted:
            draw.choice(happen)()
        last = story.end()
        if story.count > MOST or not story.steps:
            continue
        text = " ".join([*story.sentences, last])
        problem = Problem(text, " ".join(story.steps), story.count)
        if problem.is_held_out == (split == "test"):
            yield problem


def documents(
    seed: object, gsm8k: Path | None, happenings: tuple[int, int]
) -> Iterator[tuple[str, str]]:
    """What the model reads first, in two parts, of which it learns the second: a story's numbers
    are drawn, so that nothing foretells them. GSM8K is learnt as a whole.
    """
    draw = random.Random(f"documents {seed}")
    some, read = problems("train", f"base {seed}", happenings), []
    if gsm8k is not None:
        for path in sorted(gsm8k.glob("*train*.jsonl")):
            read += [json.loads(line) for line in path.read_text().splitlines()]
    while True:
        if read and draw.random() < GSM8K_SHARE:
            row = draw.choice(read)
            yield "", f"{row['question']}\n{row['answer']}"
        else:
            problem = next(some)
            yield f"{problem.text}\n", problem.completion


def make_base(folder: Path, minutes: float, gsm8k: Path | None, seed: int = 0) -> Path:
    """Trains the model for so long, if its folder is not there."""
    if folder.exists():
        return folder
    import torch

    sys.path.insert(0, str(ROOT / "tools"))
    from make_embedded_base import TAGS, learnt_tokenizer, wrapped
    from tokenizers import AddedToken, pre_tokenizers
    from transformers import Qwen2Config, Qwen2ForCausalLM

    split = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    texts = documents(-1, gsm8k, EASY)
    core = learnt_tokenizer(split, VOCABULARY - 64, ["".join(next(texts)) for _ in range(8_000)])
    core.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    tokenizer = wrapped(core)
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY, hidden_size=192, intermediate_size=512, num_hidden_layers=6,
            num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=4096,
            tie_word_embeddings=False, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id, attn_implementation="eager",
        )
    )  # fmt: skip
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    kept, step, before = folder.with_suffix(".pt"), 0, 0.0
    if kept.exists():  # an earlier try was ended
        state = torch.load(kept)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, before = state["step"], state["seconds"]
    started, level, rows = time.time() - before, None, None
    while (share := (time.time() - started) / (60 * minutes)) < 1:
        if level != (level := EASY if share < EASY_SHARE else READ):
            rows = token_rows(documents(f"{seed} {step}", gsm8k, level), tokenizer)
        ids, labels = (torch.tensor(part) for part in next(rows))
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (step + 1) / 100) * (1 - 0.98 * share)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        took = time.time() - started
        if step % 50 == 0:
            rate = step * LENGTH * BATCH / took
            print(f"step {step} loss {loss.item():.3f} {took:.0f} s {rate:.0f} tok/s", flush=True)
        if step % 500 == 0:
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**parts, "step": step, "seconds": took}, kept)
            print(f"solves {solved(model, tokenizer, 100):.0%} greedily", flush=True)
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    made = {"steps": step, "tokens": step * LENGTH * BATCH, "minutes": minutes}
    made["solved greedily"] = solved(model, tokenizer, HELD_OUT)
    (folder / "MADE.json").write_text(json.dumps(made))
    return folder


def token_rows(
    texts: Iterator[tuple[str, str]], tokenizer: "PreTrainedTokenizerBase"
) -> Iterator[tuple[list[list[int]], list[list[int]]]]:
    """Batches of packed rows: ids and labels, both (BATCH, LENGTH); -100 of what is not learnt."""
    ids, labels, size = list[int](), list[int](), LENGTH * BATCH
    for parts in texts:
        told, learnt = tokenizer(list(parts), add_special_tokens=False)["input_ids"]
        learnt.append(tokenizer.eos_token_id)
        ids += told + learnt
        labels += [-100] * len(told) + learnt
        while len(ids) >= size:
            yield tuple(
                [part[at : at + LENGTH] for at in range(0, size, LENGTH)] for part in (ids, labels)
            )
            ids, labels = ids[size:], labels[size:]


def solved(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", count: int) -> float:
    """The share of so many held-out problems that a base solves, as it has read them."""
    some = problems("test", "held_out", ASKED)
    asked = [next(some) for _ in range(count)]
    ids = tokenizer([f"{each.text}\n" for each in asked], padding=True, padding_side="left",
                    add_special_tokens=False, return_tensors="pt")  # fmt: skip
    drawn = model.generate(**ids, max_new_tokens=40, do_sample=False)
    texts = tokenizer.batch_decode(drawn[:, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    return (
        sum(
            text.rpartition("#### ")[2].strip() == str(each.answer)
            for text, each in zip(texts, asked, strict=True)
        )
        / count
    )


def write_data(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "right.py").write_text(REWARD_FILE)
    some = problems("train", "examples", READ)
    rows = [next(some) for _ in range(EXAMPLES)]
    write(folder / "examples.jsonl", [{"prompt": r.text, "completion": r.completion} for r in rows])
    for name, split, count in (("problems", "train", PROBLEMS), ("held_out", "test", HELD_OUT)):
        some = problems(split, name, ASKED)
        taken = [next(some) for _ in range(count)]
        rows = [{"problem": each.text, "answer": str(each.answer)} for each in taken]
        write(folder / f"{name}.jsonl", rows)


def write(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def train(name: str, flags: list[str], folder: Path, cpu: int | None = None) -> Path:
    """A run of the command line, on one CPU or all, if it has not finished; one that was ended is
    resumed."""
    run = folder / "runs" / name
    summary = run / "summary.json"
    if not summary.exists() or json.loads(summary.read_text())["status"] != "finished":
        own = ["--output_dir", str(folder / "runs"), "--run_name", name]
        started = time.time()
        pinned = [] if cpu is None else ["taskset", "-c", str(cpu)]
        command = [*pinned, sys.executable, "-m", "unslothrl", *flags, *own, "--resume", "auto"]
        subprocess.run(command, cwd=ROOT, check=True)
        (run / "wall.json").write_text(json.dumps(round(time.time() - started)))
    return run


def figures(run: Path) -> dict:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    at = "eval/held_out/pass@1"
    evals = [row for row in rows if at in row]
    steps = [row for row in rows if "reward/mean" in row]
    return {
        "pass@1 by step": [(row["step"], row[at]) for row in evals],
        "reward by step": [(row["step"], row["reward/mean"]) for row in steps],
        "last evaluation": {k: v for k, v in evals[-1].items() if k.startswith("eval/")},
        "first evaluation": {k: v for k, v in evals[0].items() if k.startswith("eval/")},
        "wall_s": json.loads((run / "wall.json").read_text()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "bench-words")
    parser.add_argument("--gsm8k", type=Path, help="folder with GSM8K's train.jsonl")
    parser.add_argument("--minutes", type=float, default=27, help="for the base")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    folder = given.output.absolute()
    write_data(folder)
    base = make_base(folder / "base", given.minutes, given.gsm8k)
    examples = ["--dataset", str(folder / "examples.jsonl"), "--model", str(base)]
    sft = ["sft", *examples, "--episodes", "1", "--lr", "1e-3", "--max_lora_rank", "32"]
    taught = train("sft", [*sft, "--lora_alpha", "64", "--batch_size", "32"], folder)
    data = ["--dataset", str(folder / "problems.jsonl")]
    data += ["--reward", f"{folder / 'right.py'}:right"]
    data += ["--eval_dataset", f"held_out={folder / 'held_out.jsonl'}"]
    common = ["train", *RL, *data, "--model", str(base), "--adapter", str(taught)]
    command = f"python bench/words.py --minutes {given.minutes:g}"
    result = {
        "command": command + " --gsm8k ../shared/data/gsm8k" * (given.gsm8k is not None),
        **facts(), "base": json.loads((base / "MADE.json").read_text()),
        "sft_s": json.loads((taught / "wall.json").read_text()), "runs": {},
    }  # fmt: skip
    free = Queue[int]()  # small matrices gain more from a second run than from a second core
    for cpu in os.sched_getaffinity(0):
        free.put(cpu)

    def trained(kind: str, seed: int) -> Path:
        more = ["--seed", str(seed), *["--shuffle_rewards"] * (kind == "shuffled")]
        cpu = free.get()
        try:
            return train(f"{kind}-{seed}", [*common, *more], folder, cpu)
        finally:
            free.put(cpu)

    kinds = [*(("seed", seed) for seed in given.seeds), ("shuffled", given.seeds[0])]
    with ThreadPoolExecutor(free.qsize()) as pool:
        runs = pool.map(lambda kind: trained(*kind), kinds)
        for (kind, seed), run in zip(kinds, runs, strict=True):
            result["runs"][f"{kind} {seed}"] = figures(run)
            pairs = re.sub(r"\[\s+(\S+),\s+(\S+)\s+\]", r"[\1, \2]", json.dumps(result, indent=1))
            RESULT.write_text(pairs + "\n")
    for name, found in result["runs"].items():
        first, last = (found["pass@1 by step"][place][1] for place in (0, -1))
        print(f"{name}: pass@1 {first:.3f} -> {last:.3f}, {found['wall_s']} s")


if __name__ == "__main__":
    main()
