"""A run that cannot go on ends with one line, which names the user's file if that is the cause."""

import errno
import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from unslothrl.algorithms import objectives
from unslothrl.cluster import causes
from unslothrl.errors import RunError
from unslothrl.runs import run
from unslothrl.tracking import origin
from unslothrl.tracking.run_folder import RunFolder

FAST = (
    "--number_of_actors 0 --engine transformers --cluster local --max_steps 1 --batch_size 4 "
    "--num_candidates 4 --topk 4 --eval_every 0 --max_new_tokens 24 --run_name x"
)


def objective_file(folder: Path, body: str, part: str) -> str:
    path = folder / "mine.py"
    path.write_text(
        "from unslothrl.algorithms.objective import Objective\n\n"
        f"{body}\n\nOBJECTIVE = Objective({part}=mine)\n"
    )
    return str(path)


CLIP = "def mine(ratio, logprobs, advantages, clip):\n    return "


@pytest.mark.parametrize(
    ("part", "body", "message"),
    [
        ("clip", CLIP + '"x"', "line 3, clip mine: it must return (losses, whether a clip"),
        ("clip", CLIP + "ratio[:1], ratio[:1] > 0", "got (torch.float32 [1], torch.bool [1])"),
        ("clip", CLIP + "ratio / advantages.gone", "line 4, clip mine: AttributeError: 'Tensor'"),
        ("ratio", "def mine(log_ratio, lengths): return 1.0", "each of 3 tokens, got float 1.0"),
        ("aggregation", "def mine(terms, lengths, over): return terms", "got torch.float32 [3]"),
    ],
    ids=range(5),
)
def test_a_failing_function_of_the_user_is_named_with_its_file_and_line(
    part, body, message, tmp_path
):
    import torch

    from unslothrl.algorithms.losses import Denominators, Tokens, policy_loss

    file = objective_file(tmp_path, body, part)
    logprobs = torch.tensor([-1.0, -2.0, -1.0], requires_grad=True)
    tokens = Tokens([1, 2], logprobs, torch.zeros(3), torch.ones(3), logprobs.detach())
    with pytest.raises(RunError) as error:
        policy_loss(objectives.load(file), tokens, Denominators(2, 3, 8))
    assert str(error.value).startswith(f"learner {file}, line ") and message in str(error.value)


def test_an_advantage_gets_the_arguments_that_it_names(tmp_path):
    groups = [[1.0, 0.0], [0.5, 0.5]]

    def advantages(body: str):
        file = objective_file(tmp_path, f"def mine({body}", "advantage")
        return objectives.load(file).advantage(groups, ddof=1, epsilon=1e-8)

    with_ddof = "rewards, ddof): return [[r + ddof for r in g] for g in rewards]"
    assert advantages(with_ddof) == [[2.0, 1.0], [1.5, 1.5]]
    assert advantages("rewards): return rewards") == groups
    with pytest.raises(RunError, match=r"a finite number for each reward, in groups of \[2, 2\]"):
        advantages("rewards): return [sum(group) for group in rewards]")


def lose(*_):
    raise KeyError("lost")


@pytest.mark.real
def test_a_run_that_fails_says_why_in_one_line(tmp_path, monkeypatch, capfd, here):
    from unslothrl.commands import cli
    from unslothrl.training import trainer

    line = lose.__code__.co_firstlineno + 1
    monkeypatch.setattr(trainer.Trainer, "step", lose)
    assert cli.main(FAST.split()) == 1
    out, err = capfd.readouterr()
    (said,) = err.splitlines()
    for part in (f"KeyError: 'lost' (test_failures.py, line {line})", "runs/x/error.txt"):
        assert part in said
    assert f"resume: {origin.command('--resume', 'runs/x')}" in out.splitlines()
    assert (tmp_path / "runs/x/error.txt").read_text().endswith("\nKeyError: 'lost'\n")
    assert json.loads((tmp_path / "runs/x/summary.json").read_text())["status"] == "failed"


DIED = (
    "The actor died unexpectedly before finishing this task.\n\tpid: 77\n"
    "The actor is dead because its worker process has died. Worker exit type: {kind} Worker exit "
    "detail: Worker unexpectedly exits with a connection error code 2. End of file."
)


@pytest.mark.parametrize(
    ("kind", "log", "killed", "cause"),
    [
        ("NODE_OUT_OF_MEMORY", "", False, "Ray killed it because the machine ran short of memory"),
        ("SYSTEM_ERROR", "", True, "the kernel killed a process because memory ran out"),
        ("SYSTEM_ERROR", "*** SIGSEGV received at time=1 ***", False, "SIGSEGV"),
        ("SYSTEM_ERROR", "Fatal Python error: Aborted\n", False, "Aborted"),
        ("SYSTEM_ERROR", "", False, "a signal from outside (SIGKILL)"),
    ],
)
def test_why_a_process_died(kind, log, killed, cause):
    assert causes.probable_cause(DIED.format(kind=kind), log, killed).startswith(cause)


def test_a_process_of_another_machine_is_not_explained_by_what_is_here(tmp_path):
    """Neither by a log with its number, nor by what this machine's kernel has killed."""
    (tmp_path / "worker-ab-77.err").write_text("*** SIGSEGV received")
    error = RuntimeError(DIED.format(kind="SYSTEM_ERROR") + "\n\tip: 10.0.0.2\n")
    there = causes.process_died(error, {}, tmp_path, -1, "10.0.0.1")
    assert "(process 77 on 10.0.0.2) died: a signal from outside" in str(there)
    here = causes.process_died(error, {}, tmp_path, causes.oom_killed(), "10.0.0.2")
    assert "(process 77) died: SIGSEGV; its log is" in str(here)


@pytest.mark.parametrize(
    ("number", "fix"),
    [(errno.ENOSPC, "free some space"), (errno.EROFS, "make it writable (a disk with errors")],
)
def test_a_disk_that_cannot_be_written_says_how_to_go_on(number, fix, tmp_path):
    said = os.strerror(number)
    message = str(run.unexpected(OSError(number, said), RunFolder(tmp_path), "x"))
    assert message.startswith(f"{tmp_path} cannot be written ({said}): {fix}")
    assert message.endswith(f", then --resume {tmp_path}")
    elsewhere = str(run.unexpected(OSError(number, said, "/elsewhere/x"), RunFolder(tmp_path), "x"))
    assert elsewhere == message.replace(str(tmp_path), "/elsewhere/x", 1)


def test_the_command_for_an_adapter_works_in_the_users_shell(tmp_path, monkeypatch, here):
    shell = tmp_path / "an environment" / "bin"
    shell.mkdir(parents=True)
    (shell / "unslothrl").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(shell / "python"))
    monkeypatch.setenv("PATH", str(shell))
    assert origin.program() == "unslothrl"
    monkeypatch.setenv("PATH", "/nowhere")
    assert origin.program() == "'an environment/bin/unslothrl'"
    (shell / "unslothrl").unlink()
    monkeypatch.chdir(tmp_path.parent)
    assert origin.program() == f"{shlex.quote(f'{shell}/python')} -m unslothrl"
    command = origin.command("chat", "--adapter", Path("my runs/x"))
    assert command.endswith("chat --adapter 'my runs/x'")
