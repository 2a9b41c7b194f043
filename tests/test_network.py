"""Nothing uses the network once a run has started: attempts to reach anything but this machine are
refused and counted, in every process that imports Python's sockets."""

import json
import os
import sys

import pytest
from python_process import python

pytestmark = pytest.mark.real

REFUSED = """
import os, socket, sys, traceback
HERE = ("127.", "::1", "localhost", "0.0.0.0", "::", socket.gethostname())

def refuse(event, arguments):
    if event not in ("socket.connect", "socket.getaddrinfo"):
        return
    host = arguments[0]
    if event == "socket.connect":
        host = arguments[1][0] if isinstance(arguments[1], tuple) else ""  # of Unix
    host = host.decode() if isinstance(host, bytes) else host
    if host and not host.startswith(HERE):
        with open(os.environ["ATTEMPTS"], "a") as file:
            frames = [f"{f.filename}:{f.lineno}" for f in traceback.extract_stack()[:-1]]
            file.write(f"{host} from {' '.join(frames[-8:])}\\n")
        raise OSError(101, "Network is unreachable")

sys.addaudithook(refuse)
"""
RL = (
    "train --learner grpo --model embedded --dataset embedded --cluster local "
    "--engine transformers --number_of_actors 0 --max_steps 2 --batch_size 2 --num_candidates 2 "
    "--eval_every 1 --eval_problems 2 --eval_candidates 1 --save_every 1 --max_new_tokens 24"
)
STAGE = (
    "sft --model embedded --dataset embedded --max_steps 2 --batch_size 2 --eval_every 1 "
    "--eval_problems 2 --save_every 1"
)


def run(tmp_path, command):
    """-> (output, attempts to reach another machine)."""
    (tmp_path / "site").mkdir(exist_ok=True)
    (tmp_path / "site" / "sitecustomize.py").write_text(REFUSED)
    attempts = tmp_path / "attempts"
    attempts.write_text("")
    online = {k: v for k, v in os.environ.items() if not k.endswith("_OFFLINE")}
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])
    environ = {**online, "PYTHONPATH": path, "ATTEMPTS": str(attempts)}
    command = [*command.split(), "--output_dir", "runs"]
    done = python("-m", "unslothrl", *command, cwd=tmp_path, env=environ)
    return done.stdout + done.stderr, attempts.read_text().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("command", [RL, STAGE])
def test_a_run_and_one_that_starts_from_its_adapter(command, tmp_path):
    out, attempts = run(tmp_path, f"{command} --run_name first")
    assert attempts == [] and "huggingface" not in out.lower()
    adapter = max((tmp_path / "runs" / "first" / "adapters").iterdir())
    file = adapter / "adapter_config.json"  # which names a base of the hub, as those of others do
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "base_model_name_or_path": "nobody/no-such-base"}))
    out, attempts = run(tmp_path, f"{command} --adapter {adapter} --run_name second")
    assert attempts == [] and "huggingface" not in out.lower()
