"""The longest context that a GPU trains: the planner's figure, tried.

    python bench/on_card/longest.py --model FOLDER

One prompt of nearly the whole context, two completions of 64 tokens, one step: generating so long a
completion would take an hour, and the memory is that of the whole context either way. If the
planner's figure runs out of memory, three quarters of it and so on are tried. Exits with 1 where
nothing trains. Writes longest-gpu.json in $OUT (without a GPU, longest-cpu.json).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from facts import facts, result_file

from on_card.memory import Watcher
from on_card.stages import JOB, ROOT, SHARED, TINY, train_command
from unslothrl.planning.forecast import forecast_of
from unslothrl.runs.resolve import resolve
from unslothrl.system.machine import Machine
from unslothrl.weights import base_model
from unslothrl.weights.shapes import shape_of

NEW_TOKENS, UNIT, TRIES = 64, 512, 3
ON_A_CPU = 256
FEW = {"num_candidates": 2, "topk": 2, "train_batch_size": 1, "max_num_seqs": 2}


def flags_for(model: str, context: int, machine: Machine) -> dict:
    lengths = {"max_prompt_tokens": context - NEW_TOKENS, "max_new_tokens": NEW_TOKENS}
    tiny = {} if machine.gpus else TINY
    return JOB | SHARED | tiny | FEW | lengths | {"model": model}


def planned(model: str, machine: Machine) -> int:
    """The longest context, in steps of `UNIT`, that the planner says fits."""
    if not machine.gpus:
        return ON_A_CPU
    shape = shape_of(model)
    least, most = 1, shape.context // UNIT
    while least < most:
        middle = (least + most + 1) // 2
        config = resolve(flags_for(model, middle * UNIT, machine), machine).config
        fits = all(card.fits for card in forecast_of(config, shape, machine).placement.cards)
        least, most = (middle, most) if fits else (least, middle - 1)
    return least * UNIT


def write_prompts(file: Path, model: str, tokens: int) -> None:
    """Problems whose prompts have at most so many tokens, and hardly fewer."""
    tokenizer = base_model.load_tokenizer(base_model.prepare(model))
    sentence = " 12 + 34 = 46."
    room = tokens - 48  # for the template and the sentence that is cut
    count = room // len(tokenizer(sentence, add_special_tokens=False)["input_ids"])
    rows = [{"problem": f"{i}.{sentence * count}", "answer": "46"} for i in range(8)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def tried(model: str, context: int, machine: Machine) -> dict:
    """One step at this context."""
    with tempfile.TemporaryDirectory() as folder, Watcher() as watcher:
        file = Path(folder) / "long.jsonl"
        write_prompts(file, model, context - NEW_TOKENS)
        flags = flags_for(model, context, machine) | {"dataset": str(file)}
        began = time.perf_counter()
        done = subprocess.run(train_command(flags, Path(folder)), cwd=ROOT)
        seconds = round(time.perf_counter() - began, 1)
    trained = done.returncode == 0
    return {"context": context, "trained": trained, "seconds": seconds, "peak_mb": watcher.peak_mb}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    given = parser.parse_args()
    machine = Machine.detect()
    context = planned(given.model, machine)
    result = {"command": "python bench/on_card/longest.py", **facts(), "planned": context}
    result["tries"] = []
    for _ in range(TRIES):
        result["tries"].append(tried(given.model, context, machine))
        result_file("longest").write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps(result["tries"][-1]), flush=True)
        if result["tries"][-1]["trained"]:
            return
        context = context * 3 // 4 // UNIT * UNIT
    sys.exit(1)


if __name__ == "__main__":
    main()
