"""The command itself, all parts real: Ray, vLLM, the 4-bit base, adapters, the run folder."""

import gzip
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import safetensors.torch
from conftest import targets_by_layer
from few_cases import few
from python_process import python
from runs_compared import metrics
from runs_compared import rows as rows_of

from unslothrl import cluster
from unslothrl.checkpoints.store import Checkpoints
from unslothrl.commands import cli
from unslothrl.records import LORA_TARGETS
from unslothrl.weights import base_model

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "train_distributed.py"
DATA = ROOT.parent / "shared" / "data"
SMALL = {
    "batch_size": 8,
    "num_candidates": 4,
    "topk": 3,
    "learner_chunk_size": 2,
    "number_of_actors": 1,
    "train_batch_size": 8,
    "max_steps": 3,
    "eval_problems": 6,
    "eval_candidates": 2,
    "eval_every": 2,
    "save_every": 1,
    "kv_cache_mb": 64,
}
# One process, no vLLM, so that pytest's own process can run it in two seconds.
ALONE = {"cluster": "local", "number_of_actors": 0, "engine": "transformers"}


def flags(output: Path, name: str, **options) -> list[str]:
    given = {**SMALL, "learner": "grpo", "output_dir": output, "run_name": name, **options}
    return [text for flag, value in given.items() for text in (f"--{flag}", str(value))]


def train(output: Path, name: str, *more: str, **options) -> Path:
    """Runs the command to its end and returns the run folder."""
    python(PROGRAM, *flags(output, name, **options), *more, cwd=output, timeout=500)
    return output / name


def train_here(output: Path, name: str, *more: str, **options) -> Path:
    """The same by the program's main function, which saves the start of a process."""
    assert cli.main([*flags(output, name, **{**ALONE, **options}), *more]) == 0
    return output / name


@pytest.fixture(scope="module")
def output(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def local(output) -> Path:
    return train(output, "local", cluster="local")


@pytest.fixture(scope="module")
def whole(output) -> Path:
    return train_here(output, "whole", max_steps=4)


@pytest.fixture(scope="module")
def ray(output) -> Path:
    return train(output, "ray", cluster="ray")


@pytest.mark.slow
def test_a_profile_has_traces_and_changes_no_adapter(output, whole, capsys):
    folder = train_here(output, "profiled", max_steps=4, profile=2)
    for version in (1, 2, 3, 4):
        name = f"adapters/v{version:06d}/adapter_model.safetensors"
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), version
    assert not (whole / "profile").exists()
    traces = sorted(path.name for path in (folder / "profile").glob("*.json.gz"))
    parts = ("generation", "update")
    assert traces == [f"step_00000{n}-learner-0-{part}.json.gz" for n in (2, 3) for part in parts]
    for name in traces:
        trace = json.loads(gzip.decompress((folder / "profile" / name).read_bytes()))
        assert any(event["name"].startswith("aten::") for event in trace["traceEvents"])
        assert (folder / "profile" / name).stat().st_size < 32 << 20
    table = (folder / "profile" / "table.txt").read_text()
    assert table.startswith("profile of steps 2 to 3: ") and "aten::" in table
    printed = capsys.readouterr().out
    assert table.splitlines()[0] in printed and "table.txt" in printed


@pytest.mark.slow
def test_every_process_of_ray_is_profiled(output, ray):
    folder = train(output, "ray-profiled", cluster="ray", profile=1)
    name = "adapters/v000003/adapter_model.safetensors"
    assert (folder / name).read_bytes() == (ray / name).read_bytes()
    assert {path.name for path in (folder / "profile").glob("*.json.gz")} == {
        f"step_000002-{part}.json.gz"
        for part in ("actor-0-generation", "learner-0-generation", "learner-0-update")
    }


@pytest.mark.slow
def test_ray_and_one_process_train_the_same_adapter_bit_for_bit(local, ray):
    for version in (1, 2, 3):
        name = f"adapters/v{version:06d}/adapter_model.safetensors"
        assert (local / name).read_bytes() == (ray / name).read_bytes(), version


def test_every_target_of_every_layer_has_been_trained(ray, make_backend):
    import torch

    from unslothrl import embedded
    from unslothrl.backends import peft

    base, bf16 = base_model.quantise(embedded.BASE), torch.bfloat16
    initial = peft.load(base, dtype=bf16, rank=16, alpha=32, dropout=0.0, seed=0)
    before = safetensors.torch.load(bytes(initial.publish(0).weights))
    after = safetensors.torch.load_file(ray / "adapters" / "v000003" / "adapter_model.safetensors")
    assert before.keys() == after.keys()
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    layers = json.loads((embedded.BASE / "config.json").read_text())["num_hidden_layers"]
    assert targets_by_layer(moved) == {(i, t) for i in range(layers) for t in LORA_TARGETS}


