"""Asks a trained adapter a question: the shortest way to see what a run has learnt."""

import json
import tomllib
from pathlib import Path

from unslothrl import base_model, environment
from unslothrl.adapter import CONFIG_FILE
from unslothrl.config import Config
from unslothrl.data import prompts, tasks
from unslothrl.errors import UserError
from unslothrl.machine import Machine
from unslothrl.types import Request, Sampling, seed_of


def ask(adapter: Path, question: str, max_new_tokens: int, temperature: float) -> str:
    """-> the completion, special tokens left out. Raises UserError for a folder that is no adapter.

    The base is the one the adapter was trained on; the system prompt is that of its run, where the
    adapter still lies in the run's folder.
    """
    if not (adapter / CONFIG_FILE).is_file():
        raise UserError(f"adapter {adapter}: no {CONFIG_FILE} in it: give runs/<run>/adapters/v...")
    machine = Machine.detect()
    environment.apply(machine.cpus, bool(machine.gpus))
    base = base_model.prepare(
        json.loads((adapter / CONFIG_FILE).read_text())["base_model_name_or_path"]
    )
    import torch

    from unslothrl.backends.peft import PeftBackend
    from unslothrl.engines.transformers import TransformersEngine

    half = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] < 8
    dtype = torch.float16 if half else torch.bfloat16
    backend = PeftBackend(base, dtype=dtype, rank=1, alpha=1, dropout=0.0, seed=0, start=adapter)
    tokenizer = base_model.load_tokenizer(base)
    prompt = prompts.render(tokenizer, question, system_prompt(adapter))
    (ids,) = prompts.tokenise(tokenizer, [prompt])
    engine = TransformersEngine(backend, base, max_num_seqs=1, own=False)
    (drawn,) = engine.generate(
        [Request(tuple(ids), seed_of(question))],
        Sampling(temperature, 1.0, 0, max_new_tokens),
        lambda done, tokens: None,
    )
    return str(tokenizer.decode(list(drawn.token_ids), skip_special_tokens=True))


def system_prompt(adapter: Path) -> str:
    """What the run of this adapter told the model, by the config.toml two folders up."""
    file = adapter.resolve() / ".." / ".." / "config.toml"
    run = tomllib.loads(file.read_text()) if file.is_file() else {}
    asked = ("system_prompt", "dataset", "reward")
    return tasks.system_prompt_of(Config(**{name: run[name] for name in asked if name in run}))
