"""`unslothrl eval`: a run's own figures come out again, beside the base's, and every completion."""

import json
from pathlib import Path

import pytest
from adapters import write
from fakes import completion, task
from runs_compared import rows as read

from unslothrl import rewards
from unslothrl.commands import cli
from unslothrl.commands.adapters import Found
from unslothrl.commands.eval import config_of, written_to
from unslothrl.config.options import Config
from unslothrl.errors import UserError
from unslothrl.records import Group
from unslothrl.runs.evaluation import compared, values_of, winner, winners

RUN = (
    "train --learner grpo --cluster local --engine transformers --max_steps 3 --batch_size 8 "
    "--num_candidates 4 --topk 3 --learner_chunk_size 2 --train_batch_size 8 --eval_problems 6 "
    "--eval_candidates 2 --eval_every 2 --lr 3e-3 --run_name run"
)


def test_the_vote_goes_to_the_answer_that_most_give():
    assert winner(["3", "4", "4", None], set()) == 1
    assert winner(["4", "3", "3", "4"], set()) == 0  # as many: the earlier one
    assert winner([None, None], set()) is None
    assert winner(["1/2", "3", "3", "0.5", "50%"], {("1/2", "0.5"), ("1/2", "50%")}) == 0


def test_votes_for_the_same_number_are_one():
    read = [["\\frac{1}{2}", "7", "0.5", "7", "1/2"], ["1,000", "1000", "3"], [None, None, None]]
    assert winners(read, is_maths=True) == [0, 0, None]
    assert winners(read, is_maths=False) == [1, 0, None]


def group(*texts: str, right: str) -> Group:
    scores = tuple(float(f"<answer>{right}</answer>" in text) for text in texts)
    drawn = tuple(completion(text=text) for text in texts)
    return Group(task("0"), drawn, {"accuracy": scores}, scores)


def test_figures_by_hand():
    says = "<answer>{}</answer>".format
    groups = [
        group(says(7), says(7), says(3), "no", right="7"),
        group(says(1), says(2), says(2), says(2), right="1"),
    ]
    (accuracy,) = rewards.choose(("accuracy",))
    values = values_of(groups, accuracy.reward)
    assert values["pass@1"] == [0.5, 0.25]
    assert values["pass@2"] == pytest.approx([1 - 1 / 6, 1 / 2])
    assert values["pass@4"] == [1, 1]
    assert values["majority of 4"] == [1, 0]
    assert values["has an answer"] == [0.75, 1]
    found = compared([values["pass@1"], [0.5, 0.5]])
    assert [each.mean for each in found["estimates"]] == [0.375, 0.5]
    assert found["difference"].mean == 0.125


@pytest.mark.parametrize(
    ("options", "learner_draws", "engine"),
    [
        ({"engine": "vllm", "backend": "peft"}, False, "vllm"),
        ({"engine": "vllm", "backend": "unsloth"}, True, "vllm"),
        ({"engine": "transformers", "backend": "peft"}, True, "transformers"),
        ({"engine": "vllm", "backend": "peft", "number_of_actors": 0}, True, "transformers"),
        ({"engine": "vllm", "backend": "unsloth", "number_of_actors": 0}, True, "vllm"),
    ],
)
def test_an_evaluation_is_drawn_with_one_engine(options, learner_draws, engine):
    config = Config(learner_chunk_size=8, **options)
    assert config.learner_generates
    assert (config.learner_evaluates, config.generating_engine) == (learner_draws, engine)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("actors", [0, 1])
def test_a_runs_figure_comes_out_again(tmp_path, capsys, actors):
    """To the last bit, where as many generators draw; the base's is that before the first step. A
    learner that draws has float32 weights, which are published in bfloat16: a token of a completion
    may be another then."""
    more = ["--number_of_actors", str(actors), "--output_dir", str(tmp_path)]
    assert cli.main([*RUN.split(), *more]) == 0
    evals = [row for row in read(tmp_path / "run/metrics.jsonl") if "eval/held_out/pass@1" in row]
    capsys.readouterr()
    assert cli.main(["eval", "--adapter", str(tmp_path / "run"), "--json"]) == 0
    of_set = json.loads(capsys.readouterr().out)["sets"]["held_out"]
    figures = [each["mean"] for each in of_set["figures"]["pass@1"]["estimates"]]
    ends = (0, -1) if actors else (0,)
    assert figures[: len(ends)] == [evals[i]["eval/held_out/pass@1"] for i in ends]
    lengths = of_set["mean_length"][: len(ends)]
    assert lengths == [evals[i]["eval/held_out/mean_length"] for i in ends]
    rows = read(tmp_path / "run" / "evals" / "v000003.jsonl")
    assert len(rows) == 2 * 6 * 2 and {row["policy"] for row in rows} == {"base", "adapter"}
    for policy, step in (("base", 0), ("adapter", 3)):
        of_run = completions(read(tmp_path / f"run/evals/step_{step:06d}.jsonl"))
        again = completions([row for row in rows if row["policy"] == policy])
        same = sum(one == other for one, other in zip(again, of_run, strict=True))
        assert same >= (len(of_run) if actors or policy == "base" else 10)


