"""Memory, bytes and CPU seconds of learners that share a base, beside one that has it whole.

    python bench/sharding.py [--ranks 1 2 4] [--layers 20]

A random base of 300 million parameters in NF4 (20 layers of width 1,024) is made in a temporary
folder. In each rank: anonymous memory after loading over what the libraries take, its peak while
loading and in an update of four sequences of 64 tokens, the bytes that it received, by the counts
of its gathers and by `planning.links`, and the CPU seconds of the update. Over gloo; writes
bench/results/sharding-cpu.json.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT), str(ROOT / "bench")]
MB = 2**20


def anonymous_mb() -> float:
    return int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


class Peak(threading.Thread):
    """Of `anonymous_mb` until `stop`."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.ended = 0.0, threading.Event()
        self.start()

    def run(self) -> None:
        while not self.ended.wait(0.005):
            self.most = max(self.most, anonymous_mb())

    def stop(self) -> float:
        self.ended.set()
        return self.most


def make_base(folder: Path, layers: int) -> Path:
    import torch
    from on_card.model import quantised
    from transformers import LlamaConfig, LlamaForCausalLM

    from unslothrl import embedded

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    config = LlamaConfig(
        vocab_size=32_000, hidden_size=1024, intermediate_size=4096, num_hidden_layers=layers,
        num_attention_heads=16, num_key_value_heads=4, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    quantised(LlamaForCausalLM(config)).save_pretrained(folder)
    for path in embedded.BASE.iterdir():
        if path.name.startswith("tokenizer"):
            (folder / path.name).write_bytes(path.read_bytes())
    return folder


def work(rank, world_size, address, stores, base):
    """-> the figures of a rank."""
    from test_backend import sample_of
    from test_shards import GRPO, LRS, joined

    from unslothrl.planning import links
    from unslothrl.records import Batch
    from unslothrl.weights.shapes import shape_of

    learner_imports = anonymous_mb()
    split = {"learner_shards": world_size} if world_size > 1 else {}
    peak = Peak()
    learner = joined(rank, world_size, address, stores, base, split, {**GRPO, "dtype": "bfloat16"})
    found = {"loading, peak MB": peak.stop() - learner_imports}
    found["loaded, MB"] = anonymous_mb() - learner_imports
    learner.passes.micro_batch, learner.passes.context = 1, 66
    learner.passes.objective = type(learner.passes.objective)()
    samples = [sample_of(64) for _ in range(4)][rank::world_size]
    peak, cpu = Peak(), time.process_time()
    learner.update(Batch(tuple(samples), 4, 256), LRS, deadline_s=600.0)
    found["update, CPU s"] = time.process_time() - cpu
    found["update, peak MB"] = peak.stop() - learner_imports
    shards = learner.backend.split.shards
    if shards is not None:
        received = shards.received * (world_size - 1) / world_size / MB
        planned = links.shards_bytes(shape_of(str(base)), world_size, len(samples)) / MB
        found |= {
            "part, MB": shards.part_bytes / MB,
            "two units, MB": 2 * shards.largest_unit_bytes / MB,
        }
        found |= {"received, MB": received, "planned, MB": planned, "gathers": shards.gathers}
    learner.close()
    return {name: round(value, 2) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--layers", type=int, default=20)
    given = parser.parse_args()
    from facts import facts, result_file
    from test_exchange import meet

    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # else glibc keeps what is freed
    result = {**facts(), "command": "python bench/sharding.py"}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        base = make_base(Path(folder) / "base", given.layers)
        for ranks in given.ranks:
            result[f"{ranks} ranks"] = meet(work, ranks, base)
            print(ranks, json.dumps(result[f"{ranks} ranks"]), flush=True)
    result_file("sharding").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
