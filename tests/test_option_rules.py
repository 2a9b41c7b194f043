"""Every rule speaks where its option was given and changes nothing, and is silent elsewhere."""

import dataclasses

import pytest
from adapters import write

from unslothrl.config import rules
from unslothrl.config.options import OPTIONS, Config
from unslothrl.config.toml_files import RECIPES, command_of, to_toml
from unslothrl.errors import UserError
from unslothrl.planning.place import place
from unslothrl.planning.placement import Resources
from unslothrl.runs.resolve import resolve
from unslothrl.system.machine import Gpu, Machine
from unslothrl.tracking.run_folder import RunFolder

CPU = Machine(cpus=2, ram_mb=16_000, packages=frozenset({"vllm", "ray"}), online=False)


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"problem": "1 + 1?", "answer": "2"}\n' * 4)
    (tmp_path / "e.py").write_text("class E: ...")
    write(tmp_path / "adapter")
    monkeypatch.chdir(tmp_path)


def without_effect(**flags) -> list[str]:
    notes = resolve({"learner": "grpo", **flags}, CPU).notes
    return [note.split()[0] for note in notes if " has no effect" in note]


def flags_of(line: str) -> dict:
    words = line.split()
    flags = dict(zip((word[2:] for word in words[::2]), words[1::2], strict=True))
    return {
        name: (value,) if name in ("environment_options", "tools") else value == "yes" or value
        for name, value in flags.items()
    }


WITHOUT_EFFECT = [  # flags, and those of them that the lines name, in any order
    ("--holdout 0.2 --prompt_column a --answer_column b", "holdout prompt_column answer_column"),
    ("--dataset a.jsonl --eval_dataset a.jsonl --holdout 0.2", "holdout"),
    ("--episodes 3", "episodes"),
    ("--max_turns 3 --max_episode_tokens 90 --max_tool_calls 2 --turn_rewards last "
     "--environment_timeout 3 --environment_memory_mb 9 --environment_python /bin/python "
     "--environment_options a=1",
     "max_turns max_episode_tokens max_tool_calls turn_rewards environment_timeout "
     "environment_memory_mb environment_python environment_options"),
    ("--environment e.py:E --turn_discount 0.5", "turn_discount"),
    ("--tools python --environment_options a=1", "environment_options"),
    ("--reward_timeout 9", "reward_timeout"),
    ("--project_name maths", "project_name"),
    ("--normalize_reward_model yes", "normalize_reward_model"),
    ("--allow_unsandboxed_code yes", "allow_unsandboxed_code"),
    ("--select all --topk 2", "topk"),
    ("--select max_variance", "select"),
    ("--select random --num_candidates 4 --topk 4", "select"),
    ("--learner ppo --num_candidates 1 --shuffle_rewards yes", "shuffle_rewards"),
    ("--lr_floor 0.1", "lr_floor"),
    ("--learner pg --advantage_std sample --advantage_epsilon 1e-4",
     "advantage_std advantage_epsilon"),
    ("--updates_per_rollout 2 --clip none --clip_low 0.1 --clip_dual 3", "clip_low clip_dual"),
    ("--updates_per_rollout 2 --clip weight --clip_dual 3", "clip_dual"),
    ("--updates_per_rollout 2 --ratio one --clip_high 0.3 --skip_threshold 2",
     "clip_high skip_threshold"),
    ("--clip_low 0.1 --clip_high 0.3", "clip_low clip_high"),
    ("--kl_estimator k1", "kl_estimator"),
    ("--correction none --correction_high 3", "correction_high"),
    ("--correction_low 0.5", "correction_low"),
    ("--gamma 0.9 --gae_lambda 1 --critic_lr 1e-5 --value_clip 0.1",
     "gamma gae_lambda critic_lr value_clip"),
    ("--eval_every 0 --eval_problems 5 --eval_candidates 2 --eval_top_p 1 --eval_temperature 1",
     "eval_problems eval_candidates eval_top_p eval_temperature"),
    ("--adapter adapter --max_lora_rank 8 --lora_alpha 9 --lora_dropout 0.1",
     "max_lora_rank lora_alpha lora_dropout"),
    ("--number_of_actors 0 --learner_chunk_size 4", "learner_chunk_size"),
    ("--number_of_actors 0 --kv_cache_mb 64 --min_actors 2", "kv_cache_mb min_actors"),
    ("--partial_rollouts yes", "partial_rollouts"),
    ("--engine transformers --kv_cache_mb 64", "kv_cache_mb"),
    ("--number_of_actors 0 --engine vllm", "engine"),
    ("--actor_gpu_usage 0.5 --learner_gpu_usage 0.2 --fit fastest",
     "actor_gpu_usage learner_gpu_usage fit"),
    ("--offload optimizer", "offload"),
    ("--cluster local --ray_address 10.0.0.1:6379", "ray_address"),
]  # fmt: skip