def completions(rows: list[dict]) -> list[tuple]:
    return [(row["set"], row["task"], row["candidate"], row["completion"]) for row in rows]


def test_where_completions_cannot_go_is_said_before_they_are_drawn(tmp_path, here):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    found = Found(tmp_path / "run" / "adapters" / "v000001", tmp_path / "run", None)
    with pytest.raises(UserError, match="output folder exists already"):
        written_to(found, "folder", ())
    with pytest.raises(OSError, match="file"):
        written_to(found, "file/x.jsonl", ())
    assert written_to(found, "new/x.jsonl", ()) == Path("new/x.jsonl")
    evals = tmp_path / "run" / "evals"
    assert written_to(found, None, ()) == evals / "v000001.jsonl"
    assert written_to(found, None, ["a/b", "c"]) == evals / "v000001-a_b-c.jsonl"
    assert written_to(Found(tmp_path / "adapter", None, None), None, ()) is None


def test_a_stage_is_not_evaluated_on_problems_of_others(tmp_path, capsys, here):
    run = tmp_path / "run"
    folder = write(run / "adapters" / "v000001")
    write(tmp_path / "alone")
    for dataset, model in (("rows.jsonl", "embedded"), ("org/rows", "org/model")):
        of_stage = f'command = "sft"\nmodel = "{model}"\ndataset = "{dataset}"\n'
        (run / "config.toml").write_text(of_stage)
        for adapter in ("run", "run/adapters/v000001", "alone"):
            assert cli.main(["eval", "--adapter", adapter]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert "dataset is not set" in line and line.endswith("set --dataset")
    assert sorted(path.name for path in run.iterdir()) == ["adapters", "config.toml"]
    (run / "config.toml").write_text('command = "sft"\ndataset = "embedded"\n')
    config, _ = config_of(Found(folder, run, None), (), {})
    assert config.eval_dataset == ("embedded",) and config.model == "embedded"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("reward", '["{run}/mine.py:mine"]'),
        ("reward", '["{run}/../{run}/./mine.py:mine=0.5"]'),
        ("reward", '["{here}/{run}/link.py:mine"]'),
        ("reward", '["{here}/to-{run}.py:mine"]'),
        ("reward", '["beside.py:mine"]'),
        ("reward", '["{run}/../beside.py:mine"]'),
        ("learner", '"{run}/mine.py"'),
        ("environment", '"{run}/mine.py:mine"'),
        ("tools", '["{run}/mine.py"]'),
        ("environment_python", '"./{run}/mine.py"'),
    ],
)
def test_code_that_comes_with_an_adapter_is_not_run(option, value, tmp_path, capsys, here):
    """Nor by a folder with .py in its name, a link out of the run or into it, a relative path."""
    code = f"open({str(tmp_path / 'ran')!r}, 'w')\ndef mine(completion): return 1.0\n"
    (tmp_path / "beside.py").write_text(code)
    for name in ("got", "a.python"):
        run = tmp_path / name
        write(run / "adapters" / "v000001")
        (run / "mine.py").write_text(code)
        (run / "link.py").symlink_to(tmp_path / "beside.py")
        (tmp_path / f"to-{name}.py").symlink_to(run / "mine.py")
        text = value.format(run=name, here=tmp_path)
        (run / "config.toml").write_text(f'model = "embedded"\n{option} = {text}\n')
        for adapter in (name, f"{name}/adapters/v000001"):
            assert cli.main(["eval", "--adapter", adapter]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith(f"unslothrl: {option} ") and "is not run" in line
    assert not (tmp_path / "ran").exists()
