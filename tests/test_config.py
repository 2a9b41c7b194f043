"""Options: defaults, layers, limits, and TOML that reads back as it was written."""

import dataclasses
import math
import re
import tomllib

import pytest
from layouts import card, machine_of
from stopped_run import MACHINE as CPU

from unslothrl.config import parts, values
from unslothrl.config.options import OPTIONS, Config
from unslothrl.config.toml_files import read_recipe, read_toml, to_toml
from unslothrl.config.values import RUN, read_value
from unslothrl.errors import UserError
from unslothrl.records import Sampling
from unslothrl.runs import resume
from unslothrl.runs.resolve import resolve
from unslothrl.system.machine import Machine


def test_every_default_is_inside_its_own_limits():
    for name, entry in OPTIONS.items():
        assert entry.default is None or read_value(name, entry.default) == entry.default
        assert entry.metadata["help"] and entry.metadata["group"]


def test_without_a_gpu_the_embedded_recipe_lies_under_the_flags():
    recipe = read_recipe("tiny-cpu")
    resolved = resolve({"lr": "3e-4", "num_candidates": "4"}, CPU).config
    assert (resolved.lr, resolved.num_candidates) == (3e-4, 4)
    assert resolved.topk == 4  # not given, so it follows
    rest = set(recipe) - {"lr", "num_candidates", "topk"}
    assert {name: getattr(resolved, name) for name in rest} == {name: recipe[name] for name in rest}


def test_flags_lie_over_the_recipe_and_the_recipe_over_the_defaults(tmp_path):
    (tmp_path / "mine.toml").write_text("lr = 1e-4\nbatch_size = 12\n")
    flags = {"recipe": str(tmp_path / "mine.toml"), "batch_size": "16"}
    resolved = resolve(flags, machine_of((card(80),)))
    assert (resolved.config.lr, resolved.config.batch_size, resolved.config.topk) == (1e-4, 16, 16)
    assert resolved.given == {"lr", "batch_size"}


def test_the_evaluation_set_of_a_recipe_is_of_its_data_set(tmp_path):
    (tmp_path / "mine.toml").write_text('dataset = "GSM8K"\neval_dataset = ["MATH-500"]\n')
    (tmp_path / "a.jsonl").write_text("{}")
    flags = {"recipe": str(tmp_path / "mine.toml")}
    assert resolve(flags, CPU).config.eval_dataset == ("MATH-500",)
    other = resolve({**flags, "dataset": str(tmp_path / "a.jsonl")}, CPU)
    assert other.config.eval_dataset == () and any("eval_dataset" in note for note in other.notes)
    part = resolve({**flags, "dataset": "GSM8K[:100]"}, CPU)
    assert part.config.eval_dataset == ("MATH-500",)
    (tmp_path / "without.toml").write_text('eval_dataset = ["MATH-500"]\n')
    alone = {"recipe": str(tmp_path / "without.toml"), "dataset": str(tmp_path / "a.jsonl")}
    assert resolve(alone, CPU).config.eval_dataset == ("MATH-500",)


def test_a_resumed_run_keeps_what_it_was_evaluated_on(tmp_path):
    (tmp_path / "mine.toml").write_text('dataset = "GSM8K"\neval_dataset = ["MATH-500"]\n')
    (tmp_path / "a.jsonl").write_text("{}")
    flags = {"recipe": str(tmp_path / "mine.toml"), "dataset": str(tmp_path / "a.jsonl")}
    for name, its in (("new", ()), ("old", ("MATH-500",))):  # as versions before this rule began it
        (tmp_path / name).mkdir()
        folder, first = run_of(tmp_path / name, **flags)
        (folder / "config.toml").write_text(to_toml(dataclasses.replace(first, eval_dataset=its)))
        resumed = resolve({**flags, "resume": str(folder)}, CPU)
        assert resumed.config.eval_dataset == its
        assert not any("left out" in note for note in resumed.notes)