WITH_EFFECT = (
    "--dataset a.jsonl --holdout 0.2 --prompt_column problem --answer_column answer --episodes 3 "
    "--reward code --allow_unsandboxed_code yes --reward_timeout 9 --select max_variance "
    "--num_candidates 8 --topk 4 --lr_schedule cosine --lr_floor 0.1 --advantage_std sample "
    "--advantage_epsilon 1e-4 --updates_per_rollout 2 --clip_low 0.1 --clip_high 0.3 "
    "--clip_dual 3 --skip_threshold 2 --kl loss --kl_coefficient 0.1 --kl_estimator k1 "
    "--correction masked --correction_low 0.5 --correction_high 3 --eval_problems 5 "
    "--eval_candidates 2 --eval_top_p 1 --eval_temperature 1 --max_lora_rank 8 --lora_alpha 9 "
    "--lora_dropout 0.1 --learner_chunk_size 4 --kv_cache_mb 64 --engine vllm --min_actors 1",
    "--environment e.py:E --environment_options a=1 --max_turns 3 --turn_rewards discounted "
    "--turn_discount 0.5 --max_staleness 1 --partial_rollouts yes --adapter adapter "
    "--max_lora_rank 4 --lora_alpha 8 --lora_dropout 0",
    "--learner ppo --gamma 0.9 --gae_lambda 1 --critic_lr 1e-5 --value_clip 0.1",
    "",
)


@pytest.mark.parametrize(
    ("line", "named"), [*WITHOUT_EFFECT, *((line, "") for line in WITH_EFFECT)]
)
def test_a_given_option_without_effect_is_named_and_one_that_counts_is_not(line, named):
    assert sorted(without_effect(**flags_of(line))) == sorted(named.split())


def test_every_rule_is_tried_above():
    covered = {name for _, named in WITHOUT_EFFECT for name in named.split()}
    ruled = (names for _, _, names in rules.conditions(Config(), Machine(), None))
    rest = set(" ".join(ruled).split()) - covered
    assert rest | covered <= OPTIONS.keys()
    assert rest == {"run_name", "output_dir", "kl_coefficient", "tools"}  # below; 0 alone, never


