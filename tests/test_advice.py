"""What the commands advise and claim: values, cards by name, defaults, names of runs."""

import json
import os
import re
from pathlib import Path

import pytest

from unslothrl.commands import cli
from unslothrl.commands.signatures import EVALUATED
from unslothrl.config.offline_options import TABLES
from unslothrl.config.options import OPTIONS
from unslothrl.config.values import RUN, Table, is_inside, read_value
from unslothrl.errors import UserError
from unslothrl.planning.gpus import gpus_of, rates
from unslothrl.runs.run import ends_early
from unslothrl.tracking.run_folder import newest


def last_line(arguments, capsys, code=2):
    assert cli.main([str(each) for each in arguments]) == code
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_a_value_outside_of_its_limits_is_answered_with_a_good_one():
    """With the default where there is one, never with an extreme."""
    for table in (RUN, *TABLES.values()):
        for name, entry in table.options.items():
            limits = entry.metadata
            if table.kind(name) not in (int, float) or "at_most" not in limits:
                continue
            with pytest.raises(UserError) as refused:
                read_value(name, str(10 * limits["at_most"] + 10), table=table)
            said = table.kind(name)(str(refused.value).rpartition(" ")[2])
            assert is_inside(said, limits), name
            if entry.default:
                assert said == entry.default, name
    for name, value, advised in (
        ("lr", "10", "2e-05"), ("weight_decay", "7", "0.0"), ("batch_size", "0", "30"),
        ("max_new_tokens", "0", "1200"), ("max_steps", "0", "1"),
        ("objective.clip_low", "2", "0.2"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=rf"set --{name} {re.escape(advised)}$"):
            read_value(name.rpartition(".")[2], value)


@pytest.mark.parametrize(
    ("text", "gb", "capability"),
    [
        ("4090", 24, (8, 9)), ("RTX 4090", 24, (8, 9)), ("NVIDIA GeForce RTX 4090", 24, (8, 9)),
        ("A100", 80, (8, 0)), ("A100-40GB", 40, (8, 0)), ("a100 80gb", 80, (8, 0)),
        ("T4", 15, (7, 5)), ("Tesla T4", 15, (7, 5)), ("H100", 80, (9, 0)), ("3060", 12, (8, 6)),
        ("rtx3060ti", 8, (8, 6)), ("4060 Ti 16GB", 16, (8, 9)), ("12GB", 12, (8, 6)),
        ("12 gib", 12, (8, 6)), ("12", 12, (8, 6)), ("7.5", 7.5, (8, 6)), ("24G", 24, (8, 6)),
        ("A10G", 22, (8, 6)), ("NVIDIA A100-SXM4-80GB", 80, (8, 0)), ("4060Ti16GB", 16, (8, 9)),
        ("NVIDIA H100 80GB HBM3", 80, (9, 0)), ("RTX 6000 Ada Generation", 48, (8, 9)),
    ],
)  # fmt: skip
def test_a_card_by_its_name_or_its_size(text, gb, capability):
    (card,) = gpus_of(text)
    assert (card.memory_mb, card.capability) == (round(gb * 1024), capability)


def test_a_laptops_gpu_has_a_size_of_its_own():
    with pytest.raises(UserError, match="gpu 4070 laptop: a laptop's has its own size: add it"):
        gpus_of("4070 laptop")
    assert gpus_of("4070 laptop 8GB")[0].memory_mb == 8192


@pytest.mark.parametrize(
    ("text", "slow", "fast"),
    [  # half of (GB/s, TFLOPS)
        ("3060", (180, 13), (180, 13)), ("NVIDIA GeForce RTX 4090", (504, 82.5), (504, 82.5)),
        ("NVIDIA A100 80GB PCIe", (967.5, 156), (967.5, 156)),
        ("12", (180, 12.5), (252, 30)), ("3080 12GB", (180, 12.5), (252, 30)),
        ("NVIDIA A100-SXM4-40GB", (348, 62.5), (480, 180)),
        ("RTX 4090 Laptop GPU 16GB", (144, 15), (368, 50)),
    ],
)  # fmt: skip
def test_a_card_of_a_known_name_has_its_own_speed(text, slow, fast):
    (card,) = gpus_of(text)
    assert [(a / 1e9, b / 1e12) for a, b in rates(card)] == [slow, fast]


def shown_help(command, capsys, whole=True):
    assert cli.main([*command.split(), "--help_all" if whole else "--help"]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", [*TABLES, "plan sft", "train"])
@pytest.mark.parametrize("whole", [True, False])
def test_help_has_the_defaults_of_the_commands_own_table(command, whole, capsys):
    text = shown_help(command, capsys, whole)
    table: Table = TABLES.get(command.rpartition(" ")[2], RUN)
    for name in ("lr", "batch_size", "max_lora_rank", "eval_every"):
        flags = re.split(rf"--{name}[ ,]", text, maxsplit=1)[1].removeprefix(" --").split(" --")
        flags = " ".join(flags[: 1 + bool(table.spellings(name)[1:])])
        assert f"default {table.options[name].default}" in flags, (name, flags)


def test_eval_claims_no_default_that_it_does_not_use(capsys):
    text = shown_help("eval", capsys)
    for name in EVALUATED:
        usual = OPTIONS[name].default
        if usual not in (None, ()):
            part = text.split(f"--{name} ", 1)[-1].split(f"--no_{name} ")[-1].split(" --", 1)[0]
            assert f"default {usual}" not in part and "as in its run" in part, name
    assert "default grpo" in shown_help("plan", capsys, whole=False)


def test_rewards_trackers_and_tools_may_be_separated_by_commas(capsys, here):
    assert read_value("reward", ("accuracy,rm:runs/x=0.5", "mine.py:f")) == (
        "accuracy", "rm:runs/x=0.5", "mine.py:f",
    )  # fmt: skip
    assert read_value("track", "tensorboard, wandb") == ("tensorboard", "wandb")
    line = last_line(["--reward", "accuracy,rm:runs/x", "--model", "embedded"], capsys)
    assert "runs/x: no such folder" in line
    line = last_line(["--reward", "accuracy,acuracy"], capsys)
    assert "rm:runs/NAME" in line and "set --reward accuracy" in line


@pytest.mark.parametrize("command", ["eval", "chat", "ask", "export"])
def test_a_run_is_named_as_in_report(command, tmp_path, capsys, here):
    more = {"ask": ["What is 1 + 1?"], "export": ["--output", "out"]}.get(command, [])
    line = last_line([command, "runs/x", *more], capsys)
    assert line == last_line([command, "--adapter", "runs/x", *more], capsys)
    assert "runs/x" in line and "not an argument" not in line
    assert "no run that has saved an adapter" in last_line([command, *more], capsys)
    for age, name in enumerate(("newest", "saved", "older")):
        (tmp_path / "runs" / name / "adapters").mkdir(parents=True)
        config = tmp_path / "runs" / name / "config.toml"
        config.write_text("")
        os.utime(config, (0, 1_000_000 - age))
    for name in ("saved", "older"):
        (tmp_path / "runs" / name / "adapters" / "v000001").mkdir()
    assert "runs/saved" in last_line([command, *more], capsys)
    assert newest(Path("runs"), has_adapter=False).name == "newest"
    control = tmp_path / "runs" / "saved" / "config.toml"
    control.write_text(
        "seed = 1\nshuffle_rewards = true\n"
    )  # still newer: nobody wants its adapter
    os.utime(control, (0, 1_000_000 - 1))
    assert newest(Path("runs"), has_adapter=True).name == "older"
    if command != "ask":
        assert "are two" in last_line([command, "runs/x", "--adapter", "runs/y"], capsys)


def test_the_command_of_another_run_is_named(tmp_path, capsys):
    run = tmp_path / "runs" / "rl"
    run.mkdir(parents=True)
    (run / "config.toml").write_text('learner = "grpo"\nmodel = "embedded"\n')
    line = last_line(["sft", "--resume", run], capsys)
    assert f"{run / 'config.toml'} is for unslothrl train, not for sft" in line


@pytest.mark.real
def test_rows_without_answers_name_the_reward_and_how_many(tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"problem": f"{i} + 1?"}) + "\n" for i in range(6)))
    line = last_line(["data", rows, "--model", "embedded", "--reward", "boxed"], capsys)
    assert "which reward boxed needs" in line and "--answer_column" in line
    assert re.search(r"(\d+) of \1 rows", line)


def test_the_data_end_before_max_steps():
    assert ends_early(40, 12, 1) == [
        "max_steps 40 -> 12: the data end after 1 pass (--episodes): set --episodes 4 for 40 steps"
    ]
    assert ends_early(12, 12, 1) == ends_early(None, 12, 1) == []


def test_the_readmes_problem_for_the_tiny_base_is_one_of_its_own():
    """It can learn differences of two numbers from 100 to 999, and nothing with fewer digits."""
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    asked = re.findall(r"What is (\d+) [-+] (\d+)\?", readme)
    assert asked and all(100 <= int(number) <= 999 for pair in asked for number in pair)
    assert "knows sums and can learn differences of two numbers from 100 to 999" in " ".join(
        readme.split()
    )