def test_the_tiny_bases_recipe_is_not_for_other_models_nor_its_last_step_for_episodes(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    resolved = resolve({"model": str(tmp_path)}, CPU).config
    assert (resolved.lr, resolved.dataset) == (2e-5, "embedded")
    (tmp_path / "a.jsonl").write_text("{}")
    flags = {"dataset": str(tmp_path / "a.jsonl")}
    assert resolve(flags, CPU).config.max_steps == 30
    assert resolve({**flags, "episodes": "2"}, CPU).config.max_steps is None


def run_of(parent, **flags):
    """-> (the folder of a run, its config)"""
    config = resolve({"lr": "7e-4", "run_name": "first", "output_dir": str(parent), **flags}, CPU)
    folder = parent / "first"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(to_toml(config.config))
    return folder, config.config


def test_resume_takes_the_runs_own_options_and_folder(tmp_path):
    folder, first = run_of(tmp_path / "runs")
    resumed = resolve({"resume": str(folder), "max_steps": "40"}, CPU).config
    assert resumed == dataclasses.replace(first, resume=str(folder), max_steps=40)
    for changed in ({"max_lora_rank": "8"}, {"seed": "1"}, {"learner": "ppo"}):  # it has no critic
        with pytest.raises(UserError, match=r"resumed|critic"):
            resolve({"resume": str(folder), **changed}, CPU)
    other = resolve({"resume": str(folder), "learner": "dapo"}, CPU).config
    assert (other.aggregation, other.filter_high) == ("token", 1 - 1e-6)  # dapo's, not the first's


def test_options_of_earlier_versions_are_left_out_and_named(tmp_path):
    folder, first = run_of(tmp_path / "runs")
    file = folder / "config.toml"
    file.write_text('ray_port = 6379\nrenderer = "auto"\n' + file.read_text())
    for asked in ({"resume": str(folder)}, {"recipe": str(file)}):
        resolved = resolve(asked, CPU)
        assert resolved.config.lr == first.lr
        (said,) = [note for note in resolved.notes if "ray_port" in note]
        assert "ray_port, renderer of an earlier version: left out" in said


def test_a_resume_names_every_option_that_changes(tmp_path):
    folder, _ = run_of(tmp_path / "runs", reward=["boxed"], max_steps="20")

    def changed(**flags):
        config = resolve({"resume": str(folder), **flags}, CPU).config
        return sorted(resume.changed(read_toml(folder / "config.toml"), config, RUN))

    assert changed() == changed(lr="7e-4", reward=["boxed"]) == []
    found = changed(lr="1e-5", reward=["boxed", "format=0.5"])
    assert found == ["lr 0.0007 -> 1e-05", "reward boxed -> boxed format=0.5"]
    said = {"learner grpo -> dapo", "aggregation sequence -> token"}
    assert said <= set(changed(learner="dapo"))


def test_rewards_that_are_not_set_are_written_with_their_weights():
    config = resolve({}, CPU).config
    assert config.reward == ("accuracy=1", "format=0.1", "tags=0.2")
    text = to_toml(config, ["data: 4 problems\x1b[2J"])
    assert "# data: 4 problems\\x1b[2J\n" in text
    assert tomllib.loads(text)["reward"] == ["accuracy=1", "format=0.1", "tags=0.2"]


def test_a_run_name_that_is_taken_gets_a_suffix(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine-2").mkdir()
    flags = {"output_dir": str(tmp_path)}
    assert resolve({"run_name": "mine", **flags}, CPU).config.run_name == "mine-3"
    assert resolve(flags, CPU).config.run_name.startswith("grpo-2")


MINE = """
from unslothrl.algorithms import losses
from unslothrl.algorithms.objective import Objective

def bounded(ratio, *others):
    return losses.CLIPS["surrogate"](ratio, *others)

OBJECTIVE = Objective(
    clip=bounded, ratio=lambda log_ratio, lengths: log_ratio.exp(), clip_high=0.3
)
"""


def test_toml_names_parts_that_are_functions(tmp_path):
    """As comments, so that the file still reads back as the same config."""
    learner = str(tmp_path / "mine.py")
    (tmp_path / "mine.py").write_text(MINE)
    made = resolve({"learner": learner}, CPU).config
    text = to_toml(made)
    assert "# clip is as mine.py has it" in text
    assert "# ratio is as mine.py has it" in text and "\nclip_high = 0.3\n" in text
    (tmp_path / "config.toml").write_text(text)
    assert Config(**read_toml(tmp_path / "config.toml")) == made
    chosen = resolve({"learner": learner, "clip": "weight"}, CPU).config
    assert 'clip = "weight"' in to_toml(chosen).splitlines()


def test_derived_values():
    config = Config(max_prompt_tokens=100, max_new_tokens=50, batch_size=4, num_candidates=3)
    assert (config.context, config.completions_per_step) == (150, 12)
    assert config.sequences_at_once == 256
    assert dataclasses.replace(config, max_num_seqs=9).sequences_at_once == 9
    assert Config(updates_per_rollout=3, epochs_per_rollout=2).updates_per_step == 6
    assert Config(number_of_actors=3, number_of_learners=2).number_of_processes == 5


def test_what_the_models_compute_in_and_hold():
    for capability, used in ((None, "bfloat16"), ((7, 5), "float16"), ((8, 0), "bfloat16")):
        assert parts.dtype_on(Config(), capability) == used
    assert parts.dtype_on(Config(dtype="float32"), (7, 5)) == "float32"
    assert [parts.vllm_rank(rank) for rank in (1, 8, 9, 257, 512)] == [8, 8, 16, 320, 512]
    for staleness, partial, versions in ((0, False, 1), (0, True, 1), (2, False, 3), (2, True, 1)):
        config = Config(max_staleness=staleness, partial_rollouts=partial)
        assert parts.versions_in_flight(config) == versions
        assert parts.follows_newest(config) == (partial and staleness > 0)


def test_how_completions_are_drawn():
    config = Config(temperature=1.1, top_p=0.9, sampling_top_k=5, max_new_tokens=7)
    assert parts.training_sampling(config) == Sampling(1.1, 0.9, 5, 7, 7)
    assert parts.evaluation_sampling(config) == Sampling(0.6, 0.95, 0, 7, 7)
    episodes = dataclasses.replace(config, max_episode_tokens=30, tools=("x.py",))
    assert parts.training_sampling(episodes) == Sampling(1.1, 0.9, 5, 7, 30)
    assert episodes.context == config.max_prompt_tokens + 30


@pytest.mark.parametrize("value", ["nan", "-inf", math.inf])
def test_numbers_must_be_finite(value):
    for name in OPTIONS:
        if RUN.kind(name) is float:
            with pytest.raises(UserError, match=name):
                read_value(name, value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('lr = "high"', "lr must be a number, got 'high': set lr = 2e-05"),
        ("batch_size = true", "batch_size must be a whole number, got True"),
        ("learner = 3", 'learner must be text, got 3: set learner = "pg"'),
        ("num_candidats = 4", "did you mean num_candidates?"),
        ("[sampling]\ntopk = 4", "[sampling] is no section of it"),
        ("lr = ", "is not TOML"),
    ],
)
def test_a_wrong_recipe_line_is_named(tmp_path, line, message):
    (tmp_path / "r.toml").write_text(line + "\n")
    with pytest.raises(UserError, match=f"r.toml.*{re.escape(message)}") as caught:
        resolve({"recipe": str(tmp_path / "r.toml")}, CPU)
    assert "\n" not in str(caught.value)


def test_what_is_wrong_with_the_flags_is_said_before_the_machine_is_looked_at(monkeypatch):
    monkeypatch.setattr(Machine, "detect", lambda: pytest.fail("looked at the machine"))
    for flags in ({"lr": "-1"}, {"adapter": "/not/there"}, {"recipe": "not-there"}):
        with pytest.raises(UserError):
            resolve(flags)


@pytest.mark.parametrize(
    ("flags", "wrong", "right"),
    [
        # a learner that generates keeps its model on the card
        ({"offload": "model"}, {}, {"number_of_actors": "1", "learner_chunk_size": "0"}),
        # one candidate has no variance
        ({"select": "max_variance", "topk": "1"}, {"learner": "grpo"}, {"learner": "ppo"}),
    ],
)
def test_what_cannot_be_together_is_refused(flags, wrong, right):
    with pytest.raises(UserError, match=" with ".join(f"{k} {v}" for k, v in flags.items())):
        resolve({**flags, **wrong}, CPU)
    assert resolve({**flags, **right}, CPU)


def test_a_kl_in_the_reward_is_estimated_by_k1_unless_another_is_named():
    flags = {"kl": "reward", "kl_coefficient": "0.05"}
    for learner in ("grpo", "rloo", "ppo", "reinforce_pp"):
        assert resolve({**flags, "learner": learner}, CPU).config.kl_estimator == "k1"
    for others in ({**flags, "kl_estimator": "k3"}, {"kl_coefficient": "0.05"}):
        assert resolve({**others, "learner": "grpo"}, CPU).config.kl_estimator == "k3"


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ("max-completion-length", "set --max_new_tokens"),
        ("actor_rollout_ref.actor.kl_loss_coef", "set --objective.kl and --objective.kl_coef"),
        ("per_device_train_batch_size", "set --batch_size and --num_candidates and --train_batch"),
        ("load_in_4bit", "the base is always in 4 bit: leave it out"),
        ("no_vllm", "set --engine transformers"),
        ("." * 100_000, "see unslothrl train --help"),
    ],
)
def test_what_an_unknown_option_is_answered_with(theirs, said):
    assert f" is not an option of train: {said}" in values.unknown(theirs, RUN.flags)


def test_every_name_that_is_answered_leads_to_options_that_exist():
    assert len(values.elsewhere()) > 500
    assert {*values.GONE} <= {*values.elsewhere()}
    known = {*RUN.flags, "card", "json"}
    for theirs, (ours, about) in values.elsewhere().items():
        assert {flag.split()[0].removeprefix("--") for flag in ours} <= known, theirs
        assert ours or about, theirs


def test_the_fields_names_are_read_and_the_objectives_section_too(tmp_path):
    """Also as earlier versions wrote a run's config.toml: flat."""
    for section in ("", "[objective]\n"):
        text = f'learning_rate = 1e-4\n{section}kl = "loss"\nturn_discount = 0.5\n'
        (tmp_path / "config.toml").write_text(text)
        read = read_toml(tmp_path / "config.toml")
        assert read == {"lr": 1e-4, "kl": "loss", "turn_discount": 0.5}
