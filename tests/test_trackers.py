"""The trackers' own packages: what a run has written comes out of their own readers.

`make tracker-test` runs this with .venv/peers/trackers on the path.
"""

import json
import os
import subprocess

import pytest
from python_process import unslothrl

from unslothrl.commands import cli
from unslothrl.tracking.metrics import is_number
from unslothrl.tracking.rows import read_jsonl

pytestmark = pytest.mark.slow

SMALL = (
    "--learner grpo --number_of_actors 0 --engine transformers --cluster local --batch_size 4 "
    "--num_candidates 4 --topk 4 --eval_every 2 --eval_problems 6 --eval_candidates 2 "
    "--save_every 1 --run_name tracked"
)
ALL = [word for name in ("tensorboard", "trackio", "wandb") for word in ("--track", name)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of a run of two steps that was resumed for two more."""
    here = tmp_path_factory.mktemp("tracked")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("TRACKIO_DIR", str(here / "trackio"))
        assert cli.main([*SMALL.split(), *ALL, "--max_steps", "2"]) == 0
        assert cli.main(["--resume", "runs/tracked", "--max_steps", "4"]) == 0
    return here / "runs" / "tracked"


def logged(folder) -> dict[int, dict[str, float]]:
    """What trackers must have: step -> the numbers of metrics.jsonl."""
    found = {row.pop("step"): row for row in read_jsonl(folder / "metrics.jsonl")}
    assert list(found) == [0, 1, 2, 3, 4]
    return {step: {k: v for k, v in row.items() if is_number(v)} for step, row in found.items()}


def test_tensorboard_reads_every_number_once(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    found: dict[int, dict[str, float]] = {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            assert name not in found.setdefault(event.step, {})
            found[event.step][name] = event.value
    wanted = logged(folder)
    assert found.keys() == wanted.keys()
    for step, numbers in wanted.items():
        assert found[step] == pytest.approx(numbers, rel=1e-6)  # it keeps float32
    texts = set(events.Tags()["tensors"])
    assert "config/text_summary" in texts and "samples/held_out/0/text_summary" in texts


BLOCK, HEADER = 32768, 7  # bytes of LevelDB's log, and of the head of a file and of each record


def wandb_records(path):
    """The records of an offline run's file, by W&B's own protocol buffers."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = path.read_bytes(), HEADER, b""
    assert data.startswith(b":W&B")
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        kind = data[at + 6] if left >= HEADER else 0
        if not kind:  # padding to the end of the block
            at += left
            continue
        end = at + HEADER + int.from_bytes(data[at + 4 : at + 6], "little")
        parts, at = parts + data[at + HEADER : end], end
        if kind in (1, 4):  # whole, or its last part
            record = Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def test_wandb_offline_has_both_parts_of_the_run_under_one_id(folder):
    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    ids = json.loads((folder / "trackers.json").read_text())
    assert [file.stem for file in files] == [f"run-{ids['wandb']}"] * 2
    found: dict[int, dict[str, float]] = {}
    config, tables = {}, []
    for record in (record for file in files for record in wandb_records(file)):
        config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        items = record.history.item
        row = {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}
        if "samples.nrows" in row:
            tables.append(row["samples.nrows"])
        elif "step" in row:
            found[row["step"]] = {k: v for k, v in row.items() if k[0] != "_" and k != "step"}
    assert found == logged(folder)
    assert config["learner"] == "grpo" and config["batch_size"] == 4
    assert tables == [4, 4, 4]  # of the evaluations after steps 0, 2 and 4
    kept = [*folder.glob("wandb/offline-run-*/files/media/table/*.json")]
    assert any("<answer>" in path.read_text() for path in kept)


def test_trackio_reads_the_resumed_run_as_one(folder):
    from trackio.sqlite_storage import SQLiteStorage

    name = f"tracked-{json.loads((folder / 'trackers.json').read_text())['trackio']}"
    assert SQLiteStorage.get_runs("unslothrl") == [name]
    found: dict[int, dict[str, float]] = {}
    tables = []
    for row in SQLiteStorage.get_logs("unslothrl", name):
        if "samples" in row:
            tables.append(row["samples"])
        else:
            found[row["step"]] = {k: v for k, v in row.items() if k not in ("step", "timestamp")}
    assert found == {step: pytest.approx(row) for step, row in logged(folder).items()}
    assert SQLiteStorage.get_run_config("unslothrl", name)["learner"] == "grpo"
    assert len(tables) == 3


ONE_STEP = [*SMALL.split(), "--max_steps", "1", "--eval_every", "0"]


def run(folder, *flags: str, **variables: str) -> subprocess.CompletedProcess:
    """A run in a process of its own, which knows no W&B but by `variables`."""
    kept = {name: v for name, v in os.environ.items() if not name.startswith("WANDB_")}
    variables = {**kept, "HOME": str(folder), "NETRC": str(folder / "none"), **variables}
    return unslothrl(*ONE_STEP, *flags, cwd=folder, env=variables, timeout=200)


def test_wandb_without_a_key_is_one_line_before_anything_loads(tmp_path):
    done = run(tmp_path, "--track=wandb")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "track wandb: it has no API key" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_wandb_gets_no_secret_that_the_command_has(tmp_path):
    """It would record the words of the command by itself."""
    secret = "hf_" + "a1B2" * 8
    saved = f"--lora_save_path={tmp_path}/{secret}"
    done = run(tmp_path, "--track=wandb", saved, WANDB_MODE="offline")
    assert done.returncode == 0, done.stdout + done.stderr
    written = [path for path in (tmp_path / "runs/tracked/wandb").rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in written)
    assert not any(secret.encode() in path.read_bytes() for path in written)
    assert secret not in done.stdout + done.stderr
