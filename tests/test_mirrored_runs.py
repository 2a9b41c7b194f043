"""Whole runs with a mirror: the machine that they ran on is gone, and they go on elsewhere."""

import shutil
from pathlib import Path

import pytest
from killed import killed_in
from runs_compared import metrics
from test_main_job import ALONE, SMALL

from unslothrl.commands import cli

pytestmark = pytest.mark.real


def flags(output: Path, *more: str, **options) -> list[str]:
    given = {**SMALL, **ALONE, "learner": "grpo", "max_steps": 5, "output_dir": output, **options}
    return [text for flag, value in given.items() for text in (f"--{flag}", str(value))] + [*more]


@pytest.mark.slow
def test_a_run_whose_machine_is_gone_ends_as_if_it_had_not_been(tmp_path):
    """Killed, its folder deleted, and continued from the mirror alone."""
    mirror = f"file://{tmp_path}/mirror"
    options = {"checkpoint_every": 1, "mirror": mirror, "resume": "auto", "run_name": "one"}
    killed_in("log", 4, ["train", *flags(tmp_path / "first", **options)])
    shutil.rmtree(tmp_path / "first")
    second = tmp_path / "second"
    assert cli.main(["train", *flags(second, **options)]) == 0
    assert cli.main(["train", *flags(tmp_path / "whole", run_name="one")]) == 0
    whole = tmp_path / "whole" / "one"
    name = "adapters/v000005/adapter_model.safetensors"
    for folder in (second / "one", tmp_path / "mirror" / "one"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()
        assert [row["step"] for row in metrics(folder)] == [0, 1, 2, 3, 4, 5]
        for step in range(1, 6):
            rollouts = f"rollouts/step_{step:06d}.jsonl"
            assert (folder / rollouts).read_bytes() == (whole / rollouts).read_bytes()
    here, there = (
        {str(path.relative_to(folder)) for path in folder.rglob("*")}
        for folder in (second, tmp_path / "mirror")
    )
    assert {name for name in here if "/." not in f"/{name}"} == there


@pytest.mark.slow
def test_a_target_that_goes_away_costs_notes_and_not_the_run(tmp_path, capsys, monkeypatch):
    """A folder that becomes a file as soon as the run has begun."""
    from unslothrl.mirror import mirror

    checked = mirror.of_run

    def vanishing(config):
        target = checked(config)
        shutil.rmtree(tmp_path / "mirror")
        (tmp_path / "mirror").write_text("")
        return target

    monkeypatch.setattr(mirror, "of_run", vanishing)
    arguments = flags(tmp_path / "runs", run_name="one", mirror=tmp_path / "mirror", max_steps=2)
    assert cli.main(["train", *arguments]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("the run continues, and what is missing there is sent") == 1
    assert "sends the rest" in said and "finished" in said
    monkeypatch.undo()
    (tmp_path / "mirror").unlink()
    # It has finished: only the rest is sent.
    assert cli.main(["train", "--resume", str(tmp_path / "runs" / "one")]) == 0
    assert len(metrics(tmp_path / "mirror" / "one")) == 3