def test_the_run_folder_has_the_documented_files_and_metrics(ray):
    files = "config.toml metrics.jsonl summary.json report.html rollouts adapters checkpoints"
    assert {path.name for path in ray.iterdir()} >= set(files.split())
    assert [row["step"] for row in metrics(ray)] == [0, 1, 2, 3]  # one object a step
    assert [("eval/held_out/pass@1" in row) for row in metrics(ray)] == [True, False, True, True]
    names = {
        "reward/mean reward/accuracy reward/format reward/tags reward/zero_signal_groups",
        "train/loss train/grad_norm train/entropy train/clip_fraction train/kl_reference",
        "train/sampler_gap train/sampler_gap_p99 train/ess train/correction_truncated",
        "train/selected_advantage_mean train/selected_completions rollout/tokens",
        "rollout/tokens_per_s rollout/mean_length rollout/truncated rollout/staleness",
        "sync/bytes sync/put_s sync/fetch_s sync/load_s",
        "timing/generation_s timing/reward_s timing/update_s timing/sync_s timing/overhead_s",
        "timing/step_s",
        "memory/learner_peak_mb memory/actor_peak_mb policy_version samples_seen",
    }
    for row in metrics(ray)[1:]:
        assert set(" ".join(names).split()) <= set(row)
    summary = json.loads((ray / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 3)
    assert Path(summary["adapter"]).name == "v000003"
    assert summary["base_hash"]
    assert (ray / "checkpoints" / "latest").read_text().strip() == "step_000003"


def test_rollouts_record_what_was_generated_and_selected(ray):
    rows = rows_of(ray / "rollouts" / "step_000002.jsonl")
    assert len(rows) == 8 * 4
    assert {row["policy_version"] for row in rows} == {1}
    assert sum(row["selected"] for row in rows) == 8 * 3
    for row in rows:
        assert row["prompt"].startswith("<|im_start|>user\nWhat is ")
        assert set(row["rewards"]) == {"accuracy", "format", "tags"}


@pytest.mark.parametrize("run", few(["ray", "local"]))
def test_sampler_and_learner_agree_and_the_report_has_the_gap_of_every_token(run, request):
    folder = request.getfixturevalue(run)
    page = (folder / "report.html").read_text()
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    for row, shown in zip(metrics(folder)[1:], data["steps"], strict=True):
        assert row["train/sampler_gap"] < 0.01 and 0.9 < row["train/ess"] <= 1
        assert row["rollout/staleness"] == 0
        candidates = [each for prompt in shown["prompts"] for each in prompt["candidates"]]
        gaps = [abs(gap) / 1e4 for each in candidates for gap in each["traced"].get("gaps", ())]
        assert gaps and abs(sum(gaps) / len(gaps) - row["train/sampler_gap"]) < 5e-5
        for each in candidates:
            text = "".join(each["traced"]["pieces"]).removesuffix("<|im_end|>")
            assert [text] == each["completion"]


def test_only_the_adapter_is_sent_to_the_engines(ray):
    for row in metrics(ray)[1:]:
        file = ray / f"adapters/v{row['policy_version']:06d}/adapter_model.safetensors"
        tensors = safetensors.torch.load_file(file)
        assert {str(tensor.dtype) for tensor in tensors.values()} == {"torch.bfloat16"}
        assert row["sync/bytes"] == file.stat().st_size
        payload = sum(2 * tensor.numel() for tensor in tensors.values())
        assert 0 <= file.stat().st_size - payload < 20_000  # the header with the names


@pytest.mark.slow
@pytest.mark.parametrize("partial", [False, True])
def test_a_run_that_generates_while_it_updates(partial, output):
    """Two actors over transformers, a learner, an evaluation in between. The first batch is fresh,
    the second was drawn beside it under the first version."""
    folder = train(
        output, f"overlapped-{partial}", *["--partial_rollouts"] * partial, cluster="ray",
        engine="transformers", number_of_actors=2, max_staleness=1, max_steps=4,
    )  # fmt: skip
    (_, *steps) = metrics(folder)
    assert [row["policy_version"] for row in steps] == [1, 2, 3, 4]
    assert [row["rollout/staleness"] for row in steps][:2] == [0, 1]
    for row in steps:
        shares = [row["rollout/staleness_0"], row["rollout/staleness_1"]]
        assert sum(shares) == pytest.approx(1) and "rollout/staleness_2" not in row
        assert row["rollout/staleness_mean"] == pytest.approx(shares[1])
        assert row["rollout/staleness"] == (shares[1] > 0)
        assert row["rollout/dropped_groups"] == row["rollout/replaced_actors"] == 0
        held = row["rollout/versions_loaded"] - row["rollout/versions_unloaded"]
        assert 1 <= row["rollout/versions_held"] <= (1 if partial else 2)
        assert row["rollout/versions_held"] <= held <= 2 * row["rollout/versions_held"]
        assert row["train/sampler_gap"] < 0.05 and row["train/ess"] > 0.8
    assert 4 <= steps[-1]["rollout/versions_loaded"] <= 2 * 4  # version 4 comes after the last draw
    drawn = [
        (row["task"], row["candidate"])
        for path in (folder / "rollouts").iterdir()
        for row in rows_of(path)
    ]
    assert len(drawn) == len(set(drawn)) == 4 * 8 * 4
    assert [row["step"] for row in metrics(folder) if "eval/held_out/pass@1" in row] == [0, 2, 4]


def test_a_starting_adapter_is_where_training_starts(output, ray):
    """Another run's adapter is the reference, and training changes it."""
    start = ray / "adapters" / "v000003"
    folder = train_here(output, "from", adapter=start, max_steps=1, lora_save_path=output / "copy")
    assert (output / "copy" / "adapter_config.json").is_file()
    row = metrics(folder)[1]
    assert abs(row["train/kl_reference"]) <= 1e-9  # the policy is still its reference
    files = [each / "adapter_model.safetensors" for each in (folder / "adapters/v000001", start)]
    assert files[0].read_bytes() != files[1].read_bytes()


def test_shuffled_rewards_are_recorded_as_shuffled(output):
    folder = train_here(output, "plain", max_steps=1)
    plain = rows_of(folder / "rollouts" / "step_000001.jsonl")
    folder = train_here(output, "control", "--shuffle_rewards", max_steps=1)
    pairs = list(zip(plain, rows_of(folder / "rollouts" / "step_000001.jsonl"), strict=True))
    assert all(a["completion"] == b["completion"] for a, b in pairs)
    assert any(a["rewards"] != b["rewards"] for a, b in pairs)
    assert all(b["score"] == a["score"] for a, b in pairs)


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="the data is not beside the checkout (../shared)")
@pytest.mark.parametrize(
    ("name", "file", "started"),
    [
        ("gsm8k", "gsm8k/train.jsonl", {"engine": "vllm", "number_of_actors": 1}),
        ("math500", "math500/test.jsonl", {}),
    ],
)
def test_real_problems_run_through_the_main_job(name, file, started, output):
    """Once drawn by vLLM in a process of its own, once by transformers in this one."""
    folder = (train if started else train_here)(
        output, name, dataset=DATA / file, max_prompt_tokens=2300, max_new_tokens=32,
        batch_size=3, num_candidates=2, topk=2, learner_chunk_size=1, eval_every=0,
        train_batch_size=2, cluster="local", max_steps=2, **started,
    )  # fmt: skip
    files = [folder / f"rollouts/step_{step:06d}.jsonl" for step in (1, 2)]
    rows = [row for file in files for row in rows_of(file)]
    assert len(rows) == 2 * 3 * 2
    assert all("<|im_start|>system" not in row["prompt"] for row in rows)  # as the base knows it
    assert json.loads((folder / "summary.json").read_text())["steps"] == 2
    problem = rows[0]["prompt"].rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
    assert json.dumps(problem)[1:-1] in (DATA / file).read_text()


