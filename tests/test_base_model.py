"""Quantising happens in a process of its own."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from few_cases import few
from transformers import AutoModelForCausalLM

from unslothrl.errors import UserError
from unslothrl.weights import base_model, base_parts, quantise

pytestmark = pytest.mark.real

DRIVER = """
import json, sys
from pathlib import Path
from unslothrl.weights import base_model
made = base_model.prepare(sys.argv[1])
loaded = sorted({"transformers", "bitsandbytes"} & sys.modules.keys())
print(json.dumps([str(made), loaded]))
"""
COUNTS = """
import os, sys
if "unslothrl.weights.quantise" in sys.orig_argv:
    with open(os.environ["COUNT_FILE"], "a") as file:
        file.write("quantised\\n")
"""


@pytest.mark.slow
def test_of_two_processes_that_ask_one_quantises_and_neither_loads_for_it(
    sixteen_bit_bases, bases, tmp_path
):
    """In a process of its own, which leaves a line: so on a card no context of it stays."""
    (tmp_path / "sitecustomize.py").write_text(COUNTS)
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "COUNT_FILE": str(tmp_path / "count"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
    }
    command = [sys.executable, "-c", DRIVER, str(sixteen_bit_bases["plain"])]
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    first, second = (
        json.loads(process.communicate(timeout=200)[0].splitlines()[-1]) for process in both
    )
    made, loaded = first
    assert first == second and loaded == []
    assert (tmp_path / "count").read_text() == "quantised\n"
    names = {path.name for path in Path(made).iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    ours = (bases["plain"] / "model.safetensors").read_bytes()
    assert (Path(made) / "model.safetensors").read_bytes() == ours  # by another process
    assert [path.name for path in Path(made).parent.glob("[!.]*")] == [Path(made).name]


def test_a_checkpoint_that_cannot_be_read_is_one_line(sixteen_bit_bases, tmp_path, own_cache):
    source = tmp_path / "broken"
    source.mkdir()
    for path in sixteen_bit_bases["plain"].iterdir():
        (source / path.name).write_bytes(path.read_bytes()[:5000])
    (source / "config.json").write_bytes((sixteen_bit_bases["plain"] / "config.json").read_bytes())
    with pytest.raises(UserError) as caught:
        base_model.quantise(source)
    message = str(caught.value)
    assert "\n" not in message and "is damaged" in message and str(source) in message
    assert list(tmp_path.glob("cache/unslothrl/nf4/*")) == []


def test_code_beside_a_tokenizer_is_never_run_nor_asked_about(tmp_path, monkeypatch, capfd):
    """transformers asks on stdin, where a pipe may say yes to something else."""
    made = tmp_path / "ran"
    text = f"from pathlib import Path\nPath({str(made)!r}).touch()\nclass Own: pass\n"
    (tmp_path / "evil.py").write_text(text)
    (tmp_path / "config.json").write_text('{"model_type": "own"}')
    settings = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["evil.Own", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 10))
    with pytest.raises(UserError, match="no tokenizer can be read"):
        base_model.load_tokenizer(tmp_path)
    assert not made.exists() and "[y/N]" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("name", "text"),
    few(
        [
            ("tokenizer_config.json", "{"),
            ("tokenizer_config.json", "[]"),
            ("tokenizer.json", '{"version": "1.0", "model": {"type": "BPE", "vocab": 3}}'),
        ]
    ),
)
def test_a_damaged_tokenizer_is_one_line(bases, tmp_path, name, text):
    for path in bases["plain"].glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match="no tokenizer can be read") as caught:
        base_model.load_tokenizer(tmp_path)
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("generation", "config", "found"),
    [
        ('{"eos_token_id": 3}', "{}", [3]),
        ('{"eos_token_id": [3, 4]}', "{}", [3, 4]),
        ('{"eos_token_id": []}', '{"eos_token_id": 5}', [5]),
        ("{}", '{"eos_token_id": null}', "no eos_token_id"),
        ("[", '{"eos_token_id": 5}', "generation_config.json is damaged"),
    ],
)
def test_what_ends_a_completion(tmp_path, generation, config, found):
    (tmp_path / "generation_config.json").write_text(generation)
    (tmp_path / "config.json").write_text(config)
    if isinstance(found, list):
        assert base_model.stop_token_ids(tmp_path) == found
        return
    with pytest.raises(UserError, match=found):
        base_model.stop_token_ids(tmp_path)


def test_a_base_is_quantised_tensor_by_tensor_as_transformers_does(sixteen_bit_bases, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(sixteen_bit_bases["biases"], dtype="auto")
    for folder in ("source", "ours", "theirs"):
        (tmp_path / folder).mkdir()
    model.save_pretrained(tmp_path / "source", max_shard_size="300KB")
    quantise.main(str(tmp_path / "source"), str(tmp_path / "ours"))
    quantise.whole(str(tmp_path / "source"), str(tmp_path / "theirs"))
    ours, theirs = (tensors_in(tmp_path / folder) for folder in ("ours", "theirs"))
    assert len(list((tmp_path / "ours").glob("*.safetensors"))) > 1
    assert ours.keys() == theirs.keys() and any("quant_state" in name for name in ours)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    configs = [(tmp_path / folder / "config.json").read_text() for folder in ("ours", "theirs")]
    assert configs[0] == configs[1]


def test_what_ends_a_completion_is_what_the_source_says(sixteen_bit_bases, tmp_path, own_cache):
    """Not what config.json alone would: of an instruct model that often has fewer."""
    source = tmp_path / "source"
    shutil.copytree(sixteen_bit_bases["plain"], source)
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert base_model.stop_token_ids(base_model.quantise(source)) == [7, 9]


def tensors_in(folder):
    files = [safetensors.torch.load_file(path) for path in base_parts.weight_files(folder)]
    return {name: tensor for file in files for name, tensor in file.items()}
