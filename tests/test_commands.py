"""Every command of the documents, run in the order in which a newcomer would.

What is replaced is in `REPLACED`; a command that trains is planned with the same flags instead, but
for the first and for `--resume`, which run. Commands that need what is not here are in `NOT_RUN`.
"""

import io
import itertools
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import environments_page
import pytest
from few_cases import few

from unslothrl.algorithms import objectives
from unslothrl.commands import cli
from unslothrl.embedded import task as arithmetic
from unslothrl.weights import base_model

ROOT = Path(__file__).parents[1]
TEXTS = [*(ROOT / f"{name}.md" for name in ("README", "AGENTS", "CONTRIBUTING"))]
TEXTS += sorted((ROOT / "docs").glob("*.md"), key=lambda page: (page.stem == "using", page))
REWARDS = ROOT / "docs" / "rewards.md"
COMMAND = re.compile(r"^ {4,}((?:unslothrl|python train_distributed\.py)(?: .*)?)$", re.MULTILINE)
INLINE = re.compile(r"`((?:unslothrl|python train_distributed\.py) [^`]*)`")
SMALL = "--max_steps 2 --batch_size 6 --number_of_actors 0 --engine transformers --cluster local"
REPLACED = {
    "unslothrl grpo": "unslothrl train --learner grpo",
    "<run>": "first",
    "unslothrl doctor": "unslothrl doctor --no_self_test",  # tests/test_doctor.py has that
    "<another>": "a",
    "v000020": "v000002",
    "v000030": "v000002",
    "NAME": "embedded",
    "GB": "12",
    "--learner X": "--learner grpo",
    "~/my-model": "my-model",
    **{f"runs/{name}": f"stages/{name}" for name in ("taught", "preferred", "judge")},
}
NOT_RUN = {
    "$head": "a cluster of SLURM's",
    "--ray_address": "a cluster: tests/test_joining.py",
    "--reward length": "the example of CONTRIBUTING.md: tests/test_newcomer_reward.py",
    "unslothrl setup": "installs packages: tests/test_wheel.py",
    "--push": "a hub: tests/test_export.py",
    "export --to adapter": "no command: it names an option",
    "--actor_tensor_parallel": "three cards: tests/test_cards.py",
    "--resume runs/<run> --learner_shards": "several learners: tests/test_divided_runs.py",
    "--suite": "an environment of its own: tests/test_benchmarks.py",
    "unslothrl ui": "a server, until Ctrl-C: tests/test_ui.py",
    "s3://": "a bucket: tests/test_mirrored_runs.py",
}
WITH_A_MODEL = ("train", "demo", "eval", "ask", "chat", "export", "--resume")
STAGES = ("sft", "dpo", "rm")  # which tests/test_offline_*.py run


def documented() -> list[str]:
    """Every command once, without its comment."""
    found: list[str] = []
    for text in (re.sub(r"\\\n +", "", path.read_text()) for path in TEXTS):
        inline = [line for line in INLINE.findall(text) if len(line.split()) > 2]  # not just a name
        found += [*(each.removesuffix(" &") for each in COMMAND.findall(text)), *inline]
    return list(dict.fromkeys(re.sub(r"\s+# .*$", "", line).strip() for line in found))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the commands are given: a data set, completions, a reward, a model, a run."""
    folder = tmp_path_factory.mktemp("newcomer")
    rows = [*itertools.islice(arithmetic.problems("test", 0), 24)]
    made = [{**row, "completion": f"<answer>{row['answer']}</answer>"} for row in rows]
    for name, each in (("problems", rows), ("math500", rows), ("made", made)):
        text = "".join(json.dumps(row) + "\n" for row in each)
        (folder / f"{name}.jsonl").write_text(text)
    (folder / "mine.py").write_text(
        "def reward(completion, answer):\n    return float(answer in completion)\n"
    )
    rewards = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", REWARDS.read_text(), re.DOTALL)
    for name, text in [*environments_page.files().items(), *rewards]:
        (folder / name).write_text(text)
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copytree(base_model.prepare("embedded"), folder / "my-model")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        flags = f"--learner grpo {SMALL} --eval_every 1 --eval_problems 4"
        flags += " --eval_candidates 2 --save_every 1 --run_name first"
        assert cli.main(flags.split()) == 0
        for name in ("a", "b"):
            shutil.copytree(folder / "runs" / "first", folder / "runs" / name)
        (folder / "mine.toml").write_text((ROOT / "recipes" / "tiny-cpu.toml").read_text())
        yield folder


def arguments(command: str) -> list[str]:
    for old, new in REPLACED.items():
        command = command.replace(old, new)
    words = shlex.split(command.partition(" < ")[0])
    words = words[1:] if words[0] == "unslothrl" else words[2:]
    if words[0] in objectives.names():
        words = ["train", "--learner", *words]
    is_training = words[0].startswith("--") or words[0] == "train"
    runs = "--resume" in words and "auto" not in words
    if is_training and not runs and not {"--help", "--show-completion"} & {*words}:
        words = ["plan", *(word for word in words if word != "train")]
    if words[0] in STAGES and not {"--resume", "--help"} & {*words}:
        words += ["--output_dir", "stages"]  # the newest of runs/ is one of RL
        words += ["--max_steps", "2", "--batch_size", "2", "--eval_problems", "4"]
        words += ["--reference", "adapter"] if words[0] == "dpo" else []
    if words[0] == "eval":
        words += ["--n", "2", "--eval_problems", "4", "--engine", "transformers"]
    return words


def test_what_is_left_out_is_documented():
    commands = documented()
    assert len(commands) > 20
    assert {part for part in NOT_RUN if not any(part in command for command in commands)} == set()


RUN = [each for each in documented() if not any(part in each for part in NOT_RUN)]
TRAINED = ("runs/preferred", "runs/judge")  # made by commands that train
OFTEN = [  # that `make test` runs: without a model, and without a run of one
    command
    for command in RUN
    if arguments(command)[0] not in (*WITH_A_MODEL, *STAGES)
    and not any(name in command for name in TRAINED)
]


@pytest.mark.real
@pytest.mark.parametrize("command", few(RUN, among=OFTEN))
def test_a_documented_command_runs(command, folder, capsys, monkeypatch):
    words = arguments(command)
    monkeypatch.setattr(sys, "stdin", io.StringIO("What is 1 + 2?\n"))
    if "--output" in words:
        shutil.rmtree(folder / words[words.index("--output") + 1], ignore_errors=True)
    code = cli.main(words)
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert captured.out.strip()