def scratch(pid: int) -> list[Path]:
    """The folders, in memory or on disk, in which the run of process `pid` keeps adapters."""
    parents = {Path("/dev/shm"), Path(tempfile.gettempdir())}
    return [path for parent in parents for path in parent.glob(f"unslothrl-{pid}-*")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "generates", "line"),
    [
        (signal.SIGINT, {"engine": "vllm", "number_of_actors": 1}, "step 1/500"),
        (signal.SIGTERM, {"engine": "transformers", "number_of_actors": 0}, "step 1/500"),
        (signal.SIGTERM, {"engine": "transformers", "number_of_actors": 0}, "loading"),
    ],
)
def test_ctrl_c_and_termination_end_well_and_leave_nothing(number, generates, line, output):
    name, has_begun = f"stopped-{number}-{line[:4]}", line.startswith("step")
    given = flags(output, name, max_steps=500, eval_every=0, cluster="ray", **generates)
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), *given],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that the signal reaches the whole group, as from a keyboard
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # off in the background
        cwd=output,
    )
    assert process.stdout is not None
    lines = [*itertools.takewhile(lambda said: not said.startswith(line), process.stdout)]
    children = psutil.Process(process.pid).children(recursive=True)
    assert children and scratch(process.pid), "".join(lines)
    started = time.monotonic()
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    rest = process.stdout.read()
    assert process.wait(timeout=30) == 128 + number, rest
    assert time.monotonic() - started < 15
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive, alive
    summary = json.loads((output / name / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    if has_begun:
        assert (Path(summary["adapter"]) / "adapter_model.safetensors").is_file()
        saved = Checkpoints(output / name).newest(pytest.fail)
        assert saved.state.step == summary["steps"] and "repeated" not in summary["goes_on"]
    assert "Traceback" not in rest and "***" not in rest  # Ray's C++ prints its stack with these
    assert not scratch(process.pid)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "a" * 300}, "no such folder"),
        ({"dataset": "~nobody/x.jsonl"}, "no such file or folder"),
        ({"number_of_actors": 1000}, "processes needs about"),
        ({"max_prompt_tokens": "5"}, "--max_prompt_tokens"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_started(
    options, message, tmp_path, capfd, monkeypatch
):
    monkeypatch.setattr(cluster, "start", lambda *_: pytest.fail("a process was started"))
    assert cli.main(flags(tmp_path / "out", "x", **options)) == 2
    error = capfd.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1, error
    assert not (tmp_path / "out").exists()