def test_a_recipes_own_options_count_as_given_and_a_runs_config_does_not(tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text("gamma = 0.9\ntopk = 8\nclip_low = 0.2\n")
    assert without_effect(recipe=str(mine)) == ["gamma"]
    for learner in ("grpo", "pg", "ppo", "dapo"):
        mine.write_text(to_toml(resolve({"learner": learner}, CPU).config))
        assert without_effect(recipe=str(mine), learner=learner) == []
    for shipped in [name for name in RECIPES if command_of(name) == "train"]:
        found = resolve({"recipe": shipped, "engine": "transformers"}, CPU).notes
        assert [note for note in found if "no effect" in note] == []


@pytest.mark.parametrize(
    ("asked", "kl", "estimator"),
    [
        ({"kl": "reward", "kl_coefficient": 0.05}, "reward", "k1"),
        ({"kl_coefficient": 0.05}, "loss", "k3"),
        ({"kl_coefficient": 0.0}, "none", "k3"),
        ({"lr": 1e-5}, "none", "k3"),
    ],
)
def test_a_kl_that_a_resumed_run_did_not_have_is_as_in_a_new_run(tmp_path, asked, kl, estimator):
    run = tmp_path / "run"
    RunFolder.create(tmp_path, "run", to_toml(resolve({"learner": "grpo"}, CPU).config)).close()
    for flags in ({"resume": str(run)}, {"recipe": str(run / "config.toml"), "learner": "grpo"}):
        config = resolve(flags | asked, CPU).config
        assert (config.kl, config.kl_estimator) == (kl, estimator)


def test_a_resumed_run_keeps_its_folder(tmp_path):
    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(to_toml(resolve({"gamma": "0.9"}, CPU).config))
    flags = {"resume": str(folder), "run_name": "second", "output_dir": "x"}
    config = resolve(flags, CPU).config
    assert (config.run_name, config.output_dir) == ("first", str(folder.parent))
    assert without_effect(**flags) == ["run_name", "output_dir"]


# Overlap: what is refused, what follows from its options, and what a run says of it


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("max_staleness 1, cluster local", "change --cluster, or leave --max_staleness out"),
        ("max_staleness 2, number_of_actors 0", "change --number_of_actors, or leave --max_stale"),
        ("min_actors 3, number_of_actors 2", "set --min_actors 2 or --number_of_actors 3"),
        ("min_actors 0, learner_chunk_size 0", "set --min_actors 1"),
        ("min_actors 0, max_staleness 1", "set --min_actors 1"),
    ],
)
def test_overlap_that_cannot_be_is_refused_with_the_reason(flags, message):
    with pytest.raises(UserError, match=message):
        resolve(dict(pair.split() for pair in flags.split(", ")), CPU)


@pytest.mark.parametrize("actors", [None, 0, 1])
def test_overlap_on_one_card_is_refused_however_many_actors(actors):
    gpu = Gpu("a card", 24_576, 24_576, (8, 6))
    packages = frozenset({"vllm", "ray", "unsloth"})
    given = {"model": "Qwen/Qwen3-4B", "max_staleness": "2"}
    given |= {} if actors is None else {"number_of_actors": str(actors)}
    one = Machine(cpus=8, ram_mb=64_000, gpus=(gpu,), packages=packages, online=False)
    assert resolve({**given, "max_staleness": "0"}, one).config.max_staleness == 0
    with pytest.raises(UserError, match="max_staleness 2: on 1 GPU"):
        resolve(given, one)
    with pytest.raises(UserError, match="max_staleness 2: on 1 GPU"):  # of a cluster, by its count
        place(Config(max_staleness=2, number_of_actors=1), Resources((None,), 64_000))
    two = dataclasses.replace(one, gpus=(gpu, gpu))
    if actors != 0:
        assert resolve(given, two).config.max_staleness == 2


def test_learners_generate_nothing_while_actors_go_on():
    def resolved(**flags) -> tuple[int, list[str]]:
        found = resolve({"learner": "grpo", **flags}, CPU)
        assert found.config.learner_generates == bool(found.config.learner_chunk_size)
        notes = [note for note in found.notes if "learner_chunk_size" in note]
        return found.config.learner_chunk_size, notes

    assert resolved()[0] == 8
    assert resolved(max_staleness="1") == (0, [])
    size, notes = resolved(max_staleness="1", learner_chunk_size="4")
    assert size == 0 and notes[0].startswith("learner_chunk_size 4 -> 0: ")
    assert resolved(max_staleness="1", learner_chunk_size="0") == (0, [])


def test_rollouts_of_older_versions_are_corrected_for(tmp_path):
    mine = tmp_path / "mine.py"
    imported = "from unslothrl.algorithms.objective import Objective"
    mine.write_text(f"{imported}\nOBJECTIVE = Objective(correction='none')\n")

    def resolved(**flags) -> tuple[str | None, list[str]]:
        found = resolve({"learner": str(mine), **flags}, CPU)
        return found.config.correction, [note for note in found.notes if "correction" in note]

    assert resolved() == ("none", [])
    correction, (note,) = resolved(max_staleness="1")
    assert correction == "truncated" and note.startswith("correction none -> truncated: ")
    correction, (note,) = resolved(max_staleness="1", correction="none")
    assert correction == "none" and note.startswith("warning: correction none, ")
    assert resolved(max_staleness="1", correction="masked") == ("masked", [])
