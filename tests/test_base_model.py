"""Quantising happens in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unslothrl.errors import UserError
from unslothrl.weights import base_model

pytestmark = pytest.mark.real

DRIVER = """
import json, sys
from pathlib import Path
from unslothrl.weights import base_model
made = base_model.prepare(sys.argv[1])
loaded = sorted({"torch", "transformers", "bitsandbytes"} & sys.modules.keys())
print(json.dumps([str(made), loaded]))
"""


def test_the_process_that_asks_for_it_loads_nothing(sixteen_bit_bases, bases, tmp_path):
    """So on a card no context and no cache of it stay for the run."""
    source = sixteen_bit_bases["plain"]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(source)],
        env={
            **os.environ,
            "XDG_CACHE_HOME": str(tmp_path),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    made, loaded = json.loads(done.stdout.splitlines()[-1])
    assert loaded == []
    names = {path.name for path in Path(made).iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    ours = (bases["plain"] / "model.safetensors").read_bytes()
    assert (Path(made) / "model.safetensors").read_bytes() == ours  # by another process
    assert [path.name for path in Path(made).parent.iterdir()] == [Path(made).name]


def test_a_checkpoint_that_cannot_be_read_is_one_line(sixteen_bit_bases, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "broken"
    source.mkdir()
    for path in sixteen_bit_bases["plain"].iterdir():
        (source / path.name).write_bytes(path.read_bytes()[:5000])
    (source / "config.json").write_bytes((sixteen_bit_bases["plain"] / "config.json").read_bytes())
    with pytest.raises(UserError) as caught:
        base_model.quantise(source)
    message = str(caught.value)
    assert "\n" not in message and "cannot be quantised" in message and str(source) in message
    assert list((tmp_path / "cache" / "unslothrl" / "nf4").iterdir()) == []


COUNTS = """
import os, sys
if "unslothrl.weights.quantise" in sys.orig_argv:
    with open(os.environ["COUNT_FILE"], "a") as file:
        file.write("quantised\\n")
"""


def test_of_two_processes_that_ask_one_quantises(sixteen_bit_bases, tmp_path):
    """Each process that quantises leaves a line."""
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
    made = {json.loads(process.communicate(timeout=200)[0])[0] for process in both}
    assert len(made) == 1
    assert (tmp_path / "count").read_text() == "quantised\n"
